"""Nonsense for methods of optimizers and for functions of the face."""

import math
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from samples import state_of

import tf_graft
from tf_graft import report
from tf_graft.optimizers import SGD
from trust.nonsense import (
    CHOICE,
    COUNT,
    NAN,
    NO_FINITE,
    NO_NUMBERS,
    NOT_NEGATIVE,
    NOTHING,
    OPTIMIZER,
    PATTERNS,
    POSITIVE,
    RATE,
    SET_RATE,
    STEP,
    Odd,
    Values,
)


def each_in(values: Values, sound: Any) -> Values:
    """Each value in a list, beside one that is sound; and what is no list."""
    alone = {k: v for k, v in values.items() if k not in ("a list", "an array")}
    return {f"{k}, in a list": [sound, v] for k, v in alone.items()} | {
        "text": "12",
        "a number": 3,
        "None": None,
        "a tensor": tf.constant([1.0, 2.0]),
    }


SCALE = POSITIVE | {"2^-127": 2.0**-127, "2^127": 2.0**127}
SCALER: Values = {
    **{k: v for k, v in SCALE.items() if k != "an object"},
    **{"a name": "no_such", "an unknown argument": {"name": "backoff", "qqq": 1}},
    **{"a bad argument": {"name": "backoff", "scale_min": -1.0}, "no name": {"scale_min": 1.0}},
    **{"a class": {"class_name": "Dense", "config": {"units": 1}}, "an object": object()},
}
BOUNDARIES = each_in(COUNT, 0) | {"out of order": [2, 1], "twice": [1, 1], "one": [1]}
RATES = {"format": "tf_graft layerwise rates 1", "kind": "global", "rate": 0.5}
NO_RATES: Values = {
    **{f"a rate, {k}": {**RATES, "rate": v} for k, v in (NOT_NEGATIVE | NOTHING).items()},
    **{"3": 3, "None": None, "a path": "/no/such/rates.json", "a list": [0.5], "no format": {}},
    **{"a folder": "/", "a kind": {**RATES, "kind": "qqq"}, "more": {**RATES, "qqq": 1}},
}


def _matrix(*values: Any) -> tf.Tensor:
    return tf.constant([values] * 2, tf.float32)


def _gradients() -> Values:
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
        "rows of another table": rows(wide, [0], dense_shape=[99, 3]),
    }


def _variables() -> Values:
    return {
        **{"a tensor": tf.ones([2, 3]), "an array": np.ones([2, 3]), "text": "kernel", "3": 3},
        **{"None": None, "an object": object(), "a list": [1.0], "a layer": keras.layers.Dense(1)},
        **{"another variable": tf.Variable(tf.ones([2, 3]), name="other"), "a class": tf.Variable},
    }


def _lists() -> Values:
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
    lists, gradients, variables = _lists(), _gradients(), _variables()
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
    yield at("finalize_variable_values", variables, _when_averaging(optimizer))
    excluded = {k: v for k, v in lists.items() if k != "None"}
    yield at(
        "exclude_from_weight_decay", excluded, lambda x: optimizer.exclude_from_weight_decay(x)
    )
    yield at(
        "compute_gradients",
        lists | {"a variable in it": [g]},
        lambda x: optimizer.compute_gradients(lambda: 1.0, x),
    )
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
    yield at("watch", {"None": None, "3": 3, "text": "f", "a list": []}, optimizer.watch)


def _when_averaging(optimizer: Any) -> Any:
    averaging = SGD(0.1, use_ema=True, name=optimizer.name)
    w = tf.Variable([1.0], name="w")
    averaging.apply([tf.constant([1.0])], [w])

    def call(value: Any) -> None:
        averaging.finalize_variable_values([value])

    return call


