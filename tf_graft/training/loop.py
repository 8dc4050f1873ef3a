"""Callbacks of Keras' `fit`: logs, checkpoints, and a clean stop."""

from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import keras
import numpy as np
import tensorflow as tf

from tf_graft import dtensor
from tf_graft.core import keras_contract
from tf_graft.core.nesting import nested
from tf_graft.core.optimizer import Optimizer
from tf_graft.core.types import Logs, Structure
from tf_graft.monitor.monitor import Monitor
from tf_graft.report import GraftRecorder
from tf_graft.training import replica_values
from tf_graft.training.log import Log
from tf_graft.training.run_checkpoints import Checkpoints
from tf_graft.training.stop import Stopped, StopRequest

Writers: TypeAlias = dict[str, tf.summary.SummaryWriter]  # by split: train and test

STEP_COLUMNS = ("step", "epoch", "loss", "learning_rate")


@keras.saving.register_keras_serializable(package="tf_graft")
class RecordedModel(keras.Model):
    """A functional model that records the loss and learning rate of each training step.

    Keras' own logs hold the mean since the start of the epoch, and, with `steps_per_execution`,
    that of the last step of an execution only.
    """

    def build_optimizer(self) -> None:
        """Creates the optimizer's state, as `fit` does before the first step."""
        self.optimizer.build(self.trainable_variables)

    def record(self, steps: int) -> None:
        """Creates storage for the `steps` of one execution, next to the model's variables.

        Call it before `fit`.
        """
        layout_map = dtensor.layout_map_of(self)
        if layout_map is not None:
            self._notes, self._noted = (
                tf.experimental.dtensor.DVariable(dtensor.pack_batch(value, layout_map.mesh, None))
                for value in (tf.zeros((steps, 2)), tf.zeros((), tf.int32))
            )
            return
        on_read, how = tf.VariableSynchronization.ON_READ, tf.VariableAggregation
        self._notes = tf.Variable(
            tf.zeros((steps, 2)), trainable=False, synchronization=on_read, aggregation=how.MEAN
        )
        self._noted = tf.Variable(
            0, trainable=False, synchronization=on_read, aggregation=how.ONLY_FIRST_REPLICA
        )

    def notes(self) -> np.ndarray:
        """Returns loss and learning rate of the steps of the last execution, in two columns."""
        return dtensor.from_mesh(self._notes).numpy()

    def compute_loss(
        self, *args: Structure, training: bool = True, **kwargs: Structure
    ) -> tf.Tensor:
        """Computes the loss, and records it in a training step."""
        loss = super().compute_loss(*args, training=training, **kwargs)
        if training:
            # Keras returns each replica's part of the mean.
            whole = loss * tf.distribute.get_strategy().num_replicas_in_sync
            rate = tf.cast(self.optimizer.learning_rate, tf.float32)
            note = tf.stack([tf.cast(whole, tf.float32), rate])
            here = tf.range(self._notes.shape[0]) == self._noted % self._notes.shape[0]
            self._notes.assign(tf.where(here[:, tf.newaxis], note, self._notes))
            self._noted.assign_add(1)
        return loss


class EpochBar(keras.callbacks.ProgbarLogger):
    """Keras' progress bar, which begins a resumed epoch where it stopped."""

    def __init__(self, first_epoch: int, used: int) -> None:
        super().__init__()
        self._first_epoch, self._used, self._skipped = first_epoch, used, 0

    def on_epoch_begin(self, epoch: int, logs: Logs = None) -> None:
        """Starts a bar."""
        super().on_epoch_begin(epoch, logs)
        self._skipped = self._used if epoch == self._first_epoch else 0

    def on_train_batch_end(self, batch: int, logs: Logs = None) -> None:
        """Moves the bar."""
        super().on_train_batch_end(batch + self._skipped, logs)


