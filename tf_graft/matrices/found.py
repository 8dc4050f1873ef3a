"""Finds which variables of a model are matrices, from the layers that hold them."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import keras

from tf_graft.core import checks, keras_contract, patterns
from tf_graft.core.arguments.checked import refuse_idle_patterns
from tf_graft.core.keras_contract import NORMALIZATIONS
from tf_graft.core.state import parameters
from tf_graft.core.types import VariableLike
from tf_graft.matrices.axes import OF_LAYER, Axes, Given, by_hand, checked
from tf_graft.matrices.joined import joined_kernels
from tf_graft.matrices.last_layer import kernels_of_output

HEADS = ("merged", "apart")
CONVOLUTIONS = (keras.layers.Conv1D, keras.layers.Conv2D, keras.layers.Conv3D)
TRANSPOSED = (
    keras.layers.Conv1DTranspose,
    keras.layers.Conv2DTranspose,
    keras.layers.Conv3DTranspose,
)
DEPTHWISE = (keras.layers.DepthwiseConv1D, keras.layers.DepthwiseConv2D)
SEPARABLE = (keras.layers.SeparableConv1D, keras.layers.SeparableConv2D)
CONV_LSTM = (keras.layers.ConvLSTM1D, keras.layers.ConvLSTM2D, keras.layers.ConvLSTM3D)
ELEMENTWISE = (*NORMALIZATIONS, keras.layers.PReLU)
GATES = {keras.layers.LSTMCell: 4, keras.layers.GRUCell: 3, keras.layers.SimpleRNNCell: 1}


def axes_of(
    model: keras.Model, axes: Given | None = None, heads: str = "merged"
) -> dict[str, Axes | None]:
    """Returns how each trainable variable of a model is a matrix, by path; None if it is none.

    `Muon` and the other optimizers of matrices find this by themselves; use this function to see
    what they find.

    - `Dense`: inputs x outputs. `EinsumDense` and the kernels of attention: by the equation.
    - Convolutions: height, width and input channels together x output channels, each group apart.
      Transposed ones: input channels x height, width and output channels together.
    - Recurrent kernels: one matrix for each gate.
    - Other variables of two axes: inputs x outputs. Variables of three axes, if `expert` is in the
      path, as in the mixtures of experts of keras-hub: inputs x outputs for each expert, which the
      first axis counts.
    - Kernels that join matrices of one size along their last axis: one matrix for each, if the
      layout is known. `qkv`, `attention_qkv` and `attention_qkv2` (names of a layer with a kernel,
      or attributes that hold it), with three times as many outputs as inputs: query, key and value.
      In keras-hub also `query_key_value` of GPT-NeoX; gate and up in the experts of GPT-OSS
      (`gate_up_proj`, columns in turn) and of Qwen's mixtures (`expert_feedforward_gate_dense`),
      and in DINOv2's SwiGLU (`weights_in`). Others are one matrix: name them in `axes`.
    - Factors of LoRA: `lora_kernel_a` and `lora_kernel_b` are a matrix each; the first has the axes
      of the kernel, with the rank as the last one.
    - Embeddings, kernels whose path contains `patch_embed`, and the layer that makes the model's
      output: not by default, as Muon's author advises. Normalizations, slopes of `PReLU`, biases,
      depthwise kernels and everything else: never.

    Args:
        model: a built model.
        axes: exceptions, by regular expressions for paths; the first one that matches counts. None:
            the variable is not a matrix. `"layer"`: it is a matrix as its layer says, even in an
            embedding or the last layer. A dict with `"inputs"` and `"outputs"`: lists of the axes
            that are its rows and its columns. `"batch"` lists axes along which there are several
            matrices, and `"shape"` is what the variable is reshaped to first, if axes are joined.
        heads: `"merged"`: the heads of attention are one matrix; `"apart"`: one for each head.

    Raises:
        TypeError: an argument of the wrong type.
        ValueError: the model is not built; a pattern matches nothing, or its axes do not fit.

    Example:
        >>> layers = [keras.layers.Dense(3, name="up"), keras.layers.Dense(2, name="out")]
        >>> model = keras.Sequential([keras.Input([4]), *layers], name="net")
        >>> {path: str(axes) for path, axes in axes_of(model).items() if axes}
        {'net/up/kernel': '4 x 3'}
        >>> [str(axes) for axes in axes_of(model, {"out/kernel": "layer"}).values() if axes]
        ['4 x 3', '3 x 2']
    """
    owner = "axes_of"
    checks.instance(owner, "model", model, keras.Model)
    axes, heads = checked(owner, "axes", axes), checks.choice(owner, "heads", heads, HEADS)
    variables = model.trainable_variables
    if not variables:
        raise ValueError(f"{owner}: the model has no trainable variables; build it first.")
    by_path = dict(zip(parameters.paths(variables), variables, strict=True))
    return axes_of_variables(owner, by_path, axes, heads, [model])


def axes_of_variables(
    owner: str,
    variables: Mapping[str, VariableLike],
    given: Given | None,
    heads: str,
    models: Sequence[keras.Model] = (),
) -> dict[str, Axes | None]:
    """Returns how each variable is a matrix, by path.

    Args:
        owner: the class or function that messages show.
        variables: the variables by path.
        given: the argument `axes` of `axes_of`.
        heads: the argument `heads` of `axes_of`.
        models: the models that are trained; none for variables that no layer holds.

    Raises:
        ValueError: a pattern matches nothing, or its axes do not fit; the models are not given, or
            it cannot be known which layers make their outputs.
    """
    said = given or {}
    frozen = [v.path for model in models for v in model.non_trainable_variables]
    refuse_idle_patterns(f"{owner}(axes={{{{}}: ...}})", tuple(said), [*variables, *frozen])
    if not models:
        _refuse_unknown(owner, variables, said)
    answers = _Answers.of_models(owner, models, heads, bool(said))
    found: dict[str, Axes | None] = {}
    for path, variable in variables.items():
        pattern = patterns.first(tuple(said), path)
        if not math.prod(variable.shape):
            found[path] = None
        elif pattern is None:
            its = answers.of(path, variable)
            found[path] = its.axes if its.by_default else None
        elif said[pattern] == OF_LAYER:
            found[path] = answers.of(path, variable).axes
        elif said[pattern] is None:
            found[path] = None
        else:
            where = f"{owner}(axes={{{checks.shown(pattern)}: ...}})"
            found[path] = by_hand(where, path, variable.shape, said[pattern])
    return found


def axes_of_frozen(models: Sequence[keras.Model], heads: str) -> dict[str, Axes | None]:
    """Returns how the variables of models that are not trained now would be matrices, by path."""
    frozen = {v.path: v for model in models for v in model.non_trainable_variables}
    return axes_of_variables("axes_of", frozen, None, heads, models) if models else {}


def _refuse_unknown(owner: str, variables: Mapping[str, VariableLike], said: Given) -> None:
    """Refuses variables of layers, if neither their model nor their axes are given."""
    for path, variable in variables.items():
        of_layer = isinstance(variable, keras.Variable) and "/" in variable.path
        pattern = patterns.first(tuple(said), path)
        unsaid = pattern is None or said[pattern] == OF_LAYER
        if of_layer and len(variable.shape) > 1 and unsaid:
            raise ValueError(
                f"{owner}: '{path}' is the variable of a layer, and the model is not known, which "
                "says what is a matrix; call optimizer.build(model) before the first step, or say "
                "in axes what each variable with several axes is."
            )


class Says(NamedTuple):
    """What a layer says of a variable.

    Args:
        axes: its axes as a matrix, or None.
        by_default: whether it is a matrix if the user does not say so.
    """

    axes: Axes | None
    by_default: bool = True


class _Answers(NamedTuple):
    """What models say of their variables.

    Args:
        by_key: what a layer says of a variable, by `id` of the variable's storage.
        by_path: the same, by path, for variables that stand for those of the models.
    """

    by_key: dict[int, Says]
    by_path: dict[str, Says]

    @classmethod
    def of_models(
        cls, owner: str, models: Sequence[keras.Model], heads: str, said: bool
    ) -> "_Answers":
        """Asks the layers of models, and finds those that make the output.

        Args:
            owner: the class or function that messages show.
            models: the models.
            heads: the argument `heads` of `axes_of`.
            said: whether the user says of some variables what they are.

        Raises:
            ValueError: it cannot be known which layers make the output, and nothing is said.
        """
        by_key: dict[int, Says] = {}
        for model in models:
            layers = keras_contract.layers_of(model)
            known = _of_layers(layers, heads)
            weights = {_key(v): v for v in model.weights}
            its = {k: known.get(k) or _without_layer(v.path, v) for k, v in weights.items()}
            _part_joined(its, layers)
            owners = {k: x for k, x in _owners(layers).items() if its[k].axes is not None}
            for kernel in _of_output(owner, model, owners, said):
                its[kernel] = its[kernel]._replace(by_default=False)
            by_key |= its
        paths = {_key(v): v.path for model in models for v in model.weights}
        return cls(by_key, {paths[key]: says for key, says in by_key.items()})

    def of(self, path: str, variable: VariableLike) -> Says:
        """Returns what is said of a variable; by its rank, if no layer holds it."""
        says = self.by_key.get(_key(variable)) or self.by_path.get(path)
        return says or _without_layer(path, variable)


def _key(variable: VariableLike) -> int:
    """Returns what is the same for a Keras variable and its `tf.Variable`."""
    return id(keras_contract.storage(variable))


def _owners(layers: Iterable[keras.Layer]) -> dict[int, int]:
    """Returns which layer holds each variable itself, as `id`s."""
    found: dict[int, int] = {}
    for layer in layers:
        within = {_key(v) for part in keras_contract.parts_of(layer) for v in part.weights}
        found |= {_key(v): id(layer) for v in layer.weights if _key(v) not in within}
    return found


def _of_output(
    owner: str, model: keras.Model, owners: Mapping[int, int], said: bool
) -> Iterable[int]:
    """Returns the kernels of the layers that make a model's output."""
    try:
        return kernels_of_output(model, owners)
    except Exception as error:
        if said:  # the user says what is no matrix
            return ()
        reason = str(error).strip().partition("\n")[0]
        raise ValueError(
            f"{owner}: it cannot be known which layer makes the output of the model "
            f"'{model.name}', as its call cannot be traced ({type(error).__name__}: {reason}); "
            "name that layer in axes, such as axes={'head/kernel': None}."
        ) from error


