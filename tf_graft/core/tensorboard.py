"""TensorBoard: whether it is installed, and one event with many numbers."""

import importlib.util
from collections.abc import Mapping

import tensorflow as tf

MISSING = (
    "TensorBoard is not installed, which TensorFlow brings along only before 2.21: pip install "
    "'tf_graft[tensorboard]'"
)


def installed() -> bool:
    """Whether `tf.summary.scalar` and its like exist, which write nothing without it."""
    return importlib.util.find_spec("tensorboard") is not None


def write(writer: tf.summary.SummaryWriter, step: int, tagged: Mapping[str, float]) -> None:
    """Writes one event for all tags; one for each would take longer than a small model's step."""
    summary = tf.compat.v1.Summary()
    for tag, value in tagged.items():
        summary.value.add(tag=tag, simple_value=value)
    with writer.as_default():
        tf.summary.experimental.write_raw_pb(summary.SerializeToString(), step=step)
