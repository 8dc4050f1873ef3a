"""What all schedules share: how a step is read, and how a rate leaves."""

import inspect

import keras
import tensorflow as tf


def as_step(step):
    """`step` as an int64 tensor, or float64 if it is a float: exact far beyond any training run."""
    tensor = tf.convert_to_tensor(step, tf.int64 if isinstance(step, int) else None)
    return tf.cast(tensor, tf.float64 if tensor.dtype.is_floating else tf.int64)


def ramp(t, steps):
    """Rises linearly from 0 at step 0 to 1 at step `steps`, then stays; 1 throughout if 0 steps."""
    return tf.minimum(t / steps, 1.0) if steps else tf.ones_like(t)


def progress(t, begin, steps):
    """How much of a decay over `steps` steps from step `begin` on is done, between 0 and 1."""
    return tf.clip_by_value((t - begin) / steps, 0.0, 1.0)


class Schedule(keras.optimizers.schedules.LearningRateSchedule):
    """A learning rate as a function of the step, computed in float64 and handed out as float32.

    Float32 would not do inside: over 1e6 steps it puts `0.99999 ** step` wrong by several percent.
    Subclasses keep each constructor argument in an attribute of the same name.
    """

    def __call__(self, step):
        """The rate at `step` (number of updates done before this one): float32, shaped as `step`.

        `step` is an int, a NumPy number or array, a tensor, a `tf.Variable` or a `keras.Variable`.
        """
        return tf.cast(self.rate(tf.cast(as_step(step), tf.float64)), tf.float32)

    def rate(self, t):
        """The rate at the float64 step `t`."""
        raise NotImplementedError(f"{type(self).__name__} must define rate(t).")

    def get_config(self):
        """The constructor's arguments as plain Python values."""
        return {name: getattr(self, name) for name in inspect.signature(type(self)).parameters}
