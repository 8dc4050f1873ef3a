"""An optimizer's learning rate: a number that can be set, or a schedule."""

from typing import Any

import keras
import tensorflow as tf

from tf_graft.core import arguments, keras_contract
from tf_graft.core.identity import Named


class Rates(keras_contract.KerasOptimizer):
    """What `Optimizer` knows of learning rates."""

    def rates(self) -> dict[str, Any]:
        """The present learning rates by role."""
        return {"learning_rate": self.learning_rate}

    def rate_variables(self) -> Named:
        """The variables that hold learning rates, by role."""
        own = self._rate_variable()
        return {} if own is None else {own.name: own}

    @property
    def learning_rate(self) -> Any:
        """The present learning rate: settable with a number, unless it is a schedule."""
        return super().learning_rate

    @learning_rate.setter
    def learning_rate(self, value: Any) -> None:
        if not isinstance(value, tf.Tensor | tf.Variable | keras.Variable):
            value = arguments.rate(type(self).__name__, value)
        keras_contract.KerasOptimizer.learning_rate.fset(self, value)
