"""Before anything else: four logical CPU devices, quiet logs, the same random numbers each time."""

import gc
import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("KERAS_BACKEND", "tensorflow")

import hypothesis
import keras
import pytest
import tensorflow as tf

DEVICES = 4

tf.config.set_logical_device_configuration(
    tf.config.list_physical_devices("CPU")[0], [tf.config.LogicalDeviceConfiguration()] * DEVICES
)
tf.get_logger().setLevel("ERROR")

# To collect the graphs of many tests takes TensorFlow minutes, of whichever test it falls into.
gc.disable()

# The same examples in every run, and no deadline: the first call of a function traces it.
hypothesis.settings.register_profile("tests", deadline=None, derandomize=True)
hypothesis.settings.load_profile("tests")


@pytest.fixture(autouse=True)
def _same_random_numbers():
    keras.utils.set_random_seed(0)


@pytest.fixture(autouse=True, scope="session")
def _hypothesis_begins_early():
    """At its first test it looks for who holds NumPy's random state: here, among little."""

    @hypothesis.given(hypothesis.strategies.none())
    def first(_):
        pass

    first()