def _without_layer(path: str, variable: VariableLike) -> Says:
    """Returns what rank and path say, for a variable that no layer of Keras' own holds."""
    lower, rank = path.lower(), len(variable.shape)
    if rank == 3 and "expert" in lower:
        return Says(Axes.of(variable.shape, (1,), (2,), batch=(0,)))
    matrix = rank == 2 and "bias" not in lower.rpartition("/")[2]
    axes = Axes.of(variable.shape, (0,), (1,)) if matrix else None
    return Says(axes, by_default="embedding" not in lower)


def _of_layers(layers: Iterable[keras.Layer], heads: str) -> dict[int, Says]:
    """Returns what the layers of Keras' own say of their variables."""
    found: dict[int, Says] = {}
    for layer in layers:
        for variable in layer.weights if isinstance(layer, KNOWN) else ():
            says = _said(layer, variable, heads)
            if says is not None:
                found[_key(variable)] = says
    return found


def _part_joined(said: dict[int, Says], layers: Iterable[keras.Layer]) -> None:
    """Parts kernels that join several matrices, in what is said of them."""
    for kernel, how in joined_kernels(layers):
        key = _key(kernel)
        axes = said[key].axes if key in said else None
        # parted only once, and if the last axis is not an input
        if axes and axes.shape == axes.variable and axes.outputs[-1] == len(axes.shape) - 1:
            said[key] = said[key]._replace(axes=axes.parted(how.parts, how.interleaved))


