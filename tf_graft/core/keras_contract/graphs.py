"""The function being traced: whether XLA compiles it, and which outside tensors it uses."""

import os
import weakref
from collections.abc import Callable
from typing import Any

import tensorflow as tf
from keras.src.backend.common.stateless_scope import in_stateless_scope
from tensorflow.compiler.tf2xla.ops import gen_xla_ops
from tensorflow.dtensor.python.api import _dtensor_singleton as dtensor_started
from tensorflow.python.eager.context import context
from tensorflow.python.ops import control_flow_util

from tf_graft.core import environment
from tf_graft.core.keras_contract.messages import FunctionDef


def in_xla() -> bool:
    """Returns whether XLA will compile the function being traced.

    Some in-place kernels do not run in XLA. TensorFlow has no public name for this test.
    """
    if tf.executing_eagerly():
        return False
    return bool(control_flow_util.GraphOrParentsInXlaContext(tf.compat.v1.get_default_graph()))


def opaque(number: int) -> tf.Tensor | int:
    """Returns a number such that a branch that adds it to a counter stays a branch in XLA.

    XLA turns branches of elementwise operations alone into selects: it computes both branches, and
    first copies every variable that they write. Under a strategy the number stays plain, because
    tensors would be sent to all replicas.
    """
    if not in_xla() or tf.distribute.has_strategy():
        return number
    (kept,) = gen_xla_ops.xla_optimization_barrier([tf.constant(number, tf.int64)])
    return kept


def check_order_on_mesh() -> None:
    """Refuses a process in which functions on a mesh read variables out of order.

    Raises:
        RuntimeError: the environment variable that prevents this was set too late.
    """
    name = environment.COMBINING
    if os.environ[name] != "0" or (dtensor_started is not None and not environment.IN_ORDER):
        raise RuntimeError(
            f"Import tf_graft before you use DTensor: it sets the environment variable {name}=0. "
            "Without it, TensorFlow would read variables on a mesh before they are assigned."
        )


def replace_input(operation: tf.Operation, index: int, tensor: tf.Tensor) -> None:
    """Replaces an input of an operation in the function being traced."""
    operation._update_input(index, tensor)


def function_named(name: str) -> FunctionDef:
    """Returns a function that TensorFlow holds."""
    return context().get_function_def(name)


def program_on_mesh(function: tf.types.experimental.ConcreteFunction) -> FunctionDef:
    """Returns the program of each mesh device for a function that has run there once.

    DTensor's name for the program begins with the function's.
    """
    beginning = f"{tf.compat.as_str(function.name)}__func_"
    (name,) = (name for name in context().list_function_names() if name.startswith(beginning))
    return function_named(name)


def is_variable(tensor: tf.Tensor) -> bool:
    """Returns whether an eager tensor is the handle of a variable, not of a table or iterator."""
    held = tensor._handle_data
    return held is not None and bool(held.shape_and_type)


class _Capture:
    """Replaces the method with which the graph of a function captures tensors from outside."""

    def __init__(self, graph: tf.Graph, check: Callable[[tf.Tensor, str | None], None]):
        self._graph = weakref.ref(graph)
        self._check = check
        self._unchecked = [tensor for tensor, _ in graph.captures]

    def __call__(self, tensor: tf.Tensor, *args: Any, **kwargs: Any) -> tf.Tensor:
        graph: Any = self._graph()
        for taken in (*self._unchecked, tensor):
            if not tf.is_symbolic_tensor(taken):
                watched = {id(v.handle): v.name.partition(":")[0] for v in graph._watched_variables}
                self._check(taken, watched.get(id(taken)))
        self._unchecked = []
        return type(graph).capture(graph, tensor, *args, **kwargs)


def check_captured(check: Callable[[tf.Tensor, str | None], None]) -> None:
    """Checks every tensor from outside, handles included, that the function being traced uses.

    The check covers tensors used so far, those used later, and those of the functions around it.

    Args:
        check: called with each tensor, and its name if it is a variable's handle of a known name.
    """
    if tf.executing_eagerly() or in_stateless_scope():
        return
    graph = tf.compat.v1.get_default_graph()
    while isinstance(graph, tf.__internal__.FuncGraph) and not isinstance(graph.capture, _Capture):
        graph.capture = _Capture(graph, check)
        graph = graph.outer_graph
