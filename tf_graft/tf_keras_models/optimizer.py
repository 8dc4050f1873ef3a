"""The class behind `tf_graft.legacy`, in a module of its own because it needs `tf_keras`.

`tf_keras` imports this module when it loads a `.keras` file. Import it yourself before you load an
`.h5` file or a SavedModel in a new process: Keras only finds classes there that are registered.
"""

from collections.abc import Iterable
from typing import Any

import tensorflow as tf
import tf_keras

from tf_graft.core import keras_contract
from tf_graft.core.arguments.registry import deserialize, serialize
from tf_graft.core.optimizer import apply
from tf_graft.core.pipeline import matching
from tf_graft.core.types import Config, Gradient, TensorLike, VariableLike

# The arguments that optimizers of tf_keras and of Keras 3 have as attributes.
SHARED = (
    *("weight_decay", "clipnorm", "clipvalue", "global_clipnorm"),
    *("use_ema", "ema_momentum", "ema_overwrite_frequency"),
)


@tf_keras.utils.register_keras_serializable("tf_graft")
class Legacy(tf_keras.optimizers.Optimizer):
    """An optimizer of `tf_keras` that hands everything on to one of this package.

    Args:
        optimizer: the optimizer that makes the steps, not built.
        name: its name; None for that of `optimizer`.
    """

    def __init__(self, optimizer: Any, name: str | None = None):
        self.optimizer = optimizer
        shared = {argument: getattr(optimizer, argument) for argument in SHARED}
        super().__init__(name or optimizer.name, jit_compile=False, **shared)

    def __setattr__(self, name: str, value: Any) -> None:
        """Sets an attribute, and the argument of that name that the optimizer shares."""
        if name in SHARED and value != getattr(self.optimizer, name):
            setattr(self.optimizer, name, value)
        super().__setattr__(name, value)

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
        """The optimizer's variables; as in `tf_keras`, the list can also be called."""
        callable_list = type(super().variables)
        return callable_list(keras_contract.storage(v) for v in self.optimizer.variables)

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
        summed = skip_gradients_aggregation or not experimental_aggregate_gradients
        both = matching.gradients_and_variables("Legacy.apply_gradients", grads_and_vars)
        apply(self.optimizer, *both, summed=summed)
        return self.iterations

    def update_step(self, gradient: Gradient, variable: VariableLike) -> None:
        """Updates one variable without aggregation, checks, clipping, averaging and counting."""
        self.optimizer.update_step(gradient, variable, self.learning_rate)

    def exclude_from_weight_decay(
        self,
        var_list: Iterable[VariableLike] | None = None,
        var_names: Iterable[str] | None = None,
    ) -> None:
        """Excludes variables, or patterns for their paths, from weight decay."""
        self.optimizer.exclude_from_weight_decay(var_list, var_names)

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
