"""Nonsense for methods of optimizers."""

from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from support.samples import state_of
from trust.nonsense import NAN, SET_RATE, Values


def _matrix(*values: Any) -> tf.Tensor:
    return tf.constant([values] * 2, tf.float32)


def no_gradients() -> Values:
    """What is no gradient of a variable of shape (2, 3)."""
    wide, rows = np.ones([1, 3], "float32"), tf.IndexedSlices
    return {
        **{"text": "g", "an object": object(), "a dict": {}, "True": True, "a class": int},
        **{"int32": tf.ones([2, 3], "int32"), "bool": tf.ones([2, 3], "bool")},
        **{"complex": tf.ones([2, 3], "complex64"), "texts": tf.constant([["a"] * 3] * 2)},
        **{"a shape that broadcasts": tf.ones([3]), "a scalar": 1.0, "transposed": tf.ones([3, 2])},
        **{"one more dimension": tf.ones([1, 2, 3]), "empty": tf.ones([0, 3])},
        **{"ragged": tf.ragged.constant([[1.0], [1.0, 2.0]]), "uneven": [[1.0], [1.0, 2.0]]},
        **{"sparse": tf.sparse.from_dense(tf.ones([2, 3])), "a variable's name": "kernel"},
        "row 0.9": rows(wide, np.array([0.9])),
        "row 0.9 in a list": rows(wide, [0.9]),
        "row 0.9 in a tensor": rows(wide, tf.constant([0.9])),
        "row 1.0": rows(wide, np.array([1.0])),
        "a NaN row": rows(wide, np.array([NAN])),
        "a bool row": rows(wide, np.array([True])),
        "a text row": rows(wide, np.array(["0"])),
        "a complex row": rows(wide, np.array([0j])),
        "row 2": rows(wide, [2]),
        "row -1": rows(wide, [-1]),
        "row 2^40": rows(wide, [2**40]),
        "row 2^63 unsigned": rows(wide, np.array([2**63], np.uint64)),
        "row 200 of uint8": rows(wide, np.array([200], np.uint8)),
        "two rows for one": rows(wide, [0, 1]),
        "one row for two": rows(np.ones([2, 3], "float32"), [0]),
        "a row in a matrix": rows(wide, [[0]]),
        "a narrow row": rows(np.ones([1, 2], "float32"), [0]),
        "int rows": rows(np.ones([1, 3], "int32"), [0]),
    }


def no_variables() -> Values:
    return {
        **{"a tensor": tf.ones([2, 3]), "an array": np.ones([2, 3]), "text": "kernel", "3": 3},
        **{"None": None, "an object": object(), "a list": [1.0], "a layer": keras.layers.Dense(1)},
        **{"another variable": tf.Variable(tf.ones([2, 3]), name="other"), "a class": tf.Variable},
    }


def no_lists() -> Values:
    """What is no list of anything."""
    return {
        **{"None": None, "3": 3, "text": "ab", "a dict": {"a": 1}, "an object": object()},
        **{"a tensor": tf.ones([1, 2, 3]), "an array": np.ones([1, 2, 3]), "bytes": b"ab"},
        **{"a variable": tf.Variable([1.0], name="other"), "a class": list, "a scalar": 1.0},
    }


def of_optimizer(place: Any, optimizer: Any) -> Iterator[Any]:
    """Its methods, on variables it was built for and has updated once."""
    w = tf.Variable(_matrix(1.0, 2.0, 3.0), name="w")
    b = tf.Variable([1.0], name="b")
    g = _matrix(0.1, 0.2, 0.3)
    optimizer.apply([g, tf.constant([0.1])], [w, b])
    lists, gradients, variables = no_lists(), no_gradients(), no_variables()
    name = type(optimizer).__name__

    def at(method: str, values: Values, call: Any) -> Any:
        words = (f"{name}.{method}", f"{name}.apply")
        return place(f"{name}.{method}", words, values, call, lambda: state_of(optimizer, w, b))

    def traced(gradient: Any) -> None:
        tf.function(lambda: optimizer.apply([gradient], [w]), autograph=False)()

    checked_when_run = ("row 2", "row -1", "row 2^40", "row 2^63 unsigned", "row 200 of uint8")
    early = {k: v for k, v in gradients.items() if k not in checked_when_run}
    yield at("apply", gradients, lambda x: optimizer.apply([x], [w]))
    yield at("apply", early, traced)
    yield at(
        "apply",
        {"nothing": [], "all None": [None, None], "one": [g]},
        lambda x: optimizer.apply(x, [w, b]),
    )
    yield at("apply", lists, lambda x: optimizer.apply(x, [w, b]))
    yield at("apply", variables, lambda x: optimizer.apply([g], [x]))
    yield at(
        "apply", {k: v for k, v in lists.items() if k != "None"}, lambda x: optimizer.apply([g], x)
    )
    yield at(
        "apply", {"twice": [w, w], "one": [w], "none": []}, lambda x: optimizer.apply([g, g], x)
    )
    pairs = lists | {"no pair": [g], "a triple": [(g, w, w)], "text": ["gw"], "None": [None]}
    yield at("apply_gradients", pairs, optimizer.apply_gradients)
    yield at("apply_gradients", gradients, lambda x: optimizer.apply_gradients([(x, w)]))
    yield at("update_step", gradients, lambda x: optimizer.update_step(x, w, 0.1))
    yield at("update_step", variables, lambda x: optimizer.update_step(g, x, 0.1))
    rates = {k: v for k, v in SET_RATE.items() if "schedule" not in k and "Keras'" not in k}
    yield at("update_step", rates, lambda x: optimizer.update_step(g, w, x))
    yield at("build", lists, optimizer.build)
    yield at("build", variables, lambda x: optimizer.build([x]))
    excluded = {k: v for k, v in lists.items() if k != "None"}
    yield at(
        "exclude_from_weight_decay", excluded, lambda x: optimizer.exclude_from_weight_decay(x)
    )
    untaped = {k: v for k, v in lists.items() if not callable(v)} | {"a tensor in it": [g]}
    yield at("compute_gradients", untaped, lambda x: optimizer.compute_gradients(lambda: 1.0, x))
    losses = {
        "None": None,
        "text": "loss",
        "a tensor": tf.constant(1.0),
        "a number": 1.0,
        "NaN": NAN,
    }
    yield at("compute_gradients", losses, lambda x: optimizer.compute_gradients(x, [w]))
    returned = {"text": "a", "None": None, "an int": 1, "an object": object()}
    yield at("compute_gradients", returned, lambda x: optimizer.compute_gradients(lambda: x, [w]))
