"""A Keras optimizer whose reads and writes go to stand-ins (`compose/stand_in.py`)."""

import copy
from typing import Any

import keras
import tensorflow as tf

from tf_graft.core.keras_contract.variables import storage
from tf_graft.core.types import Scalar, TensorLike, VariableLike


class OnStandIns(keras.optimizers.Optimizer):
    """A base between an optimizer's class and Keras' that passes assignments to stand-ins.

    The storage of the variables that it makes and is given are stand-ins. `count` and `rate` are
    its `iterations` and `learning_rate`.
    """

    count: Scalar = 0
    rate: Scalar = 0.0

    iterations = property(lambda self: self.count)
    learning_rate = property(lambda self: self.rate)

    def __setattr__(self, name: str, value: object) -> None:
        """Sets the attribute without Keras' method, which would extend the original's lists."""
        object.__setattr__(self, name, value)

    def add_variable_from_reference(
        self,
        reference_variable: keras.Variable,
        name: str | None = None,
        initializer: Any = "zeros",
    ) -> keras.Variable:
        """Creates a variable like Keras' method, with the same name."""
        return self.add_variable(
            shape=reference_variable.shape,
            initializer=initializer,
            dtype=reference_variable.dtype,
            name=f"{reference_variable.path.replace('/', '_')}_{name or 'var'}",
        )

    def assign(self, variable: VariableLike, value: TensorLike) -> None:
        """Assigns to the variable's stand-in."""
        storage(variable).assign(value)

    def assign_add(self, variable: VariableLike, value: TensorLike) -> None:
        """Adds to the variable's stand-in."""
        storage(variable).assign_add(value)

    def assign_sub(self, variable: VariableLike, value: TensorLike) -> None:
        """Subtracts from the variable's stand-in."""
        storage(variable).assign_sub(value)

    def once(self) -> None:
        """Runs the optimizer's code that runs once per update rather than per variable."""
        self._backend_update_step([], [], self.rate)

    def decay(self, variable: keras.Variable) -> None:
        """Applies the optimizer's decoupled weight decay, which comes before the update."""
        if type(self)._apply_weight_decay is not keras.optimizers.Optimizer._apply_weight_decay:
            self._apply_weight_decay([variable])
        elif self.weight_decay is not None:
            weights = tf.convert_to_tensor(variable)
            rate = tf.cast(self.rate, weights.dtype)
            storage(variable).assign_sub(weights * self.weight_decay * rate)

    def _backend_update_step(self, *arguments: object) -> None:
        """Does nothing; Keras' method would update all variables under the strategy."""

    def _track_variable(self, variable: keras.Variable) -> None:
        """Does not list the variable, which has no storage of its own."""


class Probe(keras.Variable):
    """A `keras.Variable` with the given storage and path."""

    def __init__(self, given: Any, path: str):
        self._given, self._given_path = given, path
        super().__init__(
            shape=given.shape,
            dtype=given.dtype.name,
            initializer="zeros",
            name=path.rpartition("/")[2],
        )

    def _initialize_with_initializer(self, initializer: object) -> None:
        self._value = self._given

    @property
    def path(self) -> str:
        """The path of the model's variable."""
        return self._given_path


def own_way(cls: type[keras.optimizers.Optimizer]) -> str | None:
    """Returns the name of a method with which a class replaces one of Keras' pipeline, if any."""
    for name in ("apply", "apply_gradients", "_backend_apply_gradients"):
        if getattr(cls, name) is not getattr(keras.optimizers.Optimizer, name):
            return name
    return None


def on_stand_ins(optimizer: keras.optimizers.Optimizer) -> OnStandIns:
    """Returns a copy of an unbuilt Keras optimizer that works on stand-ins.

    Raises:
        TypeError: the optimizer overrides a part of Keras' pipeline.
    """
    cls = type(optimizer)
    if way := own_way(cls):
        raise TypeError(f"it overrides the method '{way}', which would never be called")
    double: OnStandIns = object.__new__(
        type(cls.__name__, (cls, OnStandIns), {"__module__": cls.__module__})
    )
    for name, value in vars(optimizer).items():
        double.__dict__[name] = copy.copy(value) if isinstance(value, list | dict) else value
    return double


def decay_exclusions(optimizer: keras.optimizers.Optimizer) -> tuple[list[str], set[str]]:
    """Returns the exclusions from weight decay: patterns of names, and keys of variables."""
    pattern = getattr(optimizer, "_exclude_from_weight_decay_pattern", None)
    keys = getattr(optimizer, "_exclude_from_weight_decay", ())
    return ([pattern.pattern] if pattern else []), set(keys)


def share_exclusions(
    optimizer: keras.optimizers.Optimizer, other: keras.optimizers.Optimizer
) -> None:
    """Gives one optimizer, which is not built, the exclusions from weight decay of another."""
    for name in ("_exclude_from_weight_decay_pattern", "_exclude_from_weight_decay"):
        if hasattr(optimizer, name):
            setattr(other, name, copy.copy(getattr(optimizer, name)))
