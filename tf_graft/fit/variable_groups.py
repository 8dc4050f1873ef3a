"""Groups of a model's variables, found from its layers and given as patterns for their paths."""

from collections.abc import Iterator, Sequence

import keras

from tf_graft.core import checks, keras_contract, patterns
from tf_graft.core.state import parameters


def layerwise_decay(
    model: keras.Model, rate: float, layers: Sequence[keras.Layer] | None = None
) -> dict[str, float]:
    """Returns multipliers of the learning rate that decay from the top layer down.

    ```
    multiplier(layer) = rate^(n - i)        layer i of n, the top one is layer n
    ```

    The top layer, which is usually the new head, has the multiplier 1; each layer below it has that
    of the next one times `rate`. Change or add entries as you need: it is a plain dict.

    Args:
        model: a built model.
        rate: the factor from layer to layer, in (0, 1]. Papers use 0.65 to 0.95.
        layers: the layers from the input to the output. None: the layers of the model that have
            weights, in its order, with models within it replaced by their layers.

    Returns:
        A multiplier for each variable of these layers, for the argument `learning_rate_multipliers`
        of any optimizer, by a pattern that matches the variable's path alone.

    Raises:
        TypeError: `model` is no Keras model, or an entry of `layers` is no layer.
        ValueError: `rate` is out of range; there is no layer with weights.

    Example:
        >>> layers = [keras.layers.Dense(2, name=name) for name in ("body", "head")]
        >>> model = keras.Sequential([keras.Input([3]), *layers], name="net")
        >>> for pattern, multiplier in layerwise_decay(model, 0.5).items():
        ...     print(pattern, multiplier)
        ^net/body/kernel$ 0.5
        ^net/body/bias$ 0.5
        ^net/head/kernel$ 1.0
        ^net/head/bias$ 1.0

    Reference:
        Clark et al., 2020, "ELECTRA" (arXiv 2003.10555); Bao et al., 2021, "BEiT" (arXiv
        2106.08254).
    """
    owner = "layerwise_decay"
    rate = checks.number(owner, "rate", rate, 0, 1, open_low=True)
    checks.instance(owner, "model", model, keras.Model)
    given = layers if layers is not None else _in_order(model)
    checked = [checks.instance(owner, "layers", layer, keras.Layer) for layer in given]
    distinct = {id(layer): layer for layer in checked if layer.weights}  # one may be used twice
    found = list(distinct.values())
    if not found:
        raise ValueError(f"{owner}: there is no layer with weights; build the model first.")
    exact = _exact(model)
    return {
        exact.get(id(variable)) or patterns.exact(variable.path): rate ** (len(found) - 1 - i)
        for i, layer in enumerate(found)
        for variable in _floating(layer.weights)
    }


def no_decay(model: keras.Model) -> list[str]:
    """Returns patterns for the variables that usually do not decay: biases and normalizations.

    These are the trained weights of normalization layers, every layer's bias, whatever its shape,
    and all other vectors and scalars. They are found by their layers and shapes, and not by their
    names. Layers that are frozen now count, too, as they may train later.

    Args:
        model: a built model.

    Returns:
        A pattern for each variable, which matches its path alone, for the argument
        `exclude_from_weight_decay` of any optimizer.

    Raises:
        TypeError: `model` is no Keras model.
        ValueError: the model is not built.

    Example:
        >>> layers = [keras.layers.Dense(2, name="up"), keras.layers.LayerNormalization(name="ln")]
        >>> no_decay(keras.Sequential([keras.Input([3]), *layers], name="net"))
        ['^net/up/bias$', '^net/ln/gamma$', '^net/ln/beta$']
    """
    checks.instance("no_decay", "model", model, keras.Model)
    if not model.weights:
        raise ValueError("no_decay: the model has no weights; build it first.")
    undecayed = {
        id(variable)
        for layer in keras_contract.layers_of(model)
        for variable in _floating(layer.weights)
        if isinstance(layer, keras_contract.NORMALIZATIONS)
        or variable is getattr(layer, "bias", None)
        or len(variable.shape) <= 1
    }
    undecayed -= {id(variable) for variable in keras_contract.moving_statistics(model)}
    return [pattern for key, pattern in _exact(model).items() if key in undecayed]


def _exact(model: keras.Model) -> dict[int, str]:
    """Returns patterns for a model's weights by `id`; each matches one of an optimizer's paths.

    An optimizer numbers equal paths. It has the trainable variables first; others come later.
    """
    frozen = (v for v in model.weights if not v.trainable)
    variables = [*model.trainable_variables, *frozen]
    paths = parameters.paths(variables)
    return {id(v): patterns.exact(path) for v, path in zip(variables, paths, strict=True)}


def _in_order(model: keras.Model) -> Iterator[keras.Layer]:
    """Yields the layers of a model, and those of models within it in their place."""
    for layer in model.layers:
        if isinstance(layer, keras.Model):
            yield from _in_order(layer)
        else:
            yield layer


def _floating(variables: Sequence[keras.Variable]) -> list[keras.Variable]:
    """Returns the variables that can be trained; seeds of dropout are whole numbers."""
    return [v for v in variables if keras.backend.is_float_dtype(v.dtype)]
