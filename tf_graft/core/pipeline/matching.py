"""Matches gradients and variables with parameters, or refuses them."""

import warnings
from collections.abc import Sequence

import keras
import tensorflow as tf
from tensorflow.experimental import dtensor

from tf_graft.core import checks
from tf_graft.core.checks import shown
from tf_graft.core.places import replicas
from tf_graft.core.state import slots
from tf_graft.core.state.parameters import Parameter, Parameters, paths
from tf_graft.core.tensors import numerics
from tf_graft.core.types import Gradient, Key, VariableLike


def variables(owner: str, given: object) -> list[VariableLike]:
    """Returns the given variables as a list.

    Raises:
        TypeError: the argument is not a list of variables.
    """
    result = checks.listed(f"{owner}: the variables are {{}}; they must be in a list.", given)
    for position, variable in enumerate(result):
        if not isinstance(variable, replicas.VARIABLES):
            raise TypeError(
                f"{owner}: variable {position} is {shown(variable)}, of type "
                f"{type(variable).__name__}; it must be a tf.Variable or a keras.Variable."
            )
    return result


def variables_and_models(owner: str, given: object) -> tuple[list[VariableLike], list[keras.Model]]:
    """Returns the given variables, or the trainable ones of the given models, and the models.

    Raises:
        TypeError: the argument is not a list of variables or of models.
        ValueError: a model is not built.
    """
    listed = given if isinstance(given, list | tuple) else [given]
    models = [model for model in listed if isinstance(model, keras.Model)]
    if not models or len(models) < len(listed):
        return variables(owner, given), []
    for model in models:
        if not model.built:
            raise ValueError(
                f"{owner}: the model '{model.name}' is not built; call it on a batch first."
            )
    return [v for model in models for v in model.trainable_variables], models


def gradients_and_variables(owner: str, given: object) -> tuple[list[object], list[object]]:
    """Returns the gradients and the variables of a list of pairs.

    Raises:
        TypeError: the argument is not a list of pairs.
    """
    refusal = f"{owner}: a list of pairs of gradient and variable is wanted, not {{}}."
    pairs = checks.listed(refusal, given)
    for pair in pairs:
        if not isinstance(pair, tuple | list) or len(pair) != 2:
            raise TypeError(refusal.format(f"one with {shown(pair)}"))
    return [gradient for gradient, _ in pairs], [variable for _, variable in pairs]


def refuse_untrainable(owner: str, variables: Sequence[VariableLike], keys: Sequence[Key]) -> None:
    """Refuses variables for which no optimizer can be built.

    Raises:
        TypeError: a variable is not floating point.
        ValueError: a variable is given twice, has an unknown shape, or would be overwritten with
            its gradient.
    """
    named = list(zip(paths(variables), variables, strict=True))
    for path, variable in named:
        if not tf.as_dtype(variable.dtype).is_floating:
            raise TypeError(
                f"{owner}: '{path}' is of dtype {tf.as_dtype(variable.dtype).name}; only "
                "floating point variables can be trained."
            )
        if not tf.TensorShape(variable.shape).is_fully_defined():
            raise ValueError(f"{owner}: the shape of '{path}' is not known.")
        if getattr(variable, "overwrite_with_gradient", False):
            raise ValueError(
                f"{owner}: '{path}' is to be overwritten with its gradient (float8 training), "
                "which tf_graft does not support."
            )
    seen: set[Key] = set()
    for (path, _), key in zip(named, keys, strict=True):
        if key in seen:
            raise ValueError(f"{owner}: '{path}' is given twice.")
        seen.add(key)


def parameters_for(
    owner: str, known: Parameters, keys: Sequence[Key], variables: Sequence[VariableLike]
) -> list[Parameter]:
    """Returns the parameter of each variable, by its key.

    Raises:
        ValueError: a variable is unknown or given twice.
    """
    found: dict[Key, Parameter] = {}
    for variable, key in zip(variables, keys, strict=True):
        parameter = known.get(key)
        if parameter is None:
            raise _unknown(owner, paths([variable])[0], known)
        if key in found:
            raise ValueError(f"{owner}: '{parameter.path}' is given twice.")
        found[key] = parameter
    return list(found.values())


def _unknown(owner: str, path: str, known: Parameters) -> ValueError:
    """Returns the error for a variable that is not one of an optimizer's."""
    if not len(known):
        return ValueError(
            f"{owner}: the optimizer is not built yet; take a step before, or call its `build`."
        )
    if any(path == parameter.path for parameter in known):
        return ValueError(
            f"{owner}: the optimizer was built for other variables of the same names: '{path}' is "
            "that of a clone, or of a model that was made again; make a new optimizer for it."
        )
    return ValueError(
        f"{owner}: '{path}' is not one of the {len(known)} variables that the optimizer was built "
        "for."
    )


