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

# Garbage is collected between tests alone: the graphs of many take minutes, of whichever test it
# falls into, and with all that lives looked at again. That it is never would take 10 GB a process.
gc.disable()
YOUNG = 300_000  # objects of tests that ended, some 200 MB: half a second


def pytest_runtest_logfinish():
    if gc.get_count()[0] > YOUNG:
        gc.collect()
        gc.freeze()  # what is left, as modules and caches are, stays


# What runs first: its processes are many, so that no two of them shall run side by side at the end,
# and the tests that are left over then are short ones.
PROCESSES = (
    *("test_model_matrix", "test_strategies", "test_agn_servers", "test_multi_worker"),
    *("test_launch", "test_dtensor", "test_mesh", "test_bench", "test_trust"),
)


def pytest_collection_modifyitems(items):
    items.sort(key=lambda item: "slow" not in item.keywords or item.path.stem not in PROCESSES)


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
