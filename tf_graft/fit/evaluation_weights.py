"""The callback by which `fit`, `evaluate` and `predict` use the evaluation weights."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import keras

from tf_graft.averages import recompute_batch_normalization
from tf_graft.core import checks, keras_contract
from tf_graft.core.nesting import nested
from tf_graft.core.state import write
from tf_graft.core.state.optimizer_state import nothing
from tf_graft.core.two_weights import TwoWeights
from tf_graft.core.types import Logs


class EvaluationWeights(keras.callbacks.Callback):
    """Puts the evaluation weights of the optimizer into the model between epochs.

    Schedule-Free optimizers and `tf_graft.EMANesterov` have evaluation weights. In `fit` the model
    has the training weights during an epoch, and the evaluation weights from its last batch on: in
    validation, for the callbacks after this one in the list, such as a `ModelCheckpoint`, and after
    `fit`. `evaluate` and `predict` take the callback too, and leave the weights as they found them.

    Args:
        data: batches from which to compute the statistics of batch normalization for the evaluation
            weights, by `tf_graft.averages.recompute_batch_normalization`; they are read after each
            epoch. None leaves the statistics of the training weights.

    Raises:
        TypeError: the model's optimizer has no evaluation weights; `data` cannot be read twice.

    Example:
        `model.fit(x, y, validation_data=test, callbacks=[EvaluationWeights()])`
    """

    def __init__(self, data: Iterable[Any] | None = None) -> None:
        super().__init__()
        if isinstance(data, Iterator):
            raise TypeError(
                f"EvaluationWeights(data={checks.shown(data)}): after each epoch data are read "
                "anew, and an iterator can be read once; give a list or a tf.data.Dataset."
            )
        self.data = data
        self._exchanged: list[TwoWeights] = []
        self._put_back_statistics: Callable[[], None] = nothing  # those of the training weights
        self._in_epoch = False

    def set_model(self, model: keras.Model) -> None:
        """Begins anew: an epoch that raised an error did not end."""
        super().set_model(model)
        self._in_epoch = False

    def on_train_begin(self, logs: Logs = None) -> None:
        """Puts the training weights into the model."""
        self._train()

    def on_epoch_begin(self, epoch: int, logs: Logs = None) -> None:
        """Puts the training weights into the model."""
        self._train()
        self._in_epoch = True

    def on_epoch_end(self, epoch: int, logs: Logs = None) -> None:
        """Puts the evaluation weights into the model."""
        self._evaluate()
        self._in_epoch = False

    def on_test_begin(self, logs: Logs = None) -> None:
        """Puts the evaluation weights into the model."""
        self._evaluate()

    def on_test_end(self, logs: Logs = None) -> None:
        """Puts the training weights back, unless this is the validation of `fit`."""
        self._put_back()

    def on_predict_begin(self, logs: Logs = None) -> None:
        """Puts the evaluation weights into the model."""
        self._evaluate()

    def on_predict_end(self, logs: Logs = None) -> None:
        """Puts the training weights back."""
        self._put_back()

    def _train(self) -> None:
        for optimizer in self._optimizers():
            optimizer.use_training_weights()

    def _evaluate(self) -> None:
        self._exchanged = [each for each in self._optimizers() if not each.evaluating]
        self._put_back_statistics = nothing
        for optimizer in self._exchanged:
            optimizer.use_evaluation_weights()
        if self._exchanged and self.data is not None:
            statistics = keras_contract.moving_statistics(self.model)
            self._put_back_statistics = write.snapshot(statistics)
            recompute_batch_normalization(self.model, self.data)

    def _put_back(self) -> None:
        if not self._in_epoch:
            for optimizer in self._exchanged:
                optimizer.use_training_weights()
            self._put_back_statistics()
            self._put_back_statistics = nothing

    def _optimizers(self) -> list[TwoWeights]:
        given = self.model.optimizer
        found = [each for each in nested(given) if isinstance(each, TwoWeights)]
        if not found:
            raise TypeError(
                f"EvaluationWeights: the model's optimizer is {type(given).__name__}, which has no "
                "evaluation weights; Schedule-Free optimizers and EMANesterov have."
            )
        return found
