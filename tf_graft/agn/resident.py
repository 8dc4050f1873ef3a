"""Objects that a worker of parameter servers keeps between the functions that it runs."""

import tensorflow as tf


class Resident:
    """A variable in the memory of the worker that runs the function being traced.

    The first write creates the variable there; the variable is lost with the worker.

    Args:
        name: the variable's name, unique in the cluster.
        start: the value before the first write.
    """

    def __init__(self, name: str, start: tf.Tensor):
        self._start = start
        self._handle = tf.raw_ops.VarHandleOp(
            dtype=start.dtype, shape=start.shape, shared_name=name
        )

    def read(self) -> tf.Tensor:
        """Returns the value."""
        handle, dtype = self._handle, self._start.dtype
        return tf.cond(
            tf.raw_ops.VarIsInitializedOp(resource=handle),
            lambda: tf.raw_ops.ReadVariableOp(resource=handle, dtype=dtype),
            lambda: self._start,
        )

    def write(self, value: tf.Tensor) -> None:
        """Replaces the value."""
        tf.raw_ops.AssignVariableOp(resource=self._handle, value=value)
