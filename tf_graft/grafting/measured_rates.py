"""The learning rates for each layer that a graft measured, for use without the graft."""

import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Self

import numpy as np
import tensorflow as tf

from tf_graft.core import checks
from tf_graft.core.checks import shown
from tf_graft.core.files.checked_state import renamed
from tf_graft.core.files.report_files import ReportError, difference, write_whole
from tf_graft.core.files.row_checksums import checksum
from tf_graft.core.files.whole_files import file_only
from tf_graft.core.tensors import numerics
from tf_graft.core.types import Config
from tf_graft.grafting.rate_checks import FORMAT, KEYS, checked, each_checked, of_kind

MAX_BYTES = 16 * 1024 * 1024
CHECKSUM = "crc32"  # a key in the files of `save`; other files may lack it


@dataclass(frozen=True)
class MeasuredRates:
    """A factor on each layer's step, and its course over the steps.

    ```
    constant   rates[path]
    piecewise  rates[path] * curve(t), whose logarithm is linear between the given steps
    power_law  rates[path] * (t / reference_step) ^ exponent
    global     rate, for all layers
    ```

    Before the first of `steps` and after the last, the curve is constant. Use the rates in
    `tf_graft.LayerwiseRates`.

    Args:
        kind: one of the four.
        rates: one number for each variable path, at least 0.
        rate: the number for all layers.
        steps: the steps at which the curve is given, increasing.
        curve: the values at these steps, above 0.
        reference_step: the step at which the power law is 1, above 0.
        exponent: the exponent of the power law, in [-100, 100].

    Raises:
        ValueError: an unknown kind; an argument of its kind that is no number, or out of range.

    Example:
        >>> rates = MeasuredRates("power_law", {"w": 0.5}, reference_step=4.0, exponent=-0.5)
        >>> round(0.5 * float(rates.course(tf.constant(16.0))), 4)
        0.25
    """

    kind: str
    rates: Mapping[str, float] = field(default_factory=dict)
    rate: float = 1.0
    steps: Sequence[float] = ()
    curve: Sequence[float] = ()
    reference_step: float = 1.0
    exponent: float = 0.0

    def __post_init__(self) -> None:
        """Refuses arguments that do not describe rates, and makes the others plain numbers.

        Raises:
            ValueError: an unknown kind, or an argument of it that is no number or out of range.
        """
        try:
            plain = each_checked({name: getattr(self, name) for name in of_kind(self.kind)})
        except ValueError as error:
            raise ValueError(f"MeasuredRates: {error}") from None
        for name, value in plain.items():
            object.__setattr__(self, name, value)

    def course(
        self, t: tf.Tensor, constant: Callable[..., tf.Tensor] = tf.constant
    ) -> tf.Tensor | None:
        """Returns the factor on all rates at step `t`, of the shape of `t`; None if it is always 1.

        `constant` makes a tensor from numbers and a dtype, on the mesh or device of `t`.
        """
        if self.kind == "power_law":
            start = tf.math.log(numerics.quotient(t, tf.constant(self.reference_step, t.dtype)))
            return tf.exp(self.exponent * start)
        if self.kind != "piecewise":
            return None
        steps = constant(np.array(self.steps), t.dtype)
        values = constant(np.log(self.curve), t.dtype)
        # Each interval adds its whole rise once it has been passed.
        passed = numerics.quotient(tf.expand_dims(t, -1) - steps[:-1], steps[1:] - steps[:-1])
        rises = tf.clip_by_value(passed, 0, 1) * (values[1:] - values[:-1])
        return tf.exp(values[0] + tf.reduce_sum(rises, axis=-1))

    def factor(self, path: str) -> float:
        """Returns the rate of a variable without the course."""
        return self.rate if self.kind == "global" else self.rates[path]

    def matched(self, paths: Sequence[str], where: str = "rates") -> Self:
        """Returns the same rates for a model with variables of these paths.

        Paths that differ only in Keras' numbers of layers are matched in their order. There may be
        rates of further variables, such as those of frozen layers.

        Raises:
            ReportError: the rates are for other variables; the message begins with `where`.
        """
        if self.kind == "global" or set(self.rates) >= set(paths):
            return self
        if renamed(list(self.rates), paths):
            return replace(self, rates=dict(zip(paths, self.rates.values(), strict=True)))
        what = difference(list(self.rates), paths)
        raise ReportError(f"{where}: the rates are for the variables of another model: {what}.")

    def to_dict(self) -> Config:
        """Returns the rates as plain values, the content of a rates file."""
        held = {f.name: getattr(self, f.name) for f in fields(self) if f.name in KEYS[self.kind]}
        plain = {k: dict(v) if k == "rates" else v for k, v in held.items()}
        plain |= {k: list(held[k]) for k in ("steps", "curve") if k in held}
        return {"format": FORMAT, "kind": self.kind, **plain}

    @classmethod
    def from_dict(cls, values: object, where: str = "rates") -> Self:
        """Makes rates from the result of `to_dict`.

        Raises:
            ReportError: the values are something else; the message begins with `where`.
        """
        try:
            return cls(**checked(values))
        except ValueError as error:
            raise ReportError(f"{where}: {error}") from None

    def save(self, path: str | Path) -> None:
        """Writes a rates file (JSON), whole or not at all.

        Raises:
            TypeError: `path` is no path.
            ReportError: the file cannot be written, or `load` would refuse it: within 2^31 steps,
                the rates would be above 1e30.
        """
        path = checks.instance("MeasuredRates.save", "path", path, str, os.PathLike)
        values = self.to_dict()
        self.from_dict(values, shown(path, str))
        text = json.dumps({**values, CHECKSUM: _checksum(values)}, indent=1) + "\n"
        write_whole(Path(path), text)

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Reads a rates file. It holds only numbers and names: nothing in it is executed.

        A file from `save` contains a checksum, `crc32`; delete that line if you edit the file.

        Raises:
            ReportError: the file cannot be read, has other content, or was altered.
        """
        try:
            with open(path, "rb", opener=file_only) as file:
                text = file.read(MAX_BYTES + 1)
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            raise ReportError(f"{shown(path, str)}: {reason.lower()}.") from None
        if len(text) > MAX_BYTES:
            raise ReportError(f"{path}: a rates file is at most {MAX_BYTES >> 20} MiB long.")
        try:
            values = json.loads(text, object_pairs_hook=_without_repetition)
        except (ValueError, RecursionError) as error:
            reason = getattr(error, "msg", None) or str(error)
            line = f":{error.lineno}" if isinstance(error, json.JSONDecodeError) else ""
            raise ReportError(f"{path}{line}: it is not JSON: {reason}.") from None
        sealed = isinstance(values, dict) and CHECKSUM in values
        if sealed and values.pop(CHECKSUM) != _checksum(values):
            raise ReportError(
                f"{path}: its checksum is not that of these rates; put back a copy, or, after a "
                f"change of your own, delete its '{CHECKSUM}'."
            )
        return cls.from_dict(values, str(path))


def _checksum(values: Config) -> int:
    return checksum(json.dumps(values).encode())


def _without_repetition(pairs: list[tuple[str, object]]) -> Config:
    values = dict(pairs)
    if len(values) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"{shown(twice)} occurs twice")
    return values
