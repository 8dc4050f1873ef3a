"""What every process of the tests does before TensorFlow makes a device."""

import gc

DEVICES = 4


def prepare():
    """What a process does before TensorFlow makes a device."""
    import hypothesis
    import tensorflow as tf

    tf.config.set_logical_device_configuration(
        tf.config.list_physical_devices("CPU")[0],
        [tf.config.LogicalDeviceConfiguration()] * DEVICES,
    )
    tf.get_logger().setLevel("ERROR")
    tf.data.Dataset._apply_debug_options = _untuned  # called for each data set that is iterated
    # The same examples in every run, and no deadline: the first call of a function traces it.
    hypothesis.settings.register_profile("tests", deadline=None, derandomize=True)
    hypothesis.settings.load_profile("tests")
    # Within a test it would take whichever test it falls into seconds; never, gigabytes.
    gc.disable()


def _untuned(dataset):
    """A data set whose parallelism TensorFlow does not tune as it is read.

    The end of a tuned iterator waits for its tuning thread, which often misses the signal to stop
    (`Model::OptimizeLoop`, TensorFlow 2.21) and ends up to a minute later.
    """
    import tensorflow as tf

    options = tf.data.Options()
    options.autotune.enabled = False
    return dataset.with_options(options)
