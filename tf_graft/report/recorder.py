"""Records what a graft measures, while it trains."""

import math
import os
import re
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tf_graft.core import checks, keras_contract, numerics
from tf_graft.core.nesting import nested
from tf_graft.report.records import COLUMNS, Header, RecordFile

SUMMARIES_EVERY = 20


class GraftRecorder(keras.callbacks.Callback):
    """Writes the norms of an `AdaGraft` to a file, every so many steps.

    For each variable: the norms of the two steps, whose ratio is what the graft multiplied the
    direction's step by, and of the weights. A callback for `fit`; in a loop of one's own, `record`
    is called after each step. With `steps_per_execution` above 1 only the last step of each
    execution is seen. Training that goes on from a saved state continues the file: rows of later
    steps are dropped.

    Args:
        path: the file; see `tf_graft.report.records`.
        every: a record after each update whose number is a multiple of it. Default 1.
        optimizer: an `AdaGraft(diagnostic=True)`, or what it is in, however deep: `MixedPrecision`,
            `AGN`, `LARC`, Keras' `LossScaleOptimizer` ... Of several the outermost is recorded (in
            an `AGN`, that of the local steps); give another itself. None: the model's, in `fit`.
        writer: a `tf.summary` writer, for TensorBoard after every twentieth record. By variable:
            `optimizer/m_step_norm_<path>` and `optimizer/d_step_norm_<path>`, the norms of the two
            steps, and `graft_ratio/<path>`, their ratio. `adagraft_lr`: the graft's own rate.
            `optimizer/m_step_norm`, `optimizer/d_step_norm`: the norms over all variables, and
            `optimizer/norm_correction`, their ratio. These are the names of Lingvo's summaries.

    Raises:
        TypeError: there is no AdaGraft.
        ValueError: it has `diagnostic=False`.
        ReportError: the file holds other things, or the records of other variables, or one that
            is damaged.

    Example:
        >>> import tempfile
        >>> from tf_graft import SGD, AdaGraft, Adam, report
        >>> w = tf.Variable([3.0, 4.0])
        >>> graft = AdaGraft(Adam(0.1), SGD(1.0), diagnostic=True)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     recorder = report.GraftRecorder(f"{folder}/w", optimizer=graft)
        ...     graft.apply([tf.constant([0.0, 2.0])], [w])
        ...     recorder.record()
        ...     recorded = report.read(f"{folder}/w")
        >>> recorded.magnitude.round(3).tolist(), recorded.direction.tolist()
        ([[0.1]], [[2.0]])
    """

    def __init__(
        self, path: str | Path, every: int = 1, optimizer: Any = None, writer: Any = None
    ) -> None:
        super().__init__()
        self.path = Path(checks.instance("GraftRecorder", "path", path, str, os.PathLike))
        self.every = checks.integer("GraftRecorder", "every", every, 1) or 1
        self._given: Any = optimizer
        self._graft: Any = None if optimizer is None else measuring(optimizer)
        self._writer = writer
        self._file: RecordFile | None = None
        self._last = 0

    def on_train_begin(self, logs: Any = None) -> None:
        """Opens the file, where the optimizer has been built."""
        if self._given is None:
            self._given, self._graft = self.model.optimizer, measuring(self.model.optimizer)
        if self._given.built:
            self._open(int(self._graft.iterations.numpy()))

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Records, when it is time."""
        self.record()

    def record(self) -> None:
        """Records the last update, when it is time, and once."""
        step = int(self._graft.iterations.numpy())
        if step == self._last or step % self.every:
            return
        if self._file is None:
            self._open(step - 1)
        self._last = step
        row = self._measure().numpy()
        norms = row[1:].reshape(-1, len(COLUMNS))
        self._file.append(step, row[0], norms)  # type: ignore[union-attr]
        if self._writer is not None and step % (self.every * SUMMARIES_EVERY) == 0:
            self._summarize(step, row[0], norms)

    def sync(self) -> int:
        """Returns the checksum of all records when they are on disk."""
        assert self._file is not None
        return self._file.sync()

    def _open(self, step: int) -> None:
        self._last = step
        self._names = list(self._graft.norms())
        self._file = RecordFile(self.path, _header(self._graft), step, self.every)
        self._measure = tf.function(lambda: _row(self._graft))

    def _summarize(self, step: int, rate: float, norms: np.ndarray) -> None:
        """One event for all: an event each would take longer than a small model's step."""
        summary = tf.compat.v1.Summary()
        for tag, value in _tagged(self._names, rate, norms).items():
            summary.value.add(tag=tag, simple_value=value)
        with self._writer.as_default():
            tf.summary.experimental.write_raw_pb(summary.SerializeToString(), step=step)


