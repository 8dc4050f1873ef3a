"""What all schedules share: how a step is read, and how a rate leaves."""

import inspect

import keras
import numpy as np
import tensorflow as tf

from tf_graft.core import checks, tpus


def as_step(step):
    """`step` as an int64 tensor, or float64 if it is a float: exact far beyond any training run.

    Raises:
        TypeError: `step` is no number.
        ValueError: `step` is negative, NaN, or above 2^53, where that is known without waiting for
            a variable.
    """
    if not isinstance(step, tf.Variable | keras.Variable):
        _refuse_no_step(step)
    tensor = tf.convert_to_tensor(step, tf.int64 if isinstance(step, int) else None)
    return tf.cast(tensor, tf.float64 if tensor.dtype.is_floating else tf.int64)


def _refuse_no_step(step):
    try:
        tensor = tf.convert_to_tensor(step)
    except (TypeError, ValueError, OverflowError):
        tensor = None
    if tensor is None or not (tensor.dtype.is_floating or tensor.dtype.is_integer):
        raise TypeError(f"schedule(step={checks.shown(step)}): step must be a number of updates.")
    known = tf.get_static_value(tensor)
    if known is not None and not np.all((known >= 0) & (known <= checks.MOST_WHOLE)):
        raise ValueError(f"schedule(step={checks.shown(step)}): step must lie in [0, 2^53].")


def precise(x):
    """A number of steps, or a rate, in the precision that rates are computed in."""
    return tf.cast(x, tf.float32 if tpus.tracing() else tf.float64)


def ratio(t, steps):
    """How often `steps` steps fit into `t`, which is rounded after the division alone."""
    whole = t // steps
    return precise(whole) + precise(t - whole * steps) / steps


def ramp(t, steps):
    """Rises linearly from 0 at step 0 to 1 at step `steps`, then stays; 1 throughout if 0 steps."""
    return precise(tf.minimum(t, steps)) / steps if steps else precise(tf.ones_like(t))


def progress(t, begin, steps):
    """How much of a decay over `steps` steps from step `begin` on is done, between 0 and 1."""
    return precise(tf.clip_by_value(t - begin, 0, steps)) / steps


def remaining(t, begin, steps):
    """`1 - progress`, without the rounding of a difference."""
    return precise(tf.clip_by_value(begin + steps - t, 0, steps)) / steps


class Schedule(keras.optimizers.schedules.LearningRateSchedule):
    """A learning rate as a function of the step, handed out as float32.

    Steps are counted and compared as whole numbers. What then follows is computed in float64, and
    on a TPU, which emulates float64, in float32: a rate that fell by four decades is 1e-6 off.
    Subclasses keep each constructor argument in an attribute of the same name; what such an
    attribute is set to later is checked as the constructor does.
    """

    def __setattr__(self, name, value):
        super().__setattr__(name, checks.as_constructed(self, name, value))

    def __call__(self, step):
        """The rate at `step` (number of updates done before this one): float32, shaped as `step`.

        `step` is an int, a NumPy number or array, a tensor, a `tf.Variable` or a `keras.Variable`.
        """
        return tf.cast(self.rate(as_step(step)), tf.float32)

    def rate(self, t):
        """The rate at the step `t`, int64, or float64 where the step is a float."""
        raise NotImplementedError(f"{type(self).__name__} must define rate(t).")

    def get_config(self):
        """The constructor's arguments as plain Python values."""
        return {name: getattr(self, name) for name in inspect.signature(type(self)).parameters}
