"""The loss scale and the skipped steps in the logs of `fit`."""

from typing import Any

import keras

from tf_graft.core import keras_contract


class LossScaleLogger(keras.callbacks.Callback):
    """Adds `loss_scale` and `skipped_steps` to the logs of each epoch, for all other callbacks.

    Raises:
        TypeError: when `fit` begins, with an optimizer that is not a `MixedPrecision`.

    Example:
        >>> model.fit(x, y, callbacks=[LossScaleLogger()]).history["loss_scale"]  # doctest: +SKIP
        [16384.0, 8192.0]
    """

    def on_train_begin(self, logs: Any = None) -> None:
        """Refuses other optimizers."""
        if not isinstance(self.model.optimizer, keras_contract.ScalesLoss):
            raise TypeError(
                f"LossScaleLogger: {type(self.model.optimizer).__name__} has no loss scale; "
                "compile the model with a MixedPrecision optimizer."
            )

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Adds the two, as they are after the epoch's last step."""
        if logs is not None:
            optimizer = self.model.optimizer
            logs["loss_scale"] = float(optimizer.loss_scale())
            logs["skipped_steps"] = int(optimizer.skipped_steps.numpy())
