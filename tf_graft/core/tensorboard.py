"""Whether TensorBoard is installed, without which TensorFlow writes no scalars and histograms."""

import importlib.util

MISSING = (
    "TensorBoard is not installed, which TensorFlow brings along only before 2.21: pip install "
    "'tf_graft[tensorboard]'"
)


def installed() -> bool:
    """Whether `tf.summary.scalar` and its like exist."""
    return importlib.util.find_spec("tensorboard") is not None
