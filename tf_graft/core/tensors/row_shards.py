"""Tables whose rows a mesh divides: each device looks up and sums the rows that it holds.

TensorFlow would send such a table whole to every device, or refuse. Here a table is taken apart
into its shards, of shape `[devices, rows / devices, ...]`, which moves no memory; an operation on
the second axis then needs no other device, and what devices exchange are the rows of a batch.
"""

from typing import Any, NamedTuple

import tensorflow as tf
from tensorflow.experimental import dtensor

from tf_graft.core.tensors import numerics


class Places(NamedTuple):
    """Where rows are: the number of their device, and of the row there."""

    device: tf.Tensor
    row: tf.Tensor

    @classmethod
    def of(cls, rows: tf.Tensor, size: int, devices: int) -> "Places":
        """Finds rows in shards of `size` rows; a row that no device has is in none of its rows."""
        device = tf.minimum(tf.maximum(rows // size, 0), devices - 1)
        return cls(device, rows - device * size)


def devices_of(layout: dtensor.Layout | None) -> int:
    """Returns the number of devices that the rows of a variable with this layout are divided over.

    None is the layout of a variable off the mesh, which one device holds.
    """
    return layout.num_shards(0) if layout is not None and layout.sharding_specs else 1


def gather(table: tf.Tensor, rows: tf.Tensor, devices: int) -> tf.Tensor:
    """Returns rows of a table that is divided over devices; its gradient is row-sparse.

    Args:
        table: the table, of shape `[rows, ...]`, divided by rows.
        rows: which rows, integers of any shape.
        devices: the number of devices that the rows are divided over.

    Raises:
        tf.errors.InvalidArgumentError: on a CPU, a row does not exist.
    """
    shape = table.shape

    @tf.custom_gradient
    def gathered(table: tf.Tensor) -> tuple[tf.Tensor, Any]:
        size = shape[0] // devices
        places = Places.of(rows, size, devices)
        found = tf.gather(tf.reshape(table, [devices, size, *shape[1:]]), places.row, axis=1)
        own = tf.reshape(tf.range(devices, dtype=rows.dtype), [devices] + [1] * rows.shape.rank)
        held = _where(tf.equal(tf.expand_dims(places.device, 0), own), found)

        def gradient(upstream: tf.Tensor) -> tf.IndexedSlices:
            values = tf.reshape(upstream, [-1, *shape[1:]])
            return tf.IndexedSlices(values, tf.reshape(rows, [-1]), tf.shape(table))

        return tf.reduce_sum(held, 0), gradient

    result: tf.Tensor = gathered(table)
    return result


def summed(values: tf.Tensor, rows: tf.Tensor, count: int, layout: dtensor.Layout) -> tf.Tensor:
    """Returns the sum of values by row, for which each device sums only the rows that it holds.

    Args:
        values: the values, of shape `[k, ...]`; each device has those of all `k` rows.
        rows: which row each value belongs to, of shape `[k]`, on each device.
        count: the number of rows.
        layout: the layout of the table, which the result has.
    """
    devices = devices_of(layout)
    size = count // devices
    places = Places.of(rows, size, devices)
    own = tf.reshape(tf.range(devices, dtype=rows.dtype), [1, devices])
    mine = tf.cast(tf.equal(tf.expand_dims(places.device, 1), own), values.dtype)
    specs = [dtensor.UNSHARDED, layout.sharding_specs[0]]
    mine = tf.cast(dtensor.relayout(mine, dtensor.Layout(specs, layout.mesh)), tf.bool)
    parts = tf.math.unsorted_segment_sum(_where(mine, tf.expand_dims(values, 1)), places.row, size)
    axes = [1, 0, *range(2, parts.shape.rank)]
    return tf.reshape(tf.transpose(parts, axes), [count, *values.shape[1:]])


def _where(condition: tf.Tensor, values: tf.Tensor) -> tf.Tensor:
    """Returns the rows of values for which the condition holds, and zeros for the others."""
    condition = numerics.of_rows(condition, values)
    kept = tf.cast(condition, values.dtype)  # TensorFlow sends no booleans between devices
    return tf.math.multiply_no_nan(values, kept) if values.dtype.is_floating else values * kept
