"""Before anything else: four logical CPU devices, quiet logs, the same random numbers each time."""

import gc
import os

import pytest

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("KERAS_BACKEND", "tensorflow")

DEVICES = 4
YOUNG = 300_000  # objects of tests that ended, some 200 MB: collected in half a second
# Tests that start many processes, which run first: one after the other, while the second process of
# pytest runs others, and not two of them side by side at the end. What is left then is short.
CLUSTERS = (
    *("test_strategies", "test_agn_servers", "test_multi_worker", "test_launch"),
    *("test_dtensor", "test_mesh", "test_trust"),
)


def pytest_configure(config):
    hands_out = config.getoption("numprocesses", None) and not hasattr(config, "workerinput")
    if not hands_out:  # that process runs no test
        prepare()


def prepare():
    """What a process does before TensorFlow makes a device."""
    import hypothesis
    import tensorflow as tf

    tf.config.set_logical_device_configuration(
        tf.config.list_physical_devices("CPU")[0],
        [tf.config.LogicalDeviceConfiguration()] * DEVICES,
    )
    tf.get_logger().setLevel("ERROR")
    # The same examples in every run, and no deadline: the first call of a function traces it.
    hypothesis.settings.register_profile("tests", deadline=None, derandomize=True)
    hypothesis.settings.load_profile("tests")
    # Within a test it would take whichever test it falls into seconds; never, gigabytes.
    gc.disable()


def pytest_runtest_logfinish():
    """Collects what tests have left, between two of them."""
    if gc.get_count()[0] > YOUNG:
        gc.collect()
        gc.freeze()  # what stays, as modules and caches do, is not looked at again


def pytest_collection_modifyitems(items):
    items.sort(key=lambda item: "slow" not in item.keywords or item.path.stem not in CLUSTERS)


@pytest.fixture(autouse=True)
def _same_random_numbers():
    import keras

    keras.utils.set_random_seed(0)


@pytest.fixture(autouse=True, scope="session")
def _hypothesis_begins_early():
    """At its first test it looks for who holds NumPy's random state: here, among little."""
    import hypothesis

    @hypothesis.given(hypothesis.strategies.none())
    def first(_):
        pass

    first()
