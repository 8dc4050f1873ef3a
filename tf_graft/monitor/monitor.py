"""A callback that measures weights, gradients and steps of any optimizer during training."""

import contextlib
import math
import os
import warnings
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf

from tf_graft.core import checks, tensorboard
from tf_graft.core.nesting import nested
from tf_graft.core.optimizer import Optimizer
from tf_graft.core.tensors import numerics
from tf_graft.core.types import OptimizerLike
from tf_graft.core.variable_table import aligned
from tf_graft.monitor import gradient_norms
from tf_graft.monitor import norms_file as norms
from tf_graft.monitor.gradient_norms import ABSENT, GradientNorms

MISSED = (
    "Monitor: an update was not measured, because its step was compiled before the monitor was "
    "there. Enter monitor.step() before the first call of the tf.function, or make a new function."
)


class Norms(NamedTuple):
    """The measurements of one variable at one update.

    Attributes:
        learning_rate: the learning rate of the update, multipliers included.
        weight_norm: the L2 norm of the weights after the update.
        gradient_norm: the L2 norm of the gradient, before it is clipped. NaN if the update had no
            gradient for the variable.
        step_norm: the L2 norm of the change of the weights.
    """

    learning_rate: float
    weight_norm: float
    gradient_norm: float
    step_norm: float

    @property
    def ratio(self) -> float:
        """The norm of the step divided by that of the weights; NaN for weights of 0."""
        return self.step_norm / self.weight_norm if self.weight_norm else math.nan


class Record(NamedTuple):
    """The measurements of one update.

    Attributes:
        step: the number of updates so far, this one included.
        variables: the norms of each variable by path.
        gradient_norm: the L2 norm of all gradients together, before they are clipped.
        clipped: whether `clipnorm` or `global_clipnorm` made a gradient shorter.
        skipped_steps: the number of updates so far that the optimizer skipped: see `nonfinite` in
            `tf_graft.algorithm.Common`. Keras' `LossScaleOptimizer` skips updates on its own, which
            do not count.
        skipped: whether this update was skipped. `step` is then that of the update before.
    """

    step: int
    variables: Mapping[str, Norms]
    gradient_norm: float
    clipped: bool
    skipped_steps: int
    skipped: bool = False

    @property
    def largest_ratio(self) -> float:
        """The largest ratio of a variable; NaN if none has one."""
        ratios = [norms.ratio for norms in self.variables.values()]
        return max((ratio for ratio in ratios if not math.isnan(ratio)), default=math.nan)