def _tagged(paths: list[str], rate: float, norms: np.ndarray) -> dict[str, float]:
    """What TensorBoard shows, by Lingvo's names, and the ratio of each variable."""
    tagged = {"adagraft_lr": float(rate)}
    magnitude, direction = norms[:, 0].astype(np.float64), norms[:, 1].astype(np.float64)
    for path, m, d in zip(paths, magnitude, direction, strict=True):
        tagged |= {f"optimizer/m_step_norm_{path}": m, f"optimizer/d_step_norm_{path}": d}
        if d > 0:
            tagged[f"graft_ratio/{path}"] = m / d
    m, d = np.linalg.norm(magnitude), np.linalg.norm(direction)
    tagged |= {"optimizer/m_step_norm": m, "optimizer/d_step_norm": d}
    if d > 0:
        tagged["optimizer/norm_correction"] = m / d
    return tagged


def measuring(optimizer: Any) -> Any:
    """The graft that measures, in an optimizer; the outermost of several.

    Raises:
        TypeError: there is no graft in it.
        ValueError: none of them measures.
    """
    grafts = [found for found in nested(optimizer) if hasattr(found, "norms")]
    if not grafts:
        raise TypeError(
            f"GraftRecorder: {type(optimizer).__name__} measures nothing, nor does what is in it; "
            "an AdaGraft with diagnostic=True is wanted."
        )
    for graft in grafts:
        if graft.diagnostic:
            return graft
    raise ValueError("GraftRecorder: the AdaGraft has diagnostic=False; make it True.")


def _row(graft: Any) -> tf.Tensor:
    """The graft's rate in the last update, and three norms for each variable: one tensor."""
    values = [_rate(graft)]
    for norms in graft.norms().values():
        weights = tf.cast(tf.convert_to_tensor(norms.variable), tf.float32)
        values += [norms.magnitude, norms.direction, tf.sqrt(2.0 * tf.nn.l2_loss(weights))]
    return tf.stack([tf.cast(value, tf.float32) for value in values])


def _rate(graft: Any) -> Any:
    if "learning_rate" not in graft.rate_variables():
        given = keras_contract.rate_of(graft)
        if isinstance(given, keras.optimizers.schedules.LearningRateSchedule):
            return given(graft.iterations - 1)
    return graft.learning_rate


def _header(graft: Any) -> Header:
    variables = {path: norms.variable for path, norms in graft.norms().items()}
    children = graft.children()
    return Header(
        paths=list(variables),
        shapes=[list(variable.shape) for variable in variables.values()],
        magnitude=_described(children["magnitude"]),
        direction=_described(children["direction"]),
        use_global_norm=graft.use_global_norm,
        magnitude_bytes=_bytes(children["magnitude"], variables),
        direction_bytes=_bytes(children["direction"], variables),
    )


def _described(optimizer: Any) -> str:
    """`Wrapped(Lion)` as `Lion`."""
    return re.sub(r"^Wrapped\((.*)\)$", r"\1", optimizer.signature())


def _bytes(optimizer: Any, variables: dict[str, Any]) -> int:
    """The size of an optimizer's slots."""
    total = 0
    for path, variable in variables.items():
        computed = numerics.compute_dtype(tf.as_dtype(variable.dtype)).name
        for slot in optimizer.slots_for(path).values():
            size = tf.as_dtype(slot.dtype or computed).size
            total += math.prod(slot.shape_for(variable)) * size
    return total