def of_functions(place: Any) -> Iterator[Any]:
    """Functions of the face."""
    ones = tf.ones([2, 3])
    norm = "clip_by_global_norm"
    lists, gradients = _lists(), _gradients()
    alone = {
        k: v
        for k, v in gradients.items()
        if not (hasattr(v, "shape") and getattr(v, "dtype", None) == tf.float32) and k != "a scalar"
    }
    sparse = {k: v for k, v in gradients.items() if "row" in k and isinstance(v, tf.IndexedSlices)}
    bad_rows = {
        k: sparse[k] for k in sparse if "narrow" not in k and "another" not in k and " 2" not in k
    }
    yield place(norm, (norm,), lists, lambda x: tf_graft.clip_by_global_norm(x, 1.0))
    yield place(norm, (norm,), alone | bad_rows, lambda x: tf_graft.clip_by_global_norm([x], 1.0))
    yield place(
        norm, (norm,), POSITIVE | NOTHING, lambda x: tf_graft.clip_by_global_norm([ones], x)
    )
    for name in ("get", "wrap"):
        yield place(name, ("get", "SGD", "sgd"), OPTIMIZER, getattr(tf_graft, name))
    words = ("schedules.get", "FixedLR")
    rates = {k: v for k, v in RATE.items() if not isinstance(v, Odd) and "Keras'" not in k}
    yield place(
        "schedules.get", words, rates | {"a name": "no_such", "None": None}, tf_graft.schedules.get
    )
    yield place("scaling.get", ("scal",), {k: v for k, v in SCALER.items()}, tf_graft.scaling.get)
    for schedule in (
        tf_graft.schedules.FixedLR(0.5),
        tf_graft.schedules.PolyDecay(0.5, 4, warmup_steps=2),
        tf_graft.schedules.TransformerSchedule(d_model=4, warmup_steps=4),
        tf_graft.schedules.Warmup(0.5, 4),
        tf_graft.schedules.ExpDecay(0.5, 4, 0.5),
    ):
        yield place(f"{type(schedule).__name__}()(step)", ("step",), STEP, schedule)
    yield from _of_optimize_loss(place)
    yield from _of_rates(place)


def _of_optimize_loss(place: Any) -> Iterator[Any]:
    w = tf.Variable([1.0, 2.0], name="w")
    given = {
        "loss": lambda: tf.reduce_sum(w),
        "variables": [w],
        "optimizer": "SGD",
        "learning_rate_decay_fn": 0.1,
    }
    no_losses = {"None": None, "3": 3, "text": "loss", "a tensor": tf.constant(1.0)}
    nonsense: dict[str, Values] = {
        "loss": no_losses,
        "variables": _lists() | {"none": [], "a tensor in it": [tf.ones([2])], "3 in it": [3]},
        "optimizer": {k: v for k, v in OPTIMIZER.items() if k not in ("its base",)},
        "learning_rate_decay_fn": {
            k: v for k, v in RATE.items() if "function" not in k and "class" not in k
        },
        "dtype": CHOICE,
        "clip_gradients": POSITIVE,
        "iter_size": COUNT | {"0": 0},
        "freeze_variables_regex": {k: v for k, v in PATTERNS.items() if not isinstance(v, str)},
        "larc_params": {"a list": [1], "text": "a", "3": 3, "nothing": {}, "1": {"larc_eta": 1}},
        "summaries": {"text": "gradients", "unknown": ["qqq"], "3": 3},
        "optimizer_params": {"a list": [1], "text": "a", "3": 3, "unknown": {"qqq": 1}},
        "aggregate": {"3": 3, "text": "mean"},
    }
    for name, values in nonsense.items():

        def call(value: Any, name: str = name) -> None:
            tf_graft.optimize_loss(**{**given, name: value})

        words = (name, "optimize_loss", "SGD", "get(")
        yield place(f"optimize_loss({name}=...)", words, values, call, lambda: w.numpy())
    mixed = {**given, "dtype": "mixed"}
    yield place(
        "optimize_loss(loss_scaling=...)",
        ("scal",),
        {k: v for k, v in SCALER.items() if not isinstance(v, dict)},
        lambda x: tf_graft.optimize_loss(**mixed, loss_scaling=x),
    )


def _of_rates(place: Any) -> Iterator[Any]:
    def made(**given: Any) -> Any:
        return report.LayerwiseRates.from_dict({"format": RATES["format"], **given})

    numbers = NO_NUMBERS | NO_FINITE | NOTHING
    by_path = {"kind": "constant"}
    yield place(
        "LayerwiseRates(rates=...)",
        ("rates",),
        {k: {"w": v} for k, v in (NOT_NEGATIVE | NOTHING).items()} | {"3": 3, "a list": [1.0]},
        lambda x: made(**by_path, rates=x),
    )
    law = {"kind": "power_law", "rates": {"w": 1.0}}
    yield place(
        "LayerwiseRates(exponent=...)",
        ("exponent",),
        numbers,
        lambda x: made(**law, reference_step=1.0, exponent=x),
    )
    yield place(
        "LayerwiseRates(reference_step=...)",
        ("reference_step",),
        POSITIVE | NOTHING,
        lambda x: made(**law, reference_step=x, exponent=math.e),
    )
