"""Every variable of an optimizer, with the reads and branches of the engine."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import keras
import tensorflow as tf
from tensorflow.experimental import dtensor

from tf_graft.core import keras_contract
from tf_graft.core.places import replicas
from tf_graft.core.state import write
from tf_graft.core.state.parameters import Parameter, Parameters
from tf_graft.core.state.rule import Rule
from tf_graft.core.tensors import rows
from tf_graft.core.types import Scalar


@dataclass
class OptimizerState:
    """Every variable of an optimizer.

    Args:
        parameters: the model's variables, each with its slots and the engine's.
        shared: the slots that do not belong to one variable, by role.
        counters: the counters by role: `skipped_steps`, `micro_steps` and so on.
        done: the name of the counter of updates that bias corrections use.
        mesh: the mesh that holds all of them, if there is one.
    """

    parameters: Parameters
    shared: Mapping[str, keras.Variable]
    counters: Mapping[str, keras.Variable]
    done: str = "iteration"
    mesh: dtensor.Mesh | None = None

    compiles = True  # whether steps can be compiled by XLA on their own

    @property
    def takes_kernels(self) -> bool:
        """Returns whether in-place kernels update the variables: not on meshes, nor in XLA."""
        return self.mesh is None and not keras_contract.in_xla()

    def count(self, role: str) -> tf.Tensor:
        """Returns a counter, as the calling replica sees it."""
        return tf.convert_to_tensor(replicas.local(self.counters[role]))

    def updates(self) -> tf.Tensor:
        """Returns the number of updates so far."""
        return self.count(self.done)

    def rates(self, rule: Rule) -> Mapping[str, Scalar]:
        """Returns the rates of the next update by role, and the values of other schedules."""
        return {**rule.rates(), **rule.values()}

    def either(
        self, condition: tf.Tensor | None, then: Callable[[], None], other: Callable[[], None]
    ) -> None:
        """Runs one of two functions that write variables; without a condition, the first."""
        if condition is None:
            then()
        else:
            self.branch(condition, then, other)

    def branch(
        self, condition: tf.Tensor, then: Callable[[], None], other: Callable[[], None]
    ) -> None:
        """Runs one of two functions that write variables."""
        tf.cond(condition, then, other)

    def periodically(
        self, condition: tf.Tensor, then: Callable[[], None], other: Callable[[], None]
    ) -> None:
        """Runs one of two functions that write variables, in XLA without copies of variables."""
        write.either(condition, then, other)

    def release(self, parameter: Parameter) -> None:
        """Makes later reads of a variable share its memory again, after rows were written."""
        if self.mesh is None:
            rows.share(replicas.local(parameter.variable))


def nothing() -> None:
    """Does nothing."""
