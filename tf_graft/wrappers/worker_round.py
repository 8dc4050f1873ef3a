"""A round on a worker of parameter servers: the centre is read, left for a while, and pushed to."""

import math
import uuid
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import keras
import tensorflow as tf

from tf_graft.core import clipping, numerics, replicas
from tf_graft.core.keras_contract import storage
from tf_graft.core.parameters import Parameter
from tf_graft.core.point import Point, under, within
from tf_graft.core.resident import Resident
from tf_graft.core.rows import Whole, densify
from tf_graft.core.slots import first
from tf_graft.wrappers.center import Centered


class Local(NamedTuple):
    """Where a worker stands within a round: by parameter, in their order.

    Args:
        w: local copies, in the precision of the update.
        sums: what was accumulated.
        slots: of `optimizer`, by role.
        shared: its state that is not of one variable, by role.
        others: values of the model's other variables.
        count: steps of this worker that `optimizer` counts.
        taken: steps of this round that were not skipped.
        loss: their sum.
    """

    w: list[tf.Tensor]
    sums: list[tf.Tensor]
    slots: list[dict[str, tf.Tensor]]
    shared: dict[str, tf.Tensor]
    others: list[tf.Tensor]
    count: tf.Tensor
    taken: tf.Tensor
    loss: tf.Tensor


