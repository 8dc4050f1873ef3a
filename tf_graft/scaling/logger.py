"""The loss scale and the skipped steps in the logs of `fit`."""

import keras

from tf_graft.core import keras_contract
from tf_graft.core.types import Logs


class LossScaleLogger(keras.callbacks.Callback):
    """Adds `loss_scale` and `skipped_steps` to each epoch's logs, for the other callbacks to read.

    Raises:
        TypeError: at the start of `fit`, if the optimizer is neither a `MixedPrecision` nor an
            `AGN` of one.

    Example:
        >>> model.fit(x, y, callbacks=[LossScaleLogger()]).history["loss_scale"]  # doctest: +SKIP
        [16384.0, 8192.0]
    """

    def on_train_begin(self, logs: Logs = None) -> None:
        """Refuses an optimizer without a loss scale."""
        if not isinstance(self.model.optimizer, keras_contract.ScalesLoss):
            raise TypeError(
                f"LossScaleLogger: {type(self.model.optimizer).__name__} has no loss scale; "
                "compile the model with a MixedPrecision optimizer."
            )

    def on_epoch_end(self, epoch: int, logs: dict[str, float] | None = None) -> None:
        """Adds both values as of the end of the epoch."""
        if logs is not None:
            optimizer = self.model.optimizer
            logs["loss_scale"] = float(optimizer.loss_scale())
            logs["skipped_steps"] = int(optimizer.skipped_steps.numpy())