def _said(layer: keras.Layer, variable: Any, heads: str) -> Says | None:
    """Returns what a layer says of its variable; None if nothing."""
    name, shape = variable.name, tuple(variable.shape)
    if isinstance(layer, ELEMENTWISE) or name == "bias":
        return Says(None)
    if name == "embeddings" and isinstance(layer, keras.layers.Embedding):
        return Says(Axes.of(shape, (0,), (1,)), by_default=False)
    if name == "depthwise_kernel" or (name == "kernel" and isinstance(layer, DEPTHWISE)):
        return Says(None)
    if name in ("lora_kernel_a", "lora_kernel_b"):
        return Says(_of_factor(layer, name, shape, heads))
    if name not in ("kernel", "recurrent_kernel", "pointwise_kernel"):
        return None
    axes = _of_kernel(layer, shape, heads)
    return Says(axes, by_default="patch_embed" not in variable.path.lower())


def _of_kernel(layer: keras.Layer, shape: tuple[int, ...], heads: str) -> Axes:
    """Returns the axes of a layer's kernel."""
    if isinstance(layer, keras.layers.EinsumDense):
        return _of_equation(layer.equation, shape, heads)
    last = len(shape) - 1
    if isinstance(layer, TRANSPOSED):
        return Axes.of(shape, inputs=(last,), outputs=range(last))
    for kind, gates in {**GATES, CONV_LSTM: 4}.items():
        if isinstance(layer, kind):
            return _apart(shape, gates)
    return _apart(shape, getattr(layer, "groups", 1))


