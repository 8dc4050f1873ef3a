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
    # The same examples in every run, and no deadline: the first call of a function traces it.
    hypothesis.settings.register_profile("tests", deadline=None, derandomize=True)
    hypothesis.settings.load_profile("tests")
    # Within a test it would take whichever test it falls into seconds; never, gigabytes.
    gc.disable()
