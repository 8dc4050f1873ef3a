"""A callback that records the norms of a graft during training."""

import math
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

import keras
import numpy as np
import tensorflow as tf

from tf_graft.core import checks, keras_contract, tensorboard
from tf_graft.core.nesting import nested
from tf_graft.core.state.rule import Rule
from tf_graft.core.state.slots import Slot
from tf_graft.core.tensors import numerics
from tf_graft.core.types import Logs, OptimizerLike, Scalar, VariableLike
from tf_graft.core.variables import Variables
from tf_graft.grafting.records import COLUMNS, Header, RecordFile

SUMMARIES_EVERY = 20


class Norms(Protocol):
    """A variable and the norms of its last step, as `AdaGraft.norms` returns them."""

    variable: VariableLike
    magnitude: VariableLike
    direction: VariableLike


class Child(Protocol):
    """One of the two optimizers of a graft."""

    rule: Rule

    def slots_for(self, path: str) -> Mapping[str, Slot]:
        """Returns the slots of the variable of that path, by role."""


class Graft(OptimizerLike, Protocol):
    """The methods of an `AdaGraft` that the recorder uses."""

    diagnostic: bool
    use_global_norm: bool
    iterations: keras.Variable
    state: Variables

    def norms(self) -> Mapping[str, Norms]:
        """Returns the norms of each variable's last step by path."""

    def children(self) -> Mapping[str, Child]:
        """Returns the two optimizers by role."""


class GraftRecorder(keras.callbacks.Callback):
    """Writes the norms of an `AdaGraft` to a file at regular steps.

    For each variable it writes the norms of the two optimizers' steps, whose ratio is the graft's
    factor on the direction's step, and the norm of the weights. Use it as a callback of `fit`; in a
    custom training loop call `record` after each step. With `steps_per_execution` above 1 it sees
    only the last step of each execution. If training resumes from a saved state, the recorder
    continues the file and drops the rows of later steps. A file has the variables that the graft
    was built for when it was opened. These include the layers of `Unfreeze`, but not those that you
    unfreeze later on your own.

    Args:
        path: the file, which `tf_graft.report.read` reads.
        every: how often to record: every update whose number is a multiple of this. Default 1.
        optimizer: an `AdaGraft(diagnostic=True)`, or an optimizer that contains one at any depth:
            `MixedPrecision`, `AGN`, `LARC`, Keras' `LossScaleOptimizer` ... If it contains several
            grafts, the outermost is recorded (in an `AGN`, that of the local steps); to record
            another one, pass it directly. None: the model's optimizer, in `fit`.
        writer: a `tf.summary` writer, for TensorBoard after every twentieth record. For each
            variable `optimizer/m_step_norm_<path>` and `optimizer/d_step_norm_<path>` are the norms
            of the two steps, and `graft_ratio/<path>` is their ratio. `adagraft_lr` is the graft's
            own learning rate. `optimizer/m_step_norm` and `optimizer/d_step_norm` are the norms
            over all variables, and `optimizer/norm_correction` is their ratio. The names are
            Lingvo's.

    Raises:
        TypeError: an argument is not of its type; there is no AdaGraft.
        ValueError: the AdaGraft has `diagnostic=False`.
        ReportError: the file is not a file of records, has records of other variables or of a graft
            of other optimizers, or is damaged.

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
        self,
        path: str | Path,
        every: int = 1,
        optimizer: OptimizerLike | None = None,
        writer: tf.summary.SummaryWriter | None = None,
    ) -> None:
        super().__init__()
        self.path = Path(checks.instance("GraftRecorder", "path", path, str, os.PathLike))
        self.every = checks.integer("GraftRecorder", "every", every, 1)
        if writer is not None:
            checks.instance("GraftRecorder", "writer", writer, tf.summary.SummaryWriter)
        self._given = optimizer
        self._graft = None if optimizer is None else measuring(optimizer)
        self._writer = writer
        self._file: RecordFile | None = None
        self._last = 0

    def on_train_begin(self, logs: Logs = None) -> None:
        """Opens the file if the optimizer has been built."""
        optimizer = self._given or self.model.optimizer
        self._graft, self._file, self._last = measuring(optimizer), None, 0
        if optimizer.built:
            self._open(self._graft, int(self._graft.iterations.numpy()))

    def on_train_batch_end(self, batch: int, logs: Logs = None) -> None:
        """Calls `record`."""
        self.record()

    def record(self) -> None:
        """Records the last update once, if its number is a multiple of `every`."""
        if self._graft is None:
            raise RuntimeError(
                "GraftRecorder.record: it has no optimizer yet; give it `optimizer`, or give it to "
                "fit as a callback."
            )
        file = self._file
        if file is None or self.every > 1:  # otherwise the count comes with the norms, in one call
            step = int(self._graft.iterations.numpy())
            if step == self._last or step % self.every:
                return
            file = file or self._open(self._graft, step - 1)
        count, measured = self._measure()
        step, row = int(count.numpy()), measured.numpy()
        if step == self._last:
            return
        self._last = step
        norms = row[1:].reshape(-1, len(COLUMNS))
        file.append(step, row[0], norms)
        if self._writer is not None and step % (self.every * SUMMARIES_EVERY) == 0:
            tagged = _tagged(file.header.paths, row[0], norms)
            tensorboard.write(self._writer, step, tagged)

    def sync(self) -> int:
        """Waits until all records are on disk and returns their checksum.

        Raises:
            RuntimeError: the file is not open yet.
        """
        if self._file is None:
            raise RuntimeError("GraftRecorder.sync: there is no file yet; record a step first.")
        return self._file.sync()

    def _open(self, graft: Graft, step: int) -> RecordFile:
        self._last = step
        self._file = RecordFile(self.path, _header(graft), step, self.every)
        self._measure = tf.function(lambda: _measured(graft)).get_concrete_function()
        return self._file


def _tagged(paths: list[str], rate: float, norms: np.ndarray) -> dict[str, float]:
    """Returns the summaries by tag: Lingvo's, and the ratio of each variable."""
    tagged = {"adagraft_lr": float(rate)}
    magnitude, direction = norms[:, 0].astype(np.float64), norms[:, 1].astype(np.float64)
    for path, m, d in zip(paths, magnitude.tolist(), direction.tolist(), strict=True):
        tagged |= {f"optimizer/m_step_norm_{path}": m, f"optimizer/d_step_norm_{path}": d}
        if d > 0:
            tagged[f"graft_ratio/{path}"] = m / d
    m, d = float(np.linalg.norm(magnitude)), float(np.linalg.norm(direction))
    tagged |= {"optimizer/m_step_norm": m, "optimizer/d_step_norm": d}
    if d > 0:
        tagged["optimizer/norm_correction"] = m / d
    return tagged