class Monitor(keras.callbacks.Callback):
    """Measures the weights, gradients and steps of an optimizer at regular intervals.

    For each variable it records the learning rate and the norms of the weights, of the gradient and
    of the step, which is the actual change of the weights. The ratio of step to weights shows
    whether a learning rate is too large or too small for a layer; values near 1e-3 are common.

    Use it as a callback of `fit`. In a training loop of your own, run each training step within
    `with monitor.step():`. Between two measurements a step costs nothing more; a measurement copies
    the weights and reads them twice.

    It adds four values to each epoch's logs: `gradient_norm` and `step_ratio` (the largest ratio of
    a variable), both as means over the epoch's records; `clipped`, the share of records with
    clipping; and `skipped_steps`. Records of skipped updates do not count; in an epoch without
    other records, all but `skipped_steps` are NaN. Put callbacks that read these values, such as
    `CSVLogger`, after this one in the list.

    With gradient accumulation, a record is made when the update is complete; if `fit` ends before,
    the measurement that was begun is lost. With `steps_per_execution` above 1, a record contains
    the change of weights over one execution, and the gradient of its first step. With `AGN` on
    replicas, a record describes the first replica.

    Args:
        every: the number of batches from one record to the next (of executions with
            `steps_per_execution`). Default: 100.
        optimizer: an optimizer of this package, or one that contains it, such as Keras'
            `LossScaleOptimizer`. None: the model's, in `fit`.
        path: a CSV file to write all records to, with a line for each variable. Records of skipped
            updates are left out. If training goes back to an earlier step, lines of later steps are
            dropped. Default: None.
        writer: a `tf.summary` writer, for TensorBoard. Default: None.

    Attributes:
        records: all records so far, as a list of `Record`.
        batches: the number of batches so far. Set it when training resumes in another process, so
            that the same batches are recorded as without the interruption.

    Raises:
        TypeError: an argument is not of its type; there is no optimizer of this package.
        ValueError: `every` is below 1; the optimizer is on parameter servers.
        ReportError: the file at `path` is not a file of a `Monitor`, or cannot be written.

    Example:
        >>> import tf_graft as tg
        >>> w = tf.Variable([3.0, 4.0], name="w")
        >>> optimizer = tg.SGD(0.1, clipnorm=1.0)
        >>> optimizer.build([w])
        >>> monitor = tg.Monitor(every=1, optimizer=optimizer)
        >>> with monitor.step():
        ...     optimizer.apply([tf.constant([0.0, 2.0])], [w])
        >>> print(monitor.table())
        variable  learning rate  weights  gradient  step  step / weights
        w         0.1            4.92     2         0.1   0.0203
        >>> monitor.records[-1].clipped
        True
    """

    def __init__(
        self,
        every: int = 100,
        optimizer: OptimizerLike | None = None,
        path: str | Path | None = None,
        writer: tf.summary.SummaryWriter | None = None,
    ) -> None:
        super().__init__()
        self.every = checks.integer("Monitor", "every", every, 1)
        if path is not None:
            path = Path(checks.instance("Monitor", "path", path, str, os.PathLike))
        if writer is not None:
            checks.instance("Monitor", "writer", writer, tf.summary.SummaryWriter)
        self.path, self.records = path, list[Record]()
        self._writer, self._given = writer, optimizer
        self._optimizer = None if optimizer is None else _measurable(optimizer)
        self._gradients: GradientNorms | None = None
        self._measuring: _Measurement | None = None
        self.batches = self._epoch = 0

    def on_train_begin(self, logs: Mapping[str, Any] | None = None) -> None:
        """Prepares the model's optimizer."""
        if self._given is None:
            self._optimizer = _measurable(self.model.optimizer)
        assert self._optimizer is not None
        if not self._optimizer.built:
            with self.model.distribute_strategy.scope():
                self._optimizer.build(self.model.trainable_variables)
        self._measuring = None  # one that an earlier fit began and did not end
        self.write()  # a file that cannot be is refused before the first epoch
        if self._prepare():
            self.model.make_train_function(force=True)  # the present one may be traced

    def on_epoch_begin(self, epoch: int, logs: Mapping[str, Any] | None = None) -> None:
        """Notes which records belong to the epoch."""
        self._epoch = len(self.records)

    def on_train_batch_begin(self, batch: int, logs: Mapping[str, Any] | None = None) -> None:
        """Begins a measurement if it is due."""
        self._begin()

    def on_train_batch_end(self, batch: int, logs: Mapping[str, Any] | None = None) -> None:
        """Ends a measurement."""
        self._end()

    def on_epoch_end(self, epoch: int, logs: MutableMapping[str, Any] | None = None) -> None:
        """Adds the means of the epoch's records to the logs, and writes the file."""
        records = [record for record in self.records[self._epoch :] if not record.skipped]
        if logs is not None:
            assert self._optimizer is not None
            logs["gradient_norm"] = _mean([record.gradient_norm for record in records])
            logs["step_ratio"] = _mean([record.largest_ratio for record in records])
            logs["clipped"] = _mean([record.clipped for record in records])
            logs["skipped_steps"] = int(self._optimizer.skipped_steps.numpy())
        self.write()

    @contextlib.contextmanager
    def step(self) -> Iterator[None]:
        """A context for one training step in a loop of your own; one step in `every` is measured.

        Enter it outside of a `tf.function`, before the first step is traced.
        """
        if self._optimizer is None:
            raise ValueError("Monitor.step: it has no optimizer; give it one: Monitor(optimizer=).")
        if not self._optimizer.built:
            raise ValueError("Monitor.step: the optimizer has no variables; call its build first.")
        self._prepare()
        self._begin()
        try:
            yield
        except BaseException:
            self._measuring = None  # another step may follow
            raise
        self._end()

    def table(self) -> str:
        """Returns the last record as text, with a line for each variable."""
        header = ("variable", "learning rate", "weights", "gradient", "step", "step / weights")
        lines: list[tuple[str, ...]] = [header]
        for path, each in self.records[-1].variables.items() if self.records else ():
            lines.append((path, *(f"{value:.3g}" for value in (*each, each.ratio))))
        return aligned(lines)

    def write(self) -> None:
        """Writes all records to the file, if there is a path; `fit` does so after each epoch."""
        if self.path is None:
            return
        records, first = _without_former_ones(self.records)
        norms.write(self.path, [(each.step, each.variables) for each in records], first)

    def _prepare(self) -> bool:
        """Makes the optimizer measure its gradients; returns False if it already did."""
        assert self._optimizer is not None
        self._gradients, new = gradient_norms.of(self._optimizer)
        return new

    def _begin(self) -> None:
        self.batches += 1
        if self._measuring is None and self.batches % self.every == 0:
            if self._prepare() and self.model is not None:  # a layer is trained since then
                self.model.make_train_function(force=True)
            assert self._optimizer is not None
            assert self._gradients is not None
            self._measuring = _Measurement(self._optimizer, self._gradients)

    def _end(self) -> None:
        if self._measuring is None:
            return
        record = self._measuring.ended()
        if record is None:
            if self._measuring.missed:
                warnings.warn(MISSED, stacklevel=4)
                self._measuring = None
            return
        self._measuring = None
        self.records.append(record)
        if self._writer is not None:
            tensorboard.write(self._writer, record.step, _tagged(record))


