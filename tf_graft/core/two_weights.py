"""Optimizers that train other weights than those to evaluate, and which of them the model has."""

import contextlib
from collections.abc import Callable, Iterable, Iterator
from typing import Unpack

import keras
import tensorflow as tf

from tf_graft.core.arguments.options import Common
from tf_graft.core.optimizer import Optimizer
from tf_graft.core.pipeline.exchange import Exchange
from tf_graft.core.places import replicas
from tf_graft.core.places.mesh_tensors import from_mesh
from tf_graft.core.state import write
from tf_graft.core.state.optimizer_state import nothing
from tf_graft.core.state.parameters import Parameter
from tf_graft.core.state.slots import AVERAGED_WEIGHTS, NOT_NEGATIVE, Slot
from tf_graft.core.state.write import Whole
from tf_graft.core.tensors import numerics
from tf_graft.core.types import RateLike, VariableLike


class TwoWeights(Optimizer):
    """An optimizer with two kinds of weights: those it trains, and those to evaluate and save.

    While it trains, the model's variables are the training weights, and the slot `averaged_weights`
    has the evaluation weights. To evaluate, the two are exchanged, so that both can be restored bit
    for bit, unless the variables have fewer digits than the slot (`master_weights=False`). A row
    whose `weight_sum` is 0 was never updated; its two weights are the same, whatever the slot has.
    """

    def __init__(self, learning_rate: RateLike = 0.001, **common: Unpack[Common]):
        super().__init__(learning_rate, **common)
        self.engine.exchange = _TrainsFirst(lambda: self._train(list(self.state.parameters)))

    def slots(self) -> dict[str, Slot]:
        """Returns the slots of the exchange; a subclass adds its own."""
        total = Slot(shape="rows", within=NOT_NEGATIVE)
        return {AVERAGED_WEIGHTS: Slot(rounds=False), "weight_sum": total}

    def shared_slots(self) -> dict[str, Slot]:
        """Returns the state of the exchange; a subclass adds its own."""
        return {"evaluating": Slot(dtype="int64", within=(0, 1))}

    @property
    def evaluating(self) -> bool:
        """Whether the model's variables hold the evaluation weights."""
        shared = self.state.shared
        return bool(shared) and bool(from_mesh(shared["evaluating"]).numpy())

    def use_evaluation_weights(self) -> None:
        """Assigns the evaluation weights to the model's variables; a second call does nothing."""
        self._use(self._evaluate)

    def use_training_weights(self) -> None:
        """Assigns the training weights to the model's variables; a second call does nothing."""
        self._use(self._train)

    def _use(self, assign: Callable[[list[Parameter]], None]) -> None:
        if self.built:
            with self.state.alone():
                self.state.everywhere(assign, list(self.state.parameters), traced=True)

    @contextlib.contextmanager
    def evaluation_weights(self) -> Iterator[None]:
        """A context in which the model's variables hold the evaluation weights.

        After it they hold what they held before.
        """
        before = self.evaluating
        self.use_evaluation_weights()
        try:
            yield
        finally:
            if not before:
                self.use_training_weights()

    def finalize_variable_values(self, var_list: Iterable[VariableLike]) -> None:
        """Assigns the evaluation weights, or the averages with `use_ema`; `fit` ends with it.

        All variables of the optimizer get the evaluation weights.
        """
        if self.use_ema:
            self.use_training_weights()  # those that are averaged
        else:
            self.use_evaluation_weights()
        super().finalize_variable_values(var_list)

    def synchronized_averages(self) -> list[keras.Variable]:
        """Returns the averages of `use_ema`, with the training weights in the variables."""
        self.use_training_weights()
        return super().synchronized_averages()

    def _evaluate(self, parameters: list[Parameter]) -> None:
        self._hold(1, parameters)

    def _train(self, parameters: list[Parameter]) -> None:
        self._hold(0, parameters)

    def _hold(self, evaluating: int, parameters: list[Parameter]) -> None:
        """Exchanges the two kinds of weights, if the variables hold the other one."""
        state = self.state
        held = tf.convert_to_tensor(replicas.local(state.shared["evaluating"]))

        def exchange() -> None:
            for parameter in parameters:
                _exchange(parameter)
            write.put(state.shared["evaluating"], tf.constant(evaluating, tf.int64))

        state.periodically(tf.not_equal(held, evaluating), exchange, nothing)


class _TrainsFirst(Exchange):
    """Sums gradients, after it has assigned the training weights to the variables."""

    def __init__(self, train: Callable[[], None]):
        self._train = train

    def begin(self) -> None:
        self._train()


def _exchange(parameter: Parameter) -> None:
    """Exchanges a variable with its slot."""
    slot = replicas.local(parameter.slots[AVERAGED_WEIGHTS])
    total = tf.convert_to_tensor(replicas.local(parameter.slots["weight_sum"]))
    present = parameter.read(Whole())
    updated = numerics.of_rows(total > 0, present)
    parameter.replace(tf.where(updated, tf.convert_to_tensor(slot), present))
    write.put(slot, present)
