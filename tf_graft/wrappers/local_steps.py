"""The local steps of a round on a worker, as pure functions of where the worker stands.

They are those of `core/pipeline.py`, in its order, on tensors in place of variables.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import keras
import tensorflow as tf

from tf_graft.core import clipping, judge, matching, numerics, rows, write
from tf_graft.core.judge import Update
from tf_graft.core.optimizer import Optimizer
from tf_graft.core.parameters import Parameter
from tf_graft.core.pipeline import in_precision
from tf_graft.core.point import Point, within
from tf_graft.core.wrapper import Wrapper
from tf_graft.core.write import Part
from tf_graft.wrappers.center import Centered


class Sum(NamedTuple):
    """What was accumulated of a variable's gradients.

    Args:
        values: the sum, dense.
        touched: of which rows there is something in it.
    """

    values: tf.Tensor
    touched: tf.Tensor

    @classmethod
    def zero(cls, p: Parameter) -> "Sum":
        """Nothing."""
        shape = tuple(p.variable.shape)
        return cls(tf.zeros(shape, p.dtype), tf.zeros(shape[:1], tf.bool))

    def plus(self, value: tf.Tensor, part: Part) -> "Sum":
        """With the values of a part added."""
        total = part.merged(part.read(self.values) + value, self.values)
        return Sum(total, part.merged(tf.ones_like(part.read(self.touched)), self.touched))

    def mean(self, count: Any, row_sparse: bool) -> Any:
        """The mean over so many gradients, dense or of the touched rows."""
        value = numerics.divided(self.values, count)
        return rows.of_marked(value, self.touched) if row_sparse else value


class Local(NamedTuple):
    """Where a worker stands within a round: by the path of the variable.

    Args:
        w: local copies, in the precision of the update.
        slots: of `optimizer`, by role.
        sums: for the centre.
        pending: gradients of the micro-steps since the last step; empty without accumulation.
        shared: state of `optimizer` that is not of one variable, by role.
        others: values of the model's other variables, in their order.
        step: what schedules see.
        count: steps of this worker that `optimizer` counts.
        micro: micro-steps since the last step.
        spoiled: how many of them had a gradient that was not finite.
        taken: steps of this round that were not skipped.
        skipped: steps of this round that were.
        seen: batches of this round whose gradients were taken.
        loss: the sum of their losses.
    """

    w: dict[str, tf.Tensor]
    slots: dict[str, dict[str, tf.Tensor]]
    sums: dict[str, Sum]
    pending: dict[str, Sum]
    shared: dict[str, tf.Tensor]
    others: list[tf.Tensor]
    step: tf.Tensor
    count: tf.Tensor
    micro: tf.Tensor
    spoiled: tf.Tensor
    taken: tf.Tensor
    skipped: tf.Tensor
    seen: tf.Tensor
    loss: tf.Tensor


Both = list[tuple[Any, Parameter]]  # gradients, and what they are for


class LocalSteps(Centered):
    """An optimizer whose local steps can be taken away from its variables."""

    mode: str

    def after_batch(
        self, state: Local, loss: Callable[..., tf.Tensor], batch: Any, others: Sequence[Any]
    ) -> tuple[Local, dict[str, bool]]:
        """Where the worker stands after a batch, and which variables had a gradient: by path,
        whether a row-sparse one.
        """
        value, gradients, changed = self._taped(state, loss, batch, others)
        both = matching.pairs(f"{type(self).__name__}.round", gradients, list(self._parameters))
        scale = self.divisor()
        # No write has to wait for the assertions: all are of what comes out of the whole round.
        ready, _ = self._coalesced(in_precision(*both), both[1])
        given = list(zip(ready, both[1], strict=True))
        finite = self._judgement(given, scale, state.step)
        given = [(numerics.divided(g, scale), p) for g, p in given]
        accepted = state._replace(
            others=changed, seen=state.seen + 1, loss=state.loss + tf.cast(value, tf.float32)
        )
        start = _either(finite, lambda: accepted, lambda: state)
        after = self._accumulated(start, given, finite)
        return after, {p.path: numerics.row_sparse(g) for g, p in given}

    def _taped(
        self, state: Local, loss: Callable[..., tf.Tensor], batch: Any, others: Sequence[Any]
    ) -> tuple[tf.Tensor, list[Any], list[tf.Tensor]]:
        """The loss at the local copy, its gradients times the loss scale, and `others` after it."""
        parameters = list(self._parameters)
        local = [tf.saturate_cast(state.w[p.path], p.variable.dtype) for p in parameters]
        stand_in = [*zip((p.variable for p in parameters), local, strict=True)]
        stand_in += zip(others, state.others, strict=True)
        with tf.GradientTape() as tape:
            tape.watch(local)
            with keras.StatelessScope(state_mapping=stand_in) as scope:
                value = loss(*batch)
            scaled = self.scale_loss(value)
        changed = [tf.convert_to_tensor(scope.get_current_value(v)) for v in others]
        return value, tape.gradient(scaled, local), changed

    def _judgement(self, ready: Both, scale: Any, step: tf.Tensor) -> tf.Tensor | None:
        """Whether a step can be made; None where it does not depend on that."""
        gradients, parameters = [g for g, _ in ready], [p for _, p in ready]
        update = Update(gradients, parameters, scale, self._rates_at(step))
        update, _ = judge.judged(update, self.nonfinite, self._clips, self._where("round"))
        return update.finite if self.nonfinite == "skip" else None

    def _accumulated(self, state: Local, given: Both, finite: tf.Tensor | None) -> Local:
        """A step now, or at the last micro-step."""
        steps = self.gradient_accumulation_steps
        if not steps:
            return self._decided(state, given, finite)
        sums = {
            p.path: state.pending[p.path].plus(numerics.values(g), write.part_of(g, p.rows))
            for g, p in given
        }
        after = _either(
            finite,
            lambda: state._replace(pending=state.pending | sums, micro=state.micro + 1),
            lambda: state._replace(spoiled=state.spoiled + 1, micro=state.micro + 1),
        )

        def decided() -> Local:
            means = [
                (after.pending[p.path].mean(steps, numerics.row_sparse(g)), p) for g, p in given
            ]
            zero = tf.zeros_like(after.micro)
            nothing = {p.path: Sum.zero(p) for _, p in given}
            emptied = after._replace(pending=after.pending | nothing, micro=zero, spoiled=zero)
            return self._decided(emptied, means, None if finite is None else after.spoiled == 0)

        return tf.cond(after.micro == steps, decided, lambda: after)

    def _decided(self, state: Local, given: Both, finite: tf.Tensor | None) -> Local:
        """A step, unless a gradient was not finite."""
        if self._watcher is not None:
            self._watcher([g for g, _ in given], [p for _, p in given])
        skipped = state._replace(skipped=state.skipped + 1)
        return _either(finite, lambda: self._moved(state, given), lambda: skipped)

    def _moved(self, state: Local, given: Both) -> Local:
        """Clip, propose, add."""
        parameters = [p for _, p in given]
        gradients = clipping.clipped([g for g, _ in given], *self._clips)
        parts = [write.part_of(g, p.rows) for g, p in given]
        t = state.count + 1
        rates = within("optimizer", self._rates_at(state.step))
        shared = state.shared | self.optimizer.advance(state.shared, rates, t)
        points = [
            Point(
                *(p.path, numerics.values(g), part.read(state.w[p.path])),
                {role: part.read(x) for role, x in state.slots[p.path].items()} | shared,
                {role: tf.cast(rate, p.dtype) for role, rate in rates.items()},
                tf.cast(t, p.dtype),
            )
            for g, p, part in zip(gradients, parameters, parts, strict=True)
        ]
        w, slots, sums = dict(state.w), dict(state.slots), dict(state.sums)
        steps = zip(parameters, parts, points, self.optimizer.proposals(points), strict=True)
        for p, part, at, (d, new) in steps:
            moved = part.merged(at.w + d, w[p.path])
            constraint = p.variable.constraint
            w[p.path] = moved if constraint is None else constraint(moved)
            old = slots[p.path]
            slots[p.path] = old | {role: part.merged(x, old[role]) for role, x in new.items()}
            sums[p.path] = sums[p.path].plus(at.g if self.mode == "gradients" else -d, part)
        state = state._replace(w=w, slots=slots, sums=sums, shared=shared)
        return state._replace(count=t, taken=state.taken + 1, step=state.step + 1)

    def _rates_at(self, step: tf.Tensor) -> dict[str, Any]:
        """The rates by role where that many steps have been taken."""
        with keras.StatelessScope(state_mapping=[(count, step) for count in _counts(self)]):
            return self.rates()


def _counts(optimizer: Optimizer) -> Iterator[Any]:
    """What an optimizer and its children count in."""
    yield optimizer.iterations
    if isinstance(optimizer, Wrapper):
        for child in optimizer.children().values():
            yield from _counts(child)


def _either(finite: tf.Tensor | None, then: Callable[[], Local], other: Callable[[], Local]) -> Any:
    return then() if finite is None else tf.cond(finite, then, other)
