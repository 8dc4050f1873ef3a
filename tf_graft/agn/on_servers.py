"""AGN on parameter servers: a worker takes a whole round at a time."""

import dataclasses
import functools
import uuid
from collections.abc import Callable, Iterable, Sequence

import tensorflow as tf

from tf_graft.agn.cells import CellState
from tf_graft.agn.center import Centered
from tf_graft.agn.worker_round import Round
from tf_graft.core import keras_contract
from tf_graft.core.pipeline import matching
from tf_graft.core.pipeline.engine import Engine
from tf_graft.core.pipeline.exchange import Exchange
from tf_graft.core.pipeline.scale import Scaling
from tf_graft.core.state import write
from tf_graft.core.state.parameters import Parameter
from tf_graft.core.state.point import under
from tf_graft.core.state.slots import Slot
from tf_graft.core.types import Gradient, Structure, VariableLike


class OnServers(Centered):
    """An optimizer whose steps a worker of parameter servers takes in rounds."""

    communication_period: int
    mode: str
    reset_local_state: bool
    use_locking: bool

    def make_center(self, parameters: Sequence[Parameter]) -> None:
        super().make_center(parameters)
        if self.on_servers:
            self._own_name = f"{self.name}_{uuid.uuid4().hex}"  # unique in the cluster
            with tf.device(keras_contract.storage(parameters[0].variable).device):
                self._mutex = tf.CriticalSection(name=f"{self._own_name}_push")

    @tf.autograph.experimental.do_not_convert
    def apply(
        self,
        grads: Iterable[Gradient | None],
        trainable_variables: Iterable[VariableLike] | None = None,
    ) -> None:
        """Applies gradients as every optimizer does; on parameter servers use `round` instead.

        Raises:
            ValueError: the variables are on parameter servers.
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
        """The number of batches in a round.

        A round has `communication_period` steps; each step takes as many batches as it accumulates
        gradients.
        """
        return self.communication_period * (self.gradient_accumulation_steps or 1)

    def round(
        self,
        loss: Callable[..., tf.Tensor],
        batches: Structure,
        others: Sequence[VariableLike] = (),
    ) -> tf.Tensor:
        """Runs a worker's round: local steps from the center, then one push. Schedule it.

        ```python
        @tf.function
        def round(x, y):  # of shape [period, batch, ...]
            return optimizer.round(lambda x, y: mean_loss(y, model(x)), (x, y))

        coordinator.schedule(round, args=(x, y))
        ```

        The model's variables are on the servers and are the center. Inside `loss` they read as the
        local copy. The state of `optimizer` stays on the worker: a worker that is killed loses this
        state with its round, and starts anew. Micro-steps left over at the end of a round count for
        the same worker's next round.

        A skipped step is not repeated: the mean is taken over the other steps. If no step is left,
        nothing is pushed. In a round, a schedule of `optimizer` continues from the `iterations` at
        the round's start, which count the steps of all workers.

        Args:
            loss: takes one batch as its arguments and returns a scalar.
            batches: a tuple of tensors, with the batches along their first dimension:
                `round_length` of them, or fewer at the end of the data.
            others: variables that the model changes itself, such as moving means and seeds.

        Returns:
            The mean loss of the batches whose gradients were used; NaN if there is none.

        Raises:
            ValueError: the optimizer is not on parameter servers, is not built, or scales the loss.
            tf.errors.InvalidArgumentError: with `nonfinite="raise"`, when the round runs, a
                gradient is not finite. Nothing has changed.
        """
        self._refuse_round()
        made = Round(self, self._worker_slots, self._own_name, others)
        mean = made.run(self._engine_on, loss, batches)
        made.remember(self.reset_local_state)
        push = functools.partial(made.push, self.center_optimizer, self.mode)
        if self.use_locking:
            self._mutex.execute(push)
        else:
            push()
        write.add(self.iterations, made.taken)
        write.add(self.skipped_steps, made.skipped)
        return mean

    def _worker_slots(self, path: str) -> dict[str, Slot]:
        """Returns the slots of the local steps, which stay on the worker."""
        return under("optimizer", self.optimizer.slots_for(path))

    def _engine_on(self, state: CellState, exchange: Exchange) -> Engine:
        return dataclasses.replace(self.engine, state=state, exchange=exchange)

    def _refuse_round(self) -> None:
        if type(self.engine.scaling) is not Scaling:
            raise ValueError(
                f"{type(self).__name__}.round: a round on a worker of parameter servers keeps no "
                "loss scale; give AGN what is in MixedPrecision, and compute in bfloat16, which "
                "needs no scale."
            )
        if not self.on_servers or not self.built:
            raise ValueError(
                f"{type(self).__name__}.round: a round is for parameter servers, and the optimizer "
                "was built for no variables there; build it for them first, or use apply."
            )
