"""Finds the layer that makes a model's output, in the graph of the model's call."""

from collections.abc import Hashable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import keras
import tensorflow as tf

from tf_graft.core import keras_contract
from tf_graft.core.types import Structure

SHAPES = ("Shape", "ShapeN", "Size", "Rank")  # what they return does not depend on the data
GIVEN = -1  # stands for what the model is called with


def kernels_of_output(model: keras.Model, owners: Mapping[int, Hashable]) -> set[int]:
    """Returns the kernels of the last layer before each output of a model, by `id` of storage.

    An output that several layers make, as a sum does, has no last layer.

    Args:
        model: a built model, of any kind.
        owners: the layer that holds each kernel, by `id` of the kernel's storage.

    Raises:
        Exception: the model cannot be called on symbolic inputs; whatever its call raises.
    """
    found: set[int] = set()
    for kernels in _traced(model, owners):
        if len({owners.get(kernel, GIVEN) for kernel in kernels}) == 1:
            found |= kernels - {GIVEN}
    return found


def _traced(model: keras.Model, kernels: Mapping[int, Hashable]) -> list[set[int]]:
    """Returns what each output is made of: the kernels next to it, and maybe `GIVEN`."""
    variables = [*model.trainable_variables, *model.non_trainable_variables]
    count = len(model.trainable_variables)

    def call(values: Sequence[tf.Tensor], args: Structure, kwargs: Structure) -> list[tf.Tensor]:
        state = values[:count], values[count:]
        outputs, _ = model.stateless_call(*state, *args, **kwargs)
        return [tf.convert_to_tensor(y) for y in keras.tree.flatten(outputs)]

    values = [tf.TensorSpec(v.shape, v.dtype) for v in variables]
    *others, last = _calls(model)
    traced: Any = tf.function(call, autograph=False).get_concrete_function
    for args, kwargs in others:
        try:
            program = traced(values, args, kwargs)
            break
        except Exception:  # whatever a call raises; that of the last attempt is shown
            continue
    else:
        program = traced(values, *last)
    keys = [id(keras_contract.storage(v)) for v in variables]
    graph = _Graph.of(program, {n: k for n, k in enumerate(keys) if k in kernels}, len(keys))
    return [graph.next_to(output) for output in program.outputs]


def _calls(model: keras.Model) -> Iterator[tuple[Structure, Structure]]:
    """Yields the arguments, symbolic ones, with which a model can be called."""
    if getattr(model, "inputs", None):  # it is functional or sequential
        given = model.inputs[0] if isinstance(model, keras.Sequential) else model.input
        yield (keras.tree.map_structure(lambda x: tf.TensorSpec(x.shape, x.dtype), given),), {}
        return
    shapes = model.get_build_config() or {}
    for dtype in (model.compute_dtype, "int32"):  # Keras keeps the shapes alone
        if "shapes_dict" in shapes:
            named = shapes["shapes_dict"].items()
            yield (), {name.removesuffix("_shape"): _specs(x, dtype) for name, x in named}
        else:
            yield (_specs(shapes.get("input_shape"), dtype),), {}


def _specs(shapes: Any, dtype: str) -> Structure:
    """Returns the specs of inputs with these shapes."""
    if isinstance(shapes, Mapping):
        return {name: _specs(each, dtype) for name, each in shapes.items()}
    if isinstance(shapes, Sequence) and any(isinstance(x, Sequence | Mapping) for x in shapes):
        return [_specs(each, dtype) for each in shapes]
    return tf.TensorSpec(shapes, dtype)


class _Graph(NamedTuple):
    """What the operations of a model's call depend on.

    Args:
        given: the names of the operations that are what the model is called with.
        on_data: the names of all operations that depend on it.
        read: the kernels that each operation depends on, by name, if it does not depend on data.
    """

    given: set[str]
    on_data: set[str]
    read: dict[str, set[int]]

    @classmethod
    def of(
        cls,
        program: tf.types.experimental.ConcreteFunction,
        kernels: Mapping[int, int],
        values: int,
    ) -> "_Graph":
        """Looks at a function whose first inputs are the values of variables.

        Args:
            program: the function.
            kernels: the variables that are kernels, by position among the inputs.
            values: the number of variables.
        """
        names = [x.op.name for x in program.inputs]
        held = len(program.inputs) - len(program.graph.captures)
        given = set(names[values:held])
        read = {name: {kernels[n]} for n, name in enumerate(names) if n in kernels}
        on_data = set(given)
        for op in program.graph.get_operations():  # in an order in which inputs come first
            before = [x.op.name for x in op.inputs]
            if op.type not in SHAPES and not on_data.isdisjoint(before):
                on_data.add(op.name)
            elif before:
                read[op.name] = {key for name in before for key in read.get(name, ())}
        return cls(given, on_data, read)

    def next_to(self, output: tf.Tensor) -> set[int]:
        """Returns the kernels of which an output is made without another one between them."""
        found: set[int] = set()
        seen: set[tuple[str, int]] = set()
        left = [output]
        while left:
            tensor = left.pop()
            op, at = tensor.op, (tensor.op.name, tensor.value_index)
            if at in seen or op.name not in self.on_data:
                continue
            seen.add(at)
            if op.name in self.given:
                found.add(GIVEN)
                continue
            # `IdentityN` (of a custom gradient) returns each of its inputs
            inputs = [op.inputs[tensor.value_index]] if op.type == "IdentityN" else op.inputs
            kernels = {key for x in inputs for key in self.read.get(x.op.name, ())}
            found |= kernels
            if not kernels:
                left += [x for x in inputs if x.dtype.is_floating]
        return found
