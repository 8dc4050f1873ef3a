"""One event for TensorBoard with many numbers."""

from collections.abc import Mapping

import tensorflow as tf


def write(writer: tf.summary.SummaryWriter, step: int, tagged: Mapping[str, float]) -> None:
    """Writes one event for all tags; one for each would take longer than a small model's step."""
    summary = tf.compat.v1.Summary()
    for tag, value in tagged.items():
        summary.value.add(tag=tag, simple_value=value)
    with writer.as_default():
        tf.summary.experimental.write_raw_pb(summary.SerializeToString(), step=step)