def pairs(
    owner: str, gradients: Sequence[object], parameters: Sequence[Parameter]
) -> tuple[list[Gradient], list[Parameter]]:
    """Returns the gradients that are not None, as floating point tensors, with their parameters.

    Raises:
        TypeError: a gradient is not floating point, or is an ordinary tensor for a variable on a
            mesh; row indices are not integers.
        ValueError: gradients and variables differ in number or shape, or all gradients are None.
    """
    if len(gradients) != len(parameters):
        raise ValueError(
            f"{owner}: {len(gradients)} gradients were given for {len(parameters)} variables."
        )
    present = [(g, p) for g, p in zip(gradients, parameters, strict=True) if g is not None]
    missing = [p.path for g, p in zip(gradients, parameters, strict=True) if g is None]
    if not present:
        raise ValueError(f"{owner}: no variable has a gradient.")
    if missing:
        warnings.warn(
            f"{owner}: no gradient for {', '.join(missing)}; left alone. (Does the loss depend on "
            "it? Was `loss` given to `compile`?)",
            stacklevel=5,
        )
    return [_checked(owner, g, p) for g, p in present], [p for _, p in present]


def _checked(owner: str, given: object, parameter: Parameter) -> Gradient:
    if isinstance(given, tf.distribute.DistributedValues):
        return given
    gradient = as_gradient(f"{owner}: the gradient of '{parameter.path}'", given)
    shape = tuple(parameter.variable.shape)
    found = numerics.values(gradient).shape
    row_sparse = isinstance(gradient, tf.IndexedSlices)
    on_mesh = slots.layout_of(parameter.variable) is not None
    if on_mesh and shape and tf.executing_eagerly() and not _on_mesh(gradient):
        raise TypeError(
            f"{owner}: the gradient of '{parameter.path}' is an ordinary tensor, and the variable "
            "is on a mesh; tf_graft.dtensor.to_mesh puts it there."
        )
    if not found.is_compatible_with([None, *shape[1:]] if row_sparse else shape):
        what = "row-sparse gradient" if row_sparse else "gradient"
        raise ValueError(
            f"{owner}: the {what} of '{parameter.path}' has shape {tuple(found)}, the variable has "
            f"shape {shape}."
        )
    return gradient


def as_gradient(what: str, given: object) -> tf.Tensor | tf.IndexedSlices:
    """Returns a gradient as a floating point tensor or `tf.IndexedSlices` with integer indices.

    Raises:
        TypeError: the gradient is neither; the message begins with `what`.
        ValueError: not every row has one index.
    """
    try:
        gradient = numerics.tensors(given)  # no shape check here: the variable's shape counts
    except (TypeError, ValueError):
        raise TypeError(
            f"{what} is {shown(given)}; it must be a tensor, a tf.IndexedSlices or None."
        ) from None
    if not gradient.dtype.is_floating:
        raise TypeError(f"{what} is of dtype {gradient.dtype.name}; it must be floating point.")
    row_sparse = isinstance(gradient, tf.IndexedSlices)
    if row_sparse and not gradient.indices.dtype.is_integer:
        raise TypeError(f"{what} has indices of dtype {gradient.indices.dtype.name}, not integers.")
    if row_sparse and not gradient.indices.shape.is_compatible_with(gradient.values.shape[:1]):
        raise ValueError(
            f"{what} has values of shape {tuple(gradient.values.shape)} for indices of shape "
            f"{tuple(gradient.indices.shape)}; each row must have one index."
        )
    return gradient


def as_loss(owner: str, given: object) -> tf.Tensor:
    """Returns the loss that a function returned, as a tensor.

    Raises:
        TypeError: the loss is not a floating point tensor.
    """
    try:
        loss = tf.convert_to_tensor(given)
    except (TypeError, ValueError):
        raise TypeError(f"{owner}: the loss is {shown(given)}, which is no number.") from None
    if not loss.dtype.is_floating:
        raise TypeError(f"{owner}: the loss is of dtype {loss.dtype.name}; it must be floating.")
    return loss


def _on_mesh(gradient: tf.Tensor | tf.IndexedSlices) -> bool:
    sparse = isinstance(gradient, tf.IndexedSlices)
    parts = [gradient.values, gradient.indices] if sparse else [gradient]
    return all(dtensor.is_dtensor(part) for part in parts)
