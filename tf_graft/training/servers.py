"""Training on parameter servers: the chief assigns batches, workers take steps.

The chief reads the data, so each batch is used once, by any worker. Steps are not synchronized: a
worker may compute gradients of weights that another worker has changed since. If a worker is lost,
another one repeats its step.
"""

import contextlib
import math
import threading
from collections.abc import Iterator
from typing import TypeAlias

import keras
import numpy as np
import tensorflow as tf

from tf_graft.agn import AGN
from tf_graft.core import building, keras_contract
from tf_graft.core.nesting import nested
from tf_graft.core.places import replicas
from tf_graft.core.state.parameters import paths
from tf_graft.core.two_weights import TwoWeights
from tf_graft.training import configured_optimizer as optimizer
from tf_graft.training import data as data_sets
from tf_graft.training import models
from tf_graft.training.folder import RunFolder
from tf_graft.training.log import Log
from tf_graft.training.loop import STEP_COLUMNS, metric_columns, warn_of_skips
from tf_graft.training.place import Place
from tf_graft.training.run_checkpoints import Checkpoints
from tf_graft.training.saved_state import METRICS, Groups
from tf_graft.training.schema import RunConfig
from tf_graft.training.stop import Stopped, StopRequest

Batch: TypeAlias = tuple[tf.Tensor, tf.Tensor]  # of examples and classes
TOLD = ("loss", "accuracy", "bits_per_character")  # metrics that follow from what a step returns
PATIENCE = 5.0  # seconds for the coordinator to stop; it waits for a worker that is lost


class Coordinator(tf.distribute.coordinator.ClusterCoordinator):
    """A coordinator that `stop` stops, before the interpreter ends.

    TensorFlow's `__del__` stops it when the interpreter ends. If a worker is lost, it then waits
    forever for a lock of a thread that no longer runs.
    """

    def stop(self) -> None:
        """Stops the threads; gives up on one that still waits for a lost worker."""
        stopping = threading.Thread(target=super().__del__, daemon=True)
        stopping.start()
        stopping.join(PATIENCE)

    def __del__(self) -> None:
        pass  # `stop` has done it


