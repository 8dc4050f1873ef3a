"""Traces an optimizer's `step` once, to check that it is pure and that its results fit."""

import re
from typing import Any

import tensorflow as tf

from tf_graft.core import checks
from tf_graft.core.state.slots import Slot
from tf_graft.core.tensors import numerics


class TracedStep:
    """One trace of `step`, with nothing computed.

    Args:
        optimizer: the optimizer that has the step.
        path: the path of the step's variable.
        variable: the step's variable.
        shared: the optimizer's shared slots.
    """

    def __init__(self, optimizer: Any, path: str, variable: Any, shared: dict[str, Slot]):
        self.optimizer, self.path = optimizer, path
        self.where = f"{type(optimizer).__name__}.step"
        self.of = f"for '{path}', of shape {tuple(variable.shape)}"
        dtype = numerics.compute_dtype(tf.as_dtype(variable.dtype))
        self.weights = tf.TensorSpec(variable.shape, dtype)
        self.slots = _specs(optimizer.slots_for(path), variable, dtype)
        self.shared = _specs(shared, None, tf.float32)

    def check(self) -> None:
        """Refuses a step that is not pure, or whose results do not fit."""
        results: list[Any] = []
        before = dict(vars(self.optimizer))
        traits = self.optimizer.traits(self.path)
        traced = tf.function(
            lambda *args: results.append(self.optimizer.step(*args, **traits)), autograph=False
        )
        scalar = tf.TensorSpec([], self.weights.dtype)
        everything = {**self.slots, **self.shared}
        try:
            with tf.init_scope():
                concrete = traced.get_concrete_function(
                    self.weights, self.weights, everything, scalar, scalar
                )
        except tf.errors.OperatorNotAllowedInGraphError as error:
            reason = checks.shown(error, str).rstrip(".")
            raise TypeError(
                f"{self.where}: it cannot be traced {self.of}: {reason}. Use tensor operations "
                "only: tf.where, not if."
            ) from error
        except Exception as error:
            if advice := self._advice(error):
                raise TypeError(f"{self.where}: {advice}") from error
            error.add_note(f"Raised by {self.where}, traced {self.of}.")
            raise
        self._check_pure(before, concrete)
        with concrete.graph.as_default():
            self._check_result(results[-1])

    def _advice(self, error: Exception) -> str | None:
        """Returns what to write instead, if the error is one of the most frequent ones."""
        if isinstance(error, AttributeError | NotImplementedError) and "numpy" in str(error):
            return "it asks a traced tensor for its value; use operations, not .numpy()."
        own = self.weights.dtype
        others = {role: x.dtype.name for role, x in self.slots.items() if x.dtype != own}
        refused = isinstance(error, ValueError | TypeError | tf.errors.OpError)
        if not (refused and others and re.search(r"\b(type|dtype|float|half|double)", str(error))):
            return None
        role, dtype = next(iter(others.items()))
        return (
            f"the slot '{role}' is {dtype}, the weights are {own.name}; tf.cast s['{role}'] to "
            f"g.dtype before you use it, and its new value to {dtype}."
        )

    def _check_pure(self, before: dict[str, Any], concrete: Any) -> None:
        after = vars(self.optimizer)
        changed = [n for n in after if n not in before or after[n] is not before[n]]
        if changed:
            raise TypeError(
                f"{self.where}: it sets self.{changed[0]}, which is neither saved nor kept per "
                "variable; declare it in slots, take it from s and return its new value."
            )
        if any(tensor.dtype == tf.resource for tensor in concrete.captured_inputs):
            raise TypeError(
                f"{self.where}: it reads a variable; declare it in slots or shared_slots, and take "
                "its value from s."
            )

    def _check_result(self, result: Any) -> None:
        if not isinstance(result, tuple) or len(result) != 2 or not isinstance(result[1], dict):
            raise TypeError(
                f"{self.where}: it returns {checks.shown(result)}, and must return a pair: the step"
                " to add to the weights, and a dict of the new slots."
            )
        step, new = result
        declared = ", ".join(map(repr, self.slots)) or "none"
        for role in new.keys() - self.slots.keys():
            raise ValueError(
                f"{self.where}: it returns the slot '{role}', which is not declared {self.of}: "
                f"declared are {declared}; add it to slots."
            )
        for role in self.slots.keys() - new.keys():
            raise ValueError(
                f"{self.where}: it returns no new value of the slot '{role}'; return s['{role}'] "
                "to leave it as it is."
            )
        self._check_fits("the step", step, self.weights)
        for role, spec in self.slots.items():
            self._check_fits(f"the new slot '{role}'", new[role], spec)

    def _check_fits(self, what: str, value: Any, spec: tf.TensorSpec) -> None:
        try:
            tensor = tf.convert_to_tensor(value)
        except (TypeError, ValueError):
            raise TypeError(
                f"{self.where}: {what} is {checks.shown(value)} {self.of}, and must be a tensor."
            ) from None
        if tensor.dtype != spec.dtype or not tensor.shape.is_compatible_with(spec.shape):
            raise ValueError(
                f"{self.where}: {what} is {_described(tensor)} {self.of}, and must be "
                f"{_described(spec)}."
            )


def _described(tensor: Any) -> str:
    return f"{tensor.dtype.name} of shape {tuple(tensor.shape)}"


def _specs(slots: dict[str, Slot], variable: Any, dtype: tf.DType) -> dict[str, tf.TensorSpec]:
    return {
        role: tf.TensorSpec(slot.shape_for(variable), slot.dtype or dtype)
        for role, slot in slots.items()
    }