@dataclass(eq=False)
class Bookkeeping(keras.callbacks.Callback):
    """Logs every step, saves when a state is due, and stops on a signal.

    `step` counts the steps of the whole run. Between two epochs, a state is saved only after the
    first is evaluated and logged, so a step number alone says where a run continues. `logs` are
    the logs of steps and of epochs; `recorders` write their files before a state is saved. `agreed`
    combines the signals of several processes, so that all stop after the same step.
    """

    checkpoints: Checkpoints
    logs: tuple[Log, Log]
    recorders: Sequence[keras.callbacks.Callback]
    stop: StopRequest
    steps_per_epoch: int
    every: int
    step: int
    writers: Writers
    agreed: Callable[[int | None], int | None] = lambda signum: signum
    _running: list[tuple[tf.Variable, tf.Tensor]] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()
        self._steps, self._metrics = self.logs
        self._saved = self.step

    def on_train_begin(self, logs: Logs = None) -> None:
        """Keeps the restored metrics, which `fit` is about to reset."""
        self._running = [
            (copy, copy.read_value())
            for variable in self.model.metrics_variables
            for copy in replica_values.copies(variable)
        ]

    def on_epoch_begin(self, epoch: int, logs: Logs = None) -> None:
        """Restores the metrics of an interrupted epoch."""
        if self.step % self.steps_per_epoch:
            for copy, value in self._running:
                copy.assign(value)

    def on_train_batch_end(self, batch: int, logs: Logs = None) -> None:
        """Logs the steps of an execution; saves and stops if necessary."""
        for loss, rate in self.model.notes():
            self.step += 1
            epoch = (self.step - 1) // self.steps_per_epoch + 1
            row = (self.step, epoch, loss, rate)
            self._steps.add(dict(zip(STEP_COLUMNS, row, strict=True)))
        if self.step % self.steps_per_epoch == 0:
            self.model.stop_training = True  # ends the epoch; a resumed one is shorter
            return
        signum = self.agreed(self.stop.signum)
        if signum is not None or self.step - self._saved >= self.every:
            self._save()
        self._stop_if_asked(signum)

    def on_epoch_end(self, epoch: int, logs: dict[str, float] | None = None) -> None:
        """Logs the epoch, and saves; warns if updates are skipped."""
        self.model.stop_training = False
        warn_of_skips(self.model.optimizer)
        rate = float(keras.ops.convert_to_numpy(self.model.optimizer.learning_rate))
        named = {_column(name): value for name, value in (logs or {}).items()}
        self._metrics.add({"epoch": epoch + 1, "step": self.step, **named, "learning_rate": rate})
        self._write_summaries({**named, "train_learning_rate": rate})
        self._save()
        self._stop_if_asked(self.agreed(self.stop.signum))

    def _save(self) -> None:
        kept = [each for each in self.recorders if isinstance(each, GraftRecorder)]
        for each in self.recorders:
            if isinstance(each, Monitor):
                each.write()
        logs: list[Log | GraftRecorder] = [*self.logs, *kept]
        self.checkpoints.save(self.step, {log.path.name: log.sync() for log in logs})
        self._saved = self.step

    def _stop_if_asked(self, signum: int | None) -> None:
        if signum is not None:
            raise Stopped(signum, self.step, self.stop.command)

    def _write_summaries(self, values: dict[str, float]) -> None:
        for name, value in values.items():
            split, _, metric = name.partition("_")
            if split in self.writers:
                with self.writers[split].as_default():
                    tf.summary.scalar(metric, value, step=self.step)
        for writer in self.writers.values():
            writer.flush()


def warn_of_skips(optimizer: keras.optimizers.Optimizer) -> None:
    """Warns if an optimizer, or one inside it, skipped many updates in a row."""
    for each in nested(optimizer):
        if isinstance(each, Optimizer):
            each.warn_of_skips()


def metric_columns(model: keras.Model, trained: Container[str] | None = None) -> list[str]:
    """Lists the columns of the metrics log.

    Args:
        model: the model, compiled.
        trained: the metrics that the training data may have; None for all.
    """
    metrics = list(model.get_metrics_result())
    tests = [f"test_{name}" for name in metrics]
    names = [name for name in metrics if trained is None or name in trained]
    if isinstance(model.optimizer, keras_contract.ScalesLoss):
        names += ["loss_scale", "skipped_steps"]
    return ["epoch", "step", *(f"train_{name}" for name in names), *tests, "learning_rate"]


def _column(name: str) -> str:
    return f"test_{name[4:]}" if name.startswith("val_") else f"train_{name}"