def measuring(optimizer: OptimizerLike) -> Graft:
    """Finds the graft that measures norms in an optimizer; the outermost of several.

    Raises:
        TypeError: the optimizer contains no graft.
        ValueError: no graft in it measures norms.
    """
    grafts = [found for found in nested(optimizer) if hasattr(found, "norms")]
    if not grafts:
        raise TypeError(
            f"GraftRecorder: {type(optimizer).__name__} neither is nor contains an AdaGraft; give "
            "one with diagnostic=True."
        )
    for graft in grafts:
        if graft.diagnostic:
            return graft
    raise ValueError("GraftRecorder: the AdaGraft has diagnostic=False; make it True.")


def _measured(graft: Graft) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the number of the last update; in one tensor its rate and each variable's norms."""
    values = [_rate(graft)]
    for norms in graft.norms().values():
        weights = tf.cast(tf.convert_to_tensor(norms.variable), tf.float32)
        values += [norms.magnitude, norms.direction, tf.sqrt(2.0 * tf.nn.l2_loss(weights))]
    row = tf.stack([tf.cast(value, tf.float32) for value in values])
    return tf.convert_to_tensor(graft.iterations), row


def _rate(graft: Graft) -> Scalar:
    if "learning_rate" not in graft.state.rate_variables():
        given = keras_contract.rate_of(graft)
        if isinstance(given, keras.optimizers.schedules.LearningRateSchedule):
            return given(graft.iterations - 1)
    return graft.learning_rate


def _header(graft: Graft) -> Header:
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


def _described(optimizer: Child) -> str:
    """Returns the optimizer's signature, `Lion` for `Wrapped(Lion)`."""
    return re.sub(r"^Wrapped\((.*)\)$", r"\1", optimizer.rule.signature)


def _bytes(optimizer: Child, variables: Mapping[str, VariableLike]) -> int:
    """Returns the size of an optimizer's slots in bytes."""
    total = 0
    for path, variable in variables.items():
        computed = numerics.compute_dtype(tf.as_dtype(variable.dtype)).name
        for slot in optimizer.slots_for(path).values():
            size = tf.as_dtype(slot.dtype or computed).size
            total += math.prod(slot.shape_for(variable)) * size
    return total