class Remote:
    """A copy of the local model on the servers, with its optimizer.

    Args:
        here: the local model, compiled; it provides the initial weights.
    """

    def __init__(
        self,
        config: RunConfig,
        data: data_sets.Batches,
        here: keras.Model,
        place: Place,
    ) -> None:
        assert place.strategy is not None
        self.here, self._strategy = here, place.strategy
        # A strategy has one coordinator; with its first variable it would make TensorFlow's own.
        self._coordinator = Coordinator(self._strategy)
        with self._strategy.scope():
            self.model = models.build(config.model, data)
            self.optimizer = optimizer.build(config, data.steps_per_epoch, lambda: self.model)
            self._parts = replicas.shards(self.model.trainable_variables)
            building.build(self.optimizer, self._parts, [self.model])
        self._means = [keras.metrics.Mean(name, dtype="float64") for name in TOLD[:2]]
        self.model.set_weights(here.get_weights())
        rounds = isinstance(self.optimizer, AGN)
        self._step = tf.function(self._round if rounds else self._on_worker)
        self.period = self.optimizer.round_length if rounds else 1

    def saved(self) -> Groups:
        """Returns the variables to save."""
        return {
            "model": self.model.variables,
            "optimizer": self.optimizer.variables,
            METRICS: [variable for mean in self._means for variable in mean.variables],
        }

    def schedule(self, batches: list[Batch]) -> tf.distribute.experimental.coordinator.RemoteValue:
        """Assigns a step to a worker, or a round of `AGN` with one step per batch.

        Returns:
            The future mean loss, accuracy and learning rate.
        """
        if isinstance(self.optimizer, AGN):
            x, y = (tf.stack(column) for column in zip(*batches, strict=True))
            return self._coordinator.schedule(self._step, args=(x, y))
        return self._coordinator.schedule(self._step, args=batches[0])

    def join(self) -> None:
        """Waits until all assigned steps are taken."""
        self._coordinator.join()

    def record(self, taken: list[np.ndarray]) -> None:
        """Adds steps, each with what `schedule` has returned for it, to the means of the epoch."""
        for mean, values in zip(self._means, np.transpose(taken), strict=False):  # none of the rate
            mean.update_state(values)

    def means(self) -> list[float]:
        """Returns the epoch's mean loss and accuracy; the next step begins an epoch."""
        results = [float(mean.result()) for mean in self._means]
        for mean in self._means:
            mean.reset_state()
        return results

    def close(self) -> None:
        """Ends the assignment of steps; call it before this process ends."""
        self._coordinator.stop()

    def to_evaluate(self) -> keras.Model:
        """Copies the weights to evaluate to the local model, and returns it."""
        with contextlib.ExitStack() as opened:
            for each in nested(self.optimizer):
                if isinstance(each, TwoWeights):
                    opened.enter_context(each.evaluation_weights())
            self._bring_home()
        return self.here

    def finish(self) -> None:
        """Copies the final weights, averaged if the optimizer averages them, to the local model.

        The state of the optimizer is copied, too, unless it is of another form on the servers: that
        of AGN, or of variables that are divided into shards.
        """
        with self._strategy.scope():
            self.optimizer.finalize_variable_values(self._parts)
        self._bring_home()
        state, local = self.optimizer.variables, self.here.optimizer
        if paths(state) == paths(local.variables):
            local.set_weights([np.asarray(v.numpy()) for v in state])

    def _bring_home(self) -> None:
        self.here.set_weights([np.asarray(v.numpy()) for v in self.model.weights])

    def _on_worker(self, x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        return self._strategy.run(self._train, args=(x, y))

    def _round(self, x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        def loss(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
            logits = self.model(x, training=True)
            return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(y, logits))

        mean = self.optimizer.round(loss, (x, y), self.model.non_trainable_variables)
        # the accuracy of the center on the last batch
        right = tf.cast(tf.argmax(self.model(x[-1]), axis=-1), y.dtype) == y[-1]
        rate = tf.cast(self.optimizer.learning_rate, tf.float32)
        return tf.stack([mean, tf.reduce_mean(tf.cast(right, tf.float32)), rate])

    def _train(self, x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            logits = self.model(x, training=True)
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(y, logits)
            loss = tf.reduce_mean(losses)
            scaled = self.optimizer.scale_loss(loss)
        self.optimizer.apply(tape.gradient(scaled, self._parts), self._parts)
        right = tf.cast(tf.argmax(logits, axis=-1), y.dtype) == y
        rate = tf.cast(self.optimizer.learning_rate, tf.float32)
        return tf.stack([loss, tf.reduce_mean(tf.cast(right, tf.float32)), rate])


def fit(
    config: RunConfig,
    data: data_sets.Batches,
    remote: Remote,
    folder: RunFolder,
    checkpoints: Checkpoints,
    start: int,
    stop: StopRequest,
) -> None:
    """Trains from step `start` on, saves states, and copies the final weights here.

    Each state is saved when all assigned steps are taken; no state divides a round of `AGN`.

    Raises:
        Stopped: a signal ended the run; the assigned steps have been taken and saved.
    """
    batches = iter(data.stream(config.run.seed, start))
    every = math.ceil(config.run.checkpoint_every / remote.period) * remote.period
    with (
        contextlib.closing(Log(folder.steps, STEP_COLUMNS, start)) as steps,
        contextlib.closing(
            Log(folder.metrics, metric_columns(remote.here, TOLD), start)
        ) as metrics,
    ):
        while start < config.run.epochs * data.steps_per_epoch:
            epoch, used = divmod(start, data.steps_per_epoch)
            taken = _taken(remote, batches, min(data.steps_per_epoch - used, every), stop)
            for number, (loss, _, rate) in enumerate(taken, start + 1):
                row = (number, epoch + 1, float(loss), float(rate))
                steps.add(dict(zip(STEP_COLUMNS, row, strict=True)))
            start += len(taken)
            remote.record(taken)
            if taken and start % data.steps_per_epoch == 0:
                warn_of_skips(remote.optimizer)
                line = _evaluated(remote, data, rate=taken[-1][2])
                metrics.add({"epoch": epoch + 1, "step": start, **line})
                _show(config, epoch, line)
            checkpoints.save(start, {log.path.name: log.sync() for log in (steps, metrics)})
            if stop.signum is not None:
                raise Stopped(stop.signum, start, stop.command)
    remote.finish()


def _show(config: RunConfig, epoch: int, line: dict[str, float]) -> None:
    if config.run.progress != "none":
        text = " - ".join(f"{name}: {value:.4g}" for name, value in line.items())
        print(f"Epoch {epoch + 1}/{config.run.epochs} - {text}", flush=True)


def _taken(
    remote: Remote, batches: Iterator[Batch], count: int, stop: StopRequest
) -> list[np.ndarray]:
    """Takes up to `count` steps, or fewer on a signal; returns loss, accuracy and rate of each.

    All steps of a round have the values of the round.
    """
    results = []
    while count and stop.signum is None:
        steps = min(count, remote.period)
        results.append((steps, remote.schedule([next(batches) for _ in range(steps)])))
        count -= steps
    remote.join()
    return [np.asarray(result.fetch()) for steps, result in results for _ in range(steps)]


def _evaluated(remote: Remote, data: data_sets.Batches, rate: float) -> dict[str, float]:
    """Computes a row of the metrics log: the epoch's means, and the metrics of the test data."""
    tests = remote.to_evaluate().evaluate(data.test, verbose=0, return_dict=True)
    loss, accuracy = remote.means()
    means = zip(TOLD, (loss, accuracy, loss / math.log(2)), strict=True)
    rows = {f"train_{name}": mean for name, mean in means if name in tests}
    if isinstance(remote.optimizer, keras_contract.ScalesLoss):
        rows["train_loss_scale"] = float(remote.optimizer.loss_scale())
        rows["train_skipped_steps"] = int(remote.optimizer.skipped_steps.numpy())
    rows |= {f"test_{name}": float(value) for name, value in tests.items()}
    return rows | {"learning_rate": float(rate)}
