"""An optimizer of `tf_keras` that hands everything on to one of this package."""

from collections.abc import Iterable
from typing import Any

import tensorflow as tf
import tf_keras

from tf_graft.core import keras_contract
from tf_graft.core.arguments.registry import deserialize, serialize
from tf_graft.core.types import Config, Gradient, TensorLike, VariableLike


@tf_keras.utils.register_keras_serializable("tf_graft")
class Legacy(tf_keras.optimizers.Optimizer):
    """An optimizer of `tf_keras` that hands everything on to one of Keras 3.

    Args:
        optimizer: the optimizer that makes the steps.
        name: its name; None for that of `optimizer`.
    """

    def __init__(self, optimizer: Any, name: str | None = None):
        super().__init__(name or optimizer.name, jit_compile=False)
        self.optimizer = optimizer

    def _create_iteration_variable(self) -> None:
        """Creates nothing: the optimizer counts."""

    @property
    def iterations(self) -> tf.Variable:
        """The number of updates."""
        return keras_contract.storage(self.optimizer.iterations)

    @property
    def learning_rate(self) -> Any:
        """The variable of the learning rate, which can be set; a tensor for a schedule."""
        return keras_contract.storage(self.optimizer.learning_rate)

    @learning_rate.setter
    def learning_rate(self, value: Any) -> None:
        self.optimizer.learning_rate = value

    lr = learning_rate

    @property
    def variables(self) -> list[tf.Variable]:
        """The optimizer's variables."""
        return [keras_contract.storage(v) for v in self.optimizer.variables]

    def build(self, var_list: Iterable[VariableLike]) -> None:
        """Creates the state for the variables."""
        self.optimizer.build(list(var_list))

    def compute_gradients(self, loss: Any, var_list: Any, tape: Any = None) -> Any:
        """Returns pairs of gradient and variable, as the optimizer's method does."""
        return self.optimizer.compute_gradients(loss, var_list, tape)

    def apply_gradients(
        self,
        grads_and_vars: Iterable[tuple[Gradient | None, VariableLike]],
        name: str | None = None,
        skip_gradients_aggregation: bool = False,
        experimental_aggregate_gradients: bool = True,
    ) -> tf.Variable:
        """Updates the variables; in replicas, by the sum of their gradients.

        Args:
            grads_and_vars: pairs of gradient and variable.
            name: has no effect.
            skip_gradients_aggregation: whether the gradients are already summed over replicas.
            experimental_aggregate_gradients: the opposite, under its older name.
        """
        both = list(grads_and_vars)
        if skip_gradients_aggregation or not experimental_aggregate_gradients:
            present = [(gradient, v) for gradient, v in both if gradient is not None]
            self.optimizer.apply_summed([g for g, _ in present], [v for _, v in present])
        elif both:
            self.optimizer.apply_gradients(both)
        return self.iterations

    def finalize_variable_values(self, var_list: Iterable[VariableLike]) -> None:
        """Assigns the averages to the variables, with `use_ema`."""
        self.optimizer.finalize_variable_values(list(var_list))

    def set_weights(self, weights: Iterable[TensorLike]) -> None:
        """Sets all variables, in the order of `variables`."""
        self.optimizer.set_weights(list(weights))

    def save_own_variables(self, store: Any) -> None:
        """Writes the state by path and role."""
        self.optimizer.save_own_variables(store)

    def load_own_variables(self, store: Any) -> None:
        """Reads the state back by path and role."""
        self.optimizer.load_own_variables(store)

    def get_config(self) -> Config:
        """Returns the name and the optimizer as plain values."""
        return {"name": self.name, "optimizer": serialize(self.optimizer)}

    @classmethod
    def from_config(cls, config: Config, custom_objects: Any = None) -> Any:
        """Returns the optimizer that a config describes, without its state."""
        return cls(deserialize(config["optimizer"]), config["name"])