class _Measurement:
    """Begins a measurement of the next update.

    Args:
        optimizer: a built optimizer.
        gradients: measures its gradients.
    """

    def __init__(self, optimizer: Optimizer, gradients: GradientNorms):
        self._optimizer, self._gradients = optimizer, gradients
        gradients.request()
        rates = optimizer.rule.rates()
        self._parameters = list(optimizer.state.parameters)  # the step may add others
        self._rates = {
            p.path: float(optimizer.rule.rate_of(p.path, rates)) for p in self._parameters
        }
        self._updates = self._updates_so_far()
        self._before = [tf.identity(weights) for weights in self._weights()]

    def ended(self) -> Record | None:
        """Returns the measurements; None if there are none, as in an accumulating step."""
        gradients = self._gradients.found()
        if gradients is None:
            return None
        after = _lengths(self._weights(), self._before).numpy().astype(float)
        rows = zip(self._rates.items(), after, gradients, strict=True)
        given = np.array([norm for norm in gradients if norm != ABSENT])
        updates = self._updates_so_far()
        return Record(
            updates,
            {
                path: Norms(rate, weights, math.nan if gradient == ABSENT else gradient, step)
                for (path, rate), (weights, step), gradient in rows
            },
            float(np.linalg.norm(given)),
            _clipped(self._optimizer, given),
            int(self._optimizer.skipped_steps.numpy()),
            skipped=updates == self._updates,
        )

    @property
    def missed(self) -> bool:
        """Whether an update was made that measured nothing."""
        return self._updates_so_far() > self._updates

    def _updates_so_far(self) -> int:
        return int(self._optimizer.iterations.numpy())

    def _weights(self) -> list[tf.Tensor]:
        return [tf.convert_to_tensor(p.variable) for p in self._parameters]


def _clipped(optimizer: Optimizer, norms: np.ndarray) -> bool:
    _, clipnorm, global_clipnorm = optimizer.engine.present().clips
    each = clipnorm is not None and bool((norms > clipnorm).any())
    return each or (global_clipnorm is not None and bool(np.linalg.norm(norms) > global_clipnorm))


@tf.function(reduce_retracing=True)
def _lengths(after: list[tf.Tensor], before: list[tf.Tensor]) -> tf.Tensor:
    """Returns the norms of the weights and of their changes, of shape [variables, 2]."""
    each = []
    for new, old in zip(after, before, strict=True):
        new, old = (tf.cast(w, numerics.compute_dtype(w.dtype)) for w in (new, old))
        each += [numerics.length(new), numerics.length(new - old)]
    return tf.reshape(tf.stack([tf.cast(x, tf.float32) for x in each]), [-1, 2])


def _tagged(record: Record) -> dict[str, float]:
    """Returns a record's summaries for TensorBoard by tag."""
    tagged = {"gradient_norm": record.gradient_norm, "skipped_steps": record.skipped_steps}
    for path, each in record.variables.items():
        values = {**each._asdict(), "step_ratio": each.ratio}
        tagged |= {f"{name}/{path}": value for name, value in values.items()}
    return tagged


def _measurable(optimizer: OptimizerLike) -> Optimizer:
    """Returns the outermost optimizer of this package.

    Raises:
        TypeError: there is none.
        ValueError: its variables are on parameter servers.
    """
    ours = [each for each in nested(optimizer) if isinstance(each, Optimizer)]
    if not ours:
        raise TypeError(
            f"Monitor: {type(optimizer).__name__} is no optimizer of tf_graft; use one, such as "
            "tf_graft.wrap of a Keras optimizer."
        )
    if isinstance(ours[0].state.strategy, tf.distribute.ParameterServerStrategy):
        raise ValueError("Monitor: it does not measure steps of workers on parameter servers.")
    return ours[0]


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else math.nan


def _without_former_ones(records: Sequence[Record]) -> tuple[list[Record], float]:
    """Returns the records to write, and the first step whose lines of an earlier process go.

    Training may have gone back to an earlier step: what was recorded after that step before is
    dropped, as are skipped updates, which have no lines.
    """
    kept, first = list[Record](), math.inf
    for record in reversed(records):
        if not record.skipped and record.step < first:
            kept.append(record)
        first = min(first, record.step + record.skipped)
    return kept[::-1], first
