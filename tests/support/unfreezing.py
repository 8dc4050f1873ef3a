"""A callback that unfreezes a layer as a user's own may: the optimizer has no state for it yet."""

import keras


class Unfreezing(keras.callbacks.Callback):
    """Unfreezes a layer in the second epoch."""

    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def on_epoch_begin(self, epoch, logs=None):
        if epoch == 1:
            self.layer.trainable = True
            self.model.make_train_function(force=True)
