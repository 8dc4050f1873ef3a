"""A round on a worker of parameter servers: the centre is read, left for a while, and pushed to."""

import functools
import uuid
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tf_graft.core import matching, write
from tf_graft.core.keras_contract import storage
from tf_graft.core.parameters import Parameter
from tf_graft.core.point import under, within
from tf_graft.core.resident import Resident
from tf_graft.core.slots import first
from tf_graft.core.write import Whole
from tf_graft.wrappers.local_steps import Local, LocalSteps, Sum


class WorkerRounds(LocalSteps):
    """An optimizer of which a worker takes a whole round at a time."""

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
        variables = trainable_variables
        variables = None if variables is None else matching.variables("AGN.apply", variables)
        if variables and not self.built:
            self.build(variables)
        if self.on_servers:
            raise ValueError(
                "AGN.apply: on parameter servers a worker has a local copy for a round only; "
                "schedule functions that call AGN.round."
            )
        super().apply(grads, variables)

    @property
    def round_length(self) -> int:
        """How many batches a round is of: `communication_period` steps, each of as many batches as
        gradients are accumulated.
        """
        return self.communication_period * (self.gradient_accumulation_steps or 1)

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
        round, and begins anew. Micro-steps that are left over at its end are for the worker's next.

        A step that is skipped is not made up for: the mean is over the others. Where none is left,
        nothing is pushed. A schedule of `optimizer` goes on from `iterations`, which counts the
        steps of all workers, as they were when the round began.

        Args:
            loss: a scalar, of one batch given as arguments.
            batches: a tuple of tensors, with the batches along their first dimension:
                `round_length` of them, or fewer at the end of the data.
            others: variables of the model that it changes itself, such as moving means and seeds.

        Returns:
            The mean loss of the batches whose gradients were taken; NaN where there is none.

        Raises:
            ValueError: not on parameter servers, or not built.
            tf.errors.InvalidArgumentError: with `nonfinite="raise"`, when the round runs, a
                gradient that is not finite. Nothing has changed.
        """
        self._check_servers()
        forms: dict[str, bool] = {}

        def local_step(number: tf.Tensor, state: Local) -> tuple[tf.Tensor, Local]:
            batch = tf.nest.map_structure(lambda x: x[number], batches)
            state, seen = self.after_batch(state, loss, batch, others)
            forms.update(seen)
            return number + 1, state

        length = tf.shape(tf.nest.flatten(batches)[0])[0]
        residents = self._residents()
        start = self._begin(residents, others)
        state = tf.while_loop(lambda i, _: i < length, local_step, (tf.constant(0), start))[1]
        self._remember(residents, state)
        push = functools.partial(self._push, state, forms, others)
        if self.use_locking:
            self._mutex.execute(push)
        else:
            push()
        write.add(self.iterations, state.taken)
        write.add(self.skipped_steps, state.skipped)
        return state.loss / tf.cast(state.seen, state.loss.dtype)

    def _check_servers(self) -> None:
        if not self.on_servers:
            raise ValueError(
                f"{type(self).__name__}.round: a round is for parameter servers, and the optimizer "
                "was built for no variables there; build it for them first, or use apply."
            )

    def _push(self, state: Local, forms: dict[str, bool], others: Sequence[Any]) -> tf.Tensor:
        """The means go to the centre: of row-sparse gradients, their rows."""
        pushed = [p for p in self._parameters if p.path in forms]

        def to_center() -> None:
            means = [state.sums[p.path].mean(state.taken, forms[p.path]) for p in pushed]
            self.center_optimizer.apply_summed(means, [p.variable for p in pushed])

        tf.cond(state.taken > 0, to_center, lambda: None)
        for variable, value in zip(others, state.others, strict=True):
            write.put(variable, value)
        return tf.constant(0)

    def _residents(self) -> dict[str, Resident]:
        """By path and role: what is kept of `optimizer`, and of an accumulation, on each worker."""
        starts = {name: tf.constant(0, tf.int64) for name in ("count", "micro", "spoiled")}
        for role, slot in self.optimizer.shared_slots().items():
            starts[role] = first(slot, None, tf.float32)
        for p in self._parameters:
            for role, slot in self.optimizer.slots_for(p.path).items():
                starts[f"{p.path}/{role}"] = first(slot, p.variable, p.dtype)
            if self.gradient_accumulation_steps:
                starts |= under(f"{p.path}/pending", Sum.zero(p)._asdict())
        return {name: Resident(f"{self._own_name}/{name}", x) for name, x in starts.items()}

    @property
    def _own_name(self) -> str:
        """Of this optimizer alone in the cluster."""
        if not hasattr(self, "_own"):
            self._own = f"{self.name}_{uuid.uuid4().hex}"
        return self._own

    def _begin(self, residents: dict[str, Resident], others: Sequence[Any]) -> Local:
        kept = {name: resident.read() for name, resident in residents.items()}
        zero = tf.constant(0, tf.int64)
        pending = self._parameters if self.gradient_accumulation_steps else ()
        return Local(
            w={p.path: p.read(Whole()) for p in self._parameters},
            slots={
                p.path: {
                    role: kept[f"{p.path}/{role}"] for role in self.optimizer.slots_for(p.path)
                }
                for p in self._parameters
            },
            sums={p.path: Sum.zero(p) for p in self._parameters},
            pending={p.path: Sum(**within(f"{p.path}/pending", kept)) for p in pending},
            shared={role: kept[role] for role in self.optimizer.shared_slots()},
            others=[tf.convert_to_tensor(v) for v in others],
            step=tf.convert_to_tensor(self.iterations),
            count=kept["count"],
            micro=kept["micro"],
            spoiled=kept["spoiled"],
            taken=zero,
            skipped=zero,
            seen=zero,
            loss=tf.constant(0.0),
        )

    def _remember(self, residents: dict[str, Resident], state: Local) -> None:
        values = {"micro": state.micro, "spoiled": state.spoiled}
        for path, pending in state.pending.items():
            values |= under(f"{path}/pending", pending._asdict())
        if not self.reset_local_state:
            values |= {"count": state.count, **state.shared}
            for path, slots in state.slots.items():
                values |= under(path, slots)
        for name, value in values.items():
            residents[name].write(value)
