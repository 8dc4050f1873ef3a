"""What an algorithm supplies, and how what it proposes reaches the variables."""

import functools
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tf_graft.core import keras_contract, numerics, replicas, rows
from tf_graft.core.lifecycle import Lifecycle
from tf_graft.core.parameters import Parameter
from tf_graft.core.rows import Rows, Whole

Step = tuple[tf.Tensor, dict[str, tf.Tensor]]


class Algorithm(Lifecycle):
    """An optimizer's mathematics: pure functions of tensors, and the writing of their results."""

    rowwise = True
    idle = False

    # `step` as one in-place TensorFlow kernel, where there is one: a function of (g, w, s, lr, t)
    # like it, but of variables. For dense gradients; on rows `step` was measured to be as fast.
    kernel: Callable[..., None] | None = None

    def step(
        self, g: tf.Tensor, w: tf.Tensor, s: dict[str, tf.Tensor], lr: tf.Tensor, t: tf.Tensor
    ) -> Step:
        """The signed step to add to the weights, and the new slots. Pure: reads no variable.

        Args:
            g: gradient, of the shape of `w`: a whole variable or its touched rows.
            w: weights, float32 or float64.
            s: slots by role.
            lr: learning rate, a scalar of the dtype of `w`.
            t: number of this update, from 1, a scalar of the dtype of `w`.
        """
        raise NotImplementedError

    def couple(self, steps: list[Step]) -> list[Step]:
        """Reshapes the steps of all variables together, where an algorithm spans variables."""
        return steps

    def _write(self, gradients: list[Any], parameters: list[Parameter], rate: Any) -> None:
        """Propose, couple, write: by kernel where there is one, by `step` otherwise."""
        next_step = self._done() + 1
        scalars = {
            dtype: (tf.cast(rate, dtype), tf.cast(next_step, dtype))
            for dtype in dict.fromkeys(p.dtype for p in parameters)
        }
        stepping = []
        for gradient, parameter in zip(gradients, parameters, strict=True):
            if not self._write_by_kernel(gradient, parameter, *scalars[parameter.dtype]):
                stepping.append((gradient, parameter))
        self._write_steps(stepping, scalars)
        for parameter in parameters:
            if parameter.variable.constraint is not None:
                parameter.replace(parameter.variable.constraint(parameter.read(Whole())))

    def _write_by_kernel(
        self, gradient: Any, parameter: Parameter, lr: tf.Tensor, t: tf.Tensor
    ) -> bool:
        dense = not isinstance(gradient, tf.IndexedSlices)
        if self.kernel is None or not dense or not self._kernels_serve(parameter):
            return False
        if parameter.decays:
            weights = parameter.read(Whole())
            parameter.move(Whole(), weights, -lr * self.weight_decay * weights)
        slots = {role: replicas.local(slot) for role, slot in parameter.slots.items()}
        self.kernel(gradient, replicas.local(parameter.variable), slots, lr, t)
        return True

    def _kernels_serve(self, parameter: Parameter) -> bool:
        """Kernels know no masters, meshes or couplings, and XLA does as well with `step`."""
        compiled = self.jit_compile is True or keras_contract.in_xla()
        coupled = type(self).couple is not Algorithm.couple
        return not (compiled or coupled or self.mesh is not None or "master" in parameter.state)

    def _write_steps(self, stepping: list[tuple[Any, Parameter]], scalars: dict[Any, Any]) -> None:
        parts = [rows.part_of(g, p.rows) for g, p in stepping]
        weights = [p.read(part) for (_, p), part in zip(stepping, parts, strict=True)]
        inputs = [
            (
                numerics.values(g),
                w,
                {role: part.read(replicas.local(slot)) for role, slot in p.slots.items()},
                *scalars[p.dtype],
            )
            for (g, p), part, w in zip(stepping, parts, weights, strict=True)
        ]
        dense = not any(isinstance(part, Rows) for part in parts)
        propose = self._compiled_steps if self.jit_compile is True and dense else self._steps
        for (_, p), part, w, (step, slots) in zip(
            stepping, parts, weights, self.couple(propose(inputs)), strict=True
        ):
            lr, _ = scalars[p.dtype]
            p.move(part, w, step - lr * self.weight_decay * w if p.decays else step)
            for role, value in slots.items():
                part.write(replicas.local(p.slots[role]), value)

    def _steps(self, inputs: list[tuple[Any, ...]]) -> list[Step]:
        return [self.step(*arguments) for arguments in inputs]

    @functools.cached_property
    def _compiled_steps(self) -> Any:
        return tf.function(self._steps, jit_compile=True)