def _of_factor(layer: keras.Layer, name: str, shape: tuple[int, ...], heads: str) -> Axes:
    """Returns the axes of a factor of LoRA's, whose product is along the kernel's last axis."""
    if name == "lora_kernel_a" and isinstance(layer, keras.layers.EinsumDense):
        axes = _of_equation(layer.equation, shape, heads)
        if len(shape) - 1 in axes.outputs:
            return axes
    return _apart(shape, 1)


def _apart(shape: tuple[int, ...], count: int) -> Axes:
    """Returns the axes of several kernels that are side by side along the last axis."""
    last = len(shape) - 1
    together = Axes.of(shape, inputs=range(last), outputs=(last,))
    return together if count == 1 else together.parted(count)


def _of_equation(equation: str, shape: tuple[int, ...], heads: str) -> Axes:
    """Returns the axes of the kernel of an `EinsumDense`, such as `abc,cde->abde`.

    An axis that the sum removes is an input, one that the kernel alone adds is an output. If there
    are two of either, the first one counts the heads.
    """
    operands, _, result = equation.replace(" ", "").partition("->")
    given, _, kernel = operands.partition(",")
    inputs = [i for i, letter in enumerate(kernel) if letter not in result]
    outputs = [i for i, letter in enumerate(kernel) if letter not in given]
    batch = [i for i in range(len(kernel)) if i not in (*inputs, *outputs)]
    if heads == "apart":
        divided = next((axes for axes in (outputs, inputs) if len(axes) > 1), None)
        if divided:
            batch.append(divided.pop(0))
    return Axes.of(shape, inputs, outputs, batch)


KNOWN = (
    *(keras.layers.Dense, keras.layers.EinsumDense, keras.layers.Embedding),
    *(*CONVOLUTIONS, *TRANSPOSED, *DEPTHWISE, *SEPARABLE, *CONV_LSTM, *GATES, *ELEMENTWISE),
)