class WorkerRounds(Centered):
    """An optimizer of which a worker takes a whole round at a time."""

    mode: str
    communication_period: int
    reset_local_state: bool
    use_locking: bool

    def complete(self, parameters: list[Parameter]) -> None:
        super().complete(parameters)
        if self.on_servers:
            with tf.device(storage(parameters[0].variable).device):
                self._mutex = tf.CriticalSection(name=f"{self._own_name}_push")

    def apply(self, grads: Any, trainable_variables: Any = None) -> None:
        """As every optimizer's; on parameter servers a worker takes a `round` at a time.

        Raises:
            ValueError: on parameter servers.
        """
        variables = None if trainable_variables is None else list(trainable_variables)
        if variables and not self.built:
            self.build(variables)
        if self.on_servers:
            raise ValueError(
                "AGN.apply: on parameter servers a worker has a local copy for a round only; "
                "schedule functions that call AGN.round."
            )
        super().apply(grads, variables)

    def round(
        self, loss: Callable[..., tf.Tensor], batches: Any, others: Sequence[Any] = ()
    ) -> tf.Tensor:
        """A worker's round: local steps from the centre, then one push. To be scheduled.

        ```python
        @tf.function
        def round(x, y):  # of shape [period, batch, ...]
            return optimizer.round(lambda x, y: mean_loss(y, model(x)), (x, y))

        coordinator.schedule(round, args=(x, y))
        ```

        The model's variables, on the servers, are the centre. Within `loss` they read as the local
        copy. State of `optimizer` stays on the worker; a worker that is killed loses it with its
        round, and begins anew.

        Args:
            loss: a scalar, of one batch given as arguments.
            batches: a tuple of tensors, with the batches along their first dimension:
                `communication_period` of them, or fewer at the end of the data.
            others: variables of the model that it changes itself, such as moving means and seeds.

        Returns:
            The mean loss of the steps that were not skipped.
        """
        steps = tf.shape(tf.nest.flatten(batches)[0])[0]
        residents = self._residents()
        start = self._begin(residents, others)
        state = tf.while_loop(
            lambda i, _: i < steps,
            lambda i, state: (i + 1, self._local_step(state, loss, batches, i, others)),
            (tf.constant(0), start),
        )[1]
        self._remember(residents, state)
        taken = tf.where(state.taken > 0, tf.cast(state.taken, tf.float64), math.nan)
        means = [numerics.divided(a, taken) for a in state.sums]

        def push() -> tf.Tensor:
            self.center_optimizer.apply_summed(means, self.centers())
            for variable, value in zip(others, state.others, strict=True):
                replicas.put(variable, value)
            return tf.constant(0)

        if self.use_locking:
            self._mutex.execute(push)
        else:
            push()
        replicas.add(self.iterations, state.taken)
        return state.loss / tf.cast(taken, state.loss.dtype)

    def _residents(self) -> dict[str, Resident]:
        """By path and role: what is kept of `optimizer` on each worker."""
        starts = {"count": tf.constant(0, tf.int64)}
        for role, slot in self.optimizer.shared_slots().items():
            starts[role] = first(slot, None, tf.float32)
        for p in self._parameters:
            for role, slot in self.optimizer.slots_for(p.path).items():
                starts[f"{p.path}/{role}"] = first(slot, p.variable, p.dtype)
        return {name: Resident(f"{self._own_name}/{name}", x) for name, x in starts.items()}

    @property
    def _own_name(self) -> str:
        """Of this optimizer alone in the cluster."""
        if not hasattr(self, "_own"):
            self._own = f"{self.name}_{uuid.uuid4().hex}"
        return self._own

    def _begin(self, residents: dict[str, Resident], others: Sequence[Any]) -> Local:
        weights = [p.read(Whole()) for p in self._parameters]
        kept = {name: resident.read() for name, resident in residents.items()}
        zero = tf.constant(0, tf.int64)
        return Local(
            w=weights,
            sums=[tf.zeros_like(w) for w in weights],
            slots=[
                {role: kept[f"{p.path}/{role}"] for role in self.optimizer.slots_for(p.path)}
                for p in self._parameters
            ],
            shared={role: kept[role] for role in self.optimizer.shared_slots()},
            others=[tf.convert_to_tensor(v) for v in others],
            count=kept["count"],
            taken=zero,
            loss=tf.constant(0.0),
        )

    def _remember(self, residents: dict[str, Resident], state: Local) -> None:
        if self.reset_local_state:
            return
        values = {"count": state.count, **state.shared}
        for p, slots in zip(self._parameters, state.slots, strict=True):
            values |= under(p.path, slots)
        for name, value in values.items():
            residents[name].write(value)

    def _local_step(
        self, state: Local, loss: Any, batches: Any, number: tf.Tensor, others: Sequence[Any]
    ) -> Local:
        parameters = list(self._parameters)
        mapped = [
            tf.saturate_cast(w, p.variable.dtype) for w, p in zip(state.w, parameters, strict=True)
        ]
        with tf.GradientTape() as tape:
            tape.watch(mapped)
            pairs = zip(
                [*(p.variable for p in parameters), *others], [*mapped, *state.others], strict=True
            )
            with keras.StatelessScope(state_mapping=list(pairs)) as scope:
                value = loss(*tf.nest.map_structure(lambda x: x[number], batches))
        gradients = tape.gradient(value, mapped, unconnected_gradients="zero")
        gradients = [
            tf.cast(densify(g, p.rows) if isinstance(g, tf.IndexedSlices) else g, p.dtype)
            for g, p in zip(gradients, parameters, strict=True)
        ]
        finite = numerics.all_finite(gradients)
        clips = (self.clipvalue, self.clipnorm, self.global_clipnorm)
        if any(clip is not None for clip in clips):
            gradients = clipping.clipped(gradients, *clips)
        moved = self._moved(state, parameters, gradients)
        moved = moved._replace(
            others=[scope.get_current_value(v) for v in others],
            loss=state.loss + tf.cast(value, tf.float32),
        )
        return tf.nest.map_structure(lambda new, old: tf.where(finite, new, old), moved, state)

    def _moved(self, state: Local, parameters: list[Parameter], gradients: list[Any]) -> Local:
        t = state.count + 1
        rates = within("optimizer", self.rates())
        shared = state.shared | self.optimizer.advance(state.shared, rates, t)
        points = [
            Point(
                *(p.path, g, w, slots | shared),
                {role: tf.cast(rate, p.dtype) for role, rate in rates.items()},
                tf.cast(t, p.dtype),
            )
            for p, g, w, slots in zip(parameters, gradients, state.w, state.slots, strict=True)
        ]
        steps = list(self.optimizer.proposals(points))
        added = gradients if self.mode == "gradients" else [-d for d, _ in steps]
        return state._replace(
            w=[w + d for w, (d, _) in zip(state.w, steps, strict=True)],
            sums=[a + x for a, x in zip(state.sums, added, strict=True)],
            slots=[old | new for old, (_, new) in zip(state.slots, steps, strict=True)],
            shared=shared,
            count=t,
            taken=state.taken + 1,
        )
