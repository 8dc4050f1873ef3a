"""Evaluation and saving in `fit` with the center's weights."""

from typing import Any

import keras

from tf_graft.core import checks


class CenterWeights(keras.callbacks.Callback):
    """Makes validation in `fit`, and optionally saving after an epoch, use the center of an `AGN`.

    Args:
        swap_on_epoch: whether the model also holds the center from the end of an epoch to the
            beginning of the next, so that a `ModelCheckpoint` after this callback in the list saves
            the center. Default False.

    Example:
        `model.fit(x, y, validation_data=test, callbacks=[CenterWeights()])`
    """

    def __init__(self, swap_on_epoch: bool = False) -> None:
        super().__init__()
        self.swap_on_epoch = checks.boolean("CenterWeights", "swap_on_epoch", swap_on_epoch)

    def on_test_begin(self, logs: Any = None) -> None:
        """Puts the center into the model."""
        self.model.optimizer.show_center(True)

    def on_test_end(self, logs: Any = None) -> None:
        """Puts the local copy back."""
        self.model.optimizer.show_center(False)

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Puts the local copy back."""
        self.model.optimizer.show_center(False)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Puts the center into the model if `swap_on_epoch` is True."""
        if self.swap_on_epoch:
            self.model.optimizer.show_center(True)
