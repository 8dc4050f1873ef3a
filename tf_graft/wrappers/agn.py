"""AGN: local steps, then one normalized push to a centre that all workers share."""

import dataclasses
import itertools
import math
from collections.abc import Iterable, Iterator
from typing import Any, Unpack

import keras
import tensorflow as tf

from tf_graft.core import (
    accumulation,
    arguments,
    checks,
    collectives,
    numerics,
    replicas,
    write,
)
from tf_graft.core.checked import Checked
from tf_graft.core.parameters import Parameter
from tf_graft.core.point import Point, Step
from tf_graft.core.registry import register, resolve, serialize
from tf_graft.core.slots import Slot, refill
from tf_graft.core.wrapper import Around
from tf_graft.scaling import MixedPrecision
from tf_graft.wrappers.center import refuse_scaling
from tf_graft.wrappers.worker_round import WorkerRounds

MODES = ("gradients", "updates")
PAPER = {"name": "sgd", "learning_rate": 1.0}  # adds the mean of the updates to the centre
# What belongs to one of the two optimizers, and to which.
BELONGS = {"use_ema": "center_optimizer", "weight_decay": "optimizer"}


@register
class AGN(WorkerRounds):
    """AGN: a period of local steps, then one push of the mean gradient to a centre that all share.

    ```
    w <- w + step(g)                         `optimizer`, on the worker's own copy
    a <- a + g
    every `communication_period` steps:
        c <- c + step(a / n)                 `center_optimizer`, on the centre
        w <- c,  a <- 0                      the worker goes on from the centre
    ```

    `n` counts the gradients in `a`. The model's variables are the local copy; right after a
    communication they equal the centre. `fit` ends with the centre in them; `centered()` and the
    callback `CenterWeights` put it there for evaluation and saving, and `center_values()` reads it.

    Two counts: `iterations` are local steps, and `rounds` are updates of the centre. A schedule of
    `optimizer` sees the first, one of `center_optimizer` (a copy's too) the second. `learning_rate`
    is that of `optimizer`; set to a number, it is set for a copy as well.

    On the replicas of a strategy each takes local steps with its own share of the gradient, times
    the number of replicas, as its estimate of the whole; the shares of `a / n` are summed once a
    period, the only time that replicas wait for each other. So a period of 1 is plain synchronous
    training. A checkpoint then holds the centre, and of local state the first replica's.

    From contrib's: the centre counts its own steps, so that Adam's bias correction is right; `a`
    starts at zero; row-sparse gradients are pushed by their rows; a non-finite gradient is neither
    applied nor accumulated, and a non-finite mean never reaches the centre; the centre is saved,
    and can be exported. There `num_worker` and `use_locking` had no effect.

    Settings: DiLoCo is `mode="updates"` with `center_optimizer=SGD(0.7 * communication_period,
    momentum=0.9, nesterov=True)` and AdamW inside; averaging (post-local SGD) is `mode="updates"`
    with `center_optimizer=SGD(communication_period)`: what these push is the difference between
    centre and local copy, and the mean `a / n` is that much shorter.

    Args:
        optimizer: for the local steps: an optimizer of tf_graft or Keras, a name or a config. What
            it was given for clipping and accumulation is done to the local gradients. In
            `MixedPrecision`, each worker has a loss scale of its own, and the centre none.
        num_worker: how many there are: the replicas of a strategy must be as many. In one process
            `workers()` makes as many that share a centre. None: not checked.
        communication_period: local steps between two communications, at least 1. Default 10.
        center_optimizer: for the centre, with state of its own; likewise given. It may clip and
            average (`use_ema`). None: a copy of `optimizer`; with `mode="updates"`, `SGD(1.0)`.
        use_locking: whether a push to parameter servers is atomic. Without effect elsewhere.
        mode: what is accumulated. `"gradients"`: as in contrib. `"updates"`: the negative steps
            that were applied, as in the paper.
        reset_local_state: whether `optimizer` starts anew after each communication. Default False,
            as in contrib.
        learning_rate: sets the rate of `optimizer`, if not None.
        **common: see `tf_graft.core.arguments.Common`; what `optimizer` was given of them is taken
            over. Not `weight_decay` and `use_ema`, which belong to the two optimizers.

    Raises:
        TypeError: an argument of the wrong type; an optimizer that cannot be wrapped.
        ValueError: an argument out of range; an option that belongs to one of the two optimizers.

    Row-sparse gradients: local step, push and pull are of the touched rows.

    Example:
        >>> from tf_graft.optimizers import SGD
        >>> w, optimizer = tf.Variable([1.0]), AGN(SGD(0.5), communication_period=2)
        >>> optimizer.apply([tf.constant([1.0])], [w])
        >>> w.numpy().tolist(), optimizer.center_values()["Variable"].tolist()
        ([0.5], [1.0])
        >>> optimizer.apply([tf.constant([3.0])], [w])  # the centre: 1 - 0.5 * (1 + 3) / 2
        >>> w.numpy().tolist(), optimizer.center_values()["Variable"].tolist()
        ([0.0], [0.0])

    Reference:
        Hermans, Spanakis and Moeckel, 2017, "Accumulated gradient normalization" (arXiv
        1710.02368); tf.contrib.opt.AGNOptimizer.
    """

    outermost = True

    num_worker = Checked(checks.integer, 1, optional=True)
    communication_period = Checked(checks.integer, 1)
    use_locking = Checked(checks.boolean)
    mode = Checked(checks.choice, MODES)
    reset_local_state = Checked(checks.boolean)

    def __init__(
        self,
        optimizer: Any,
        num_worker: int | None = None,
        communication_period: int = 10,
        center_optimizer: Any = None,
        use_locking: bool = True,
        mode: str = "gradients",
        reset_local_state: bool = False,
        learning_rate: Any = None,
        **common: Unpack[arguments.Common],
    ):
        optimizer, given = resolve(optimizer), dict[str, Any](common)
        if type(optimizer) is MixedPrecision and type(self) in (AGN, ScaledAGN):
            object.__setattr__(self, "__class__", ScaledAGN)  # Keras' own sets nothing so early
            optimizer, given = optimizer.optimizer, optimizer.handed_over("AGN") | given
        refuse_scaling("AGN", "optimizer", optimizer)
        super().__init__(optimizer, learning_rate=learning_rate, **given)
        for option, receiver in BELONGS.items():
            if getattr(self, option):
                where = f"AGN({option}={getattr(self, option)!r})"
                raise ValueError(f"{where}: it is for one of the two; give it to {receiver}.")
        self.num_worker, self.communication_period = num_worker, communication_period
        self.use_locking = use_locking
        self.mode = mode
        self.reset_local_state = reset_local_state
        self._copies = center_optimizer is None and mode == "gradients"
        usual = serialize(self.optimizer) if self._copies else PAPER
        self.center_optimizer = self.take_center(
            usual if center_optimizer is None else center_optimizer
        )
        self.idle = False
        self.rowwise = self.optimizer.rowwise and self.center_optimizer.rowwise
        self.local_step = self._scalar("local_step")
        self.accumulated_steps = self._scalar("accumulated_steps")

    @property
    def learning_rate(self) -> Any:
        """The present rate of `optimizer`; setting it sets a copy's on the centre as well."""
        return self.optimizer.learning_rate

    @learning_rate.setter
    def learning_rate(self, value: Any) -> None:
        Around.learning_rate.fset(self, value)  # type: ignore[attr-defined]
        if self._copies:
            self.center_optimizer.learning_rate = value

    def slots(self) -> dict[str, Slot]:
        touched = Slot(shape="rows", dtype="bool")
        return super().slots() | {"gradient_sum": Slot(), "touched_rows": touched}

    def complete(self, parameters: list[Parameter]) -> None:
        count = replicas.count()
        if count > 1 and self.num_worker not in (None, count):
            raise ValueError(
                f"AGN(num_worker={self.num_worker}): the strategy has {count} replicas, which are "
                "the workers; leave num_worker out."
            )
        super().complete(parameters)

    def propose(self, points: Iterable[Point]) -> Iterator[Step]:
        points, given = itertools.tee(points)
        for p, (d, slots) in zip(points, super().propose(given), strict=True):
            slots["gradient_sum"] = p.s["gradient_sum"] + (p.g if self.mode == "gradients" else -d)
            slots["touched_rows"] = tf.ones_like(p.s["touched_rows"])
            yield d, slots

    def _done(self) -> tf.Tensor:
        return self._read(self.accumulated_steps) if self.reset_local_state else super()._done()

    def aggregate(self, gradients: list[Any], parameters: list[Parameter]) -> list[Any]:
        """This replica's estimate of the whole gradient."""
        count = replicas.count()
        if count == 1:
            return gradients
        return [numerics.like(g, numerics.values(g) * count) for g in gradients]

    def meet(
        self, gradients: list[Any], parameters: list[Parameter], finite: tf.Tensor | None
    ) -> None:
        one = tf.constant(1, tf.int64)
        taken = one if finite is None else tf.cast(finite, tf.int64)
        # Replicas have to meet: with several of them a step that is skipped counts, too.
        counted = taken if replicas.count() == 1 else one
        step = self._read(self.local_step) + counted
        write.put(self.local_step, step)
        write.put(self.accumulated_steps, self._read(self.accumulated_steps) + taken)
        due = (step % self.communication_period == 0) & (counted > 0)
        tf.cond(due, lambda: self._communicate(gradients, parameters), lambda: None)

    def _communicate(self, gradients: list[Any], parameters: list[Parameter]) -> None:
        """Pushes the mean of what was accumulated, and pulls the centre."""
        count = tf.cast(self._read(self.accumulated_steps), tf.float32) * replicas.count()
        count = tf.where(count > 0, count, math.nan)  # which the centre's optimizer refuses
        both = list(zip(gradients, parameters, strict=True))
        means = [accumulation.take(g, _sums(p), count) for g, p in both]
        means = collectives.summed(means, [p.rows for p in parameters], self.local_step)
        self.center_optimizer.apply_summed(means, [p.slots["center"] for p in parameters])
        for mean, p in zip(means, parameters, strict=True):
            part = write.part_of(mean, p.rows)
            p.replace(part.read(replicas.local(p.slots["center"])), part)
            if self.reset_local_state:
                for role, slot in self.optimizer.slots_for(p.path).items():
                    refill(p.slots[f"optimizer/{role}"], slot, p.variable, part)
        write.put(self.accumulated_steps, tf.constant(0, tf.int64))

    def _read(self, scalar: Any) -> tf.Tensor:
        return tf.convert_to_tensor(replicas.local(scalar))

    def get_config(self) -> dict[str, Any]:
        config = super().get_config()
        return config | ({"center_optimizer": None} if self._copies else {})


def _sums(parameter: Parameter) -> Parameter:
    """A parameter whose accumulator is the sum of a period."""
    state = {
        "gradient_accumulator": parameter.slots["gradient_sum"],
        "accumulated_rows": parameter.slots["touched_rows"],
    }
    return dataclasses.replace(parameter, state=state)


@keras.saving.register_keras_serializable(package="tf_graft")
class ScaledAGN(AGN, MixedPrecision):
    """What `AGN(MixedPrecision(...))` is: its own class, for `compile` to see that it scales."""

    def round(self, loss: Any, batches: Any, others: Any = ()) -> tf.Tensor:
        raise ValueError(
            "AGN.round: a round on a worker of parameter servers keeps no loss scale; give AGN "
            "what is in MixedPrecision, and compute in bfloat16, which needs no scale."
        )

    def get_config(self) -> dict[str, Any]:
        config = super().get_config()
        parts = {name: config.pop(name) for name in ("optimizer", "loss_scale")}
        return config | {"optimizer": {"name": "mixed_precision", **parts}}


ScaledAGN.__name__ = "AGN"  # in errors and names of variables
