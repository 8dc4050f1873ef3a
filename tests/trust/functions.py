"""Nonsense for functions of the face."""

import math
from collections.abc import Iterator
from typing import Any

import keras
import tensorflow as tf

import tf_graft
from tf_graft import report
from tf_graft.optimizers import SGD
from trust.calls import no_gradients, no_lists, no_variables
from trust.nonsense import (
    CHOICE,
    COUNT,
    FROM_ONE,
    LONG,
    NAN,
    NO_FINITE,
    NO_NUMBERS,
    NOT_NEGATIVE,
    NOTHING,
    OPTIMIZER,
    PATTERNS,
    POSITIVE,
    RATE,
    RATES,
    SCALER,
    STEP,
    Odd,
    Values,
)


def of_functions(place: Any) -> Iterator[Any]:
    """Functions of the face."""
    ones = tf.ones([2, 3])
    norm = "clip_by_global_norm"
    lists, gradients = no_lists(), no_gradients()
    # What may be a gradient where no variable says of what shape, or how many rows, it is.
    fine = ("a scalar", "a narrow row", "row -1", "row 200 of uint8")
    wrong = {
        k: v
        for k, v in gradients.items()
        if k not in fine
        and "row 2" not in k
        and (isinstance(v, tf.IndexedSlices) or getattr(v, "dtype", None) != tf.float32)
    }
    yield place(norm, (norm,), lists, lambda x: tf_graft.clip_by_global_norm(x, 1.0))
    yield place(norm, (norm,), wrong, lambda x: tf_graft.clip_by_global_norm([x], 1.0))
    yield place(
        norm, (norm,), POSITIVE | NOTHING, lambda x: tf_graft.clip_by_global_norm([ones], x)
    )
    for name in ("get", "wrap"):
        yield place(name, ("get", "SGD", "sgd"), OPTIMIZER, getattr(tf_graft, name))
    words = ("schedules.get", "FixedLR", "ExponentialDecay")
    rates = {k: v for k, v in RATE.items() if not isinstance(v, Odd) and "Keras'" not in k}
    yield place(
        "schedules.get", words, rates | {"a name": "no_such", "None": None}, tf_graft.schedules.get
    )
    yield place("scaling.get", ("scal",), SCALER, tf_graft.scaling.get)
    things = NO_NUMBERS | NOTHING | {"5": 5, "a model": keras.Sequential()}
    yield place("serialize", ("serialize",), things, tf_graft.serialize)
    dicts = {k: v for k, v in OPTIMIZER.items() if isinstance(v, dict) and "name" not in v} | things
    yield place("deserialize", ("deserialize",), dicts, tf_graft.deserialize)
    for schedule in (
        tf_graft.schedules.FixedLR(0.5),
        tf_graft.schedules.PolyDecay(0.5, 4, warmup_steps=2),
        tf_graft.schedules.TransformerSchedule(d_model=4, warmup_steps=4),
        tf_graft.schedules.Warmup(0.5, 4),
        tf_graft.schedules.ExpDecay(0.5, 4, 0.5),
    ):
        yield place(f"{type(schedule).__name__}()(step)", ("step",), STEP, schedule)
    averaging = SGD(0.1, use_ema=True)
    averaging.build([tf.Variable([1.0], name="w")])
    finalize, variables = averaging.finalize_variable_values, no_variables()
    yield place("finalize_variable_values", ("SGD.finalize",), variables, lambda x: finalize([x]))
    yield from _of_models(place)
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
        "variables": no_lists() | {"none": [], "a tensor in it": [tf.ones([2])], "3 in it": [3]},
        "optimizer": {k: v for k, v in OPTIMIZER.items() if k not in ("its base",)},
        "learning_rate_decay_fn": {
            k: v for k, v in RATE.items() if "function" not in k and "class" not in k
        },
        "dtype": CHOICE,
        "clip_gradients": POSITIVE,
        "iter_size": COUNT | {"0": 0},
        "freeze_variables_regex": {k: v for k, v in PATTERNS.items() if not isinstance(v, str)},
        "larc_params": {"a list": [1], "text": "a", "3": 3, "nothing": {}, "1": {"larc_eta": 1}},
        "summaries": {"unknown": ["qqq"], "3": 3},
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
        return report.MeasuredRates.from_dict({"format": RATES["format"], **given})

    numbers = NO_NUMBERS | NO_FINITE | NOTHING
    whole: dict[str, dict[str, Any]] = {
        "constant": {"rates": {"w": 0.5}},
        "global": {"rate": 0.5},
        "piecewise": {"rates": {"w": 0.5}, "steps": (1.0, 2.0), "curve": (1.0, 0.5)},
        "power_law": {"rates": {"w": 0.5}, "reference_step": 2.0, "exponent": -0.5},
    }
    for kind, given in whole.items():
        yield place(
            "MeasuredRates(kind=...)",
            ("MeasuredRates: kind",),
            CHOICE | {"a long kind": LONG},
            lambda x, given=given: report.MeasuredRates(x, **given),
        )
        for name in given:
            yield place(
                f"MeasuredRates('{kind}', {name}=...)",
                ("MeasuredRates: ",),
                numbers,
                lambda x, kind=kind, given=given, name=name: report.MeasuredRates(
                    kind, **{**given, name: x}
                ),
            )
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
        ("exponent", "a rate would"),
        numbers | {"1e29": 1e29, "-1e29": -1e29, "too steep in the end": 4.0},
        lambda x: made(**law, reference_step=1.0, exponent=x),
    )
    yield place(
        "LayerwiseRates(reference_step=...)",
        ("reference_step",),
        POSITIVE | NOTHING,
        lambda x: made(**law, reference_step=x, exponent=math.e),
    )


def _of_models(place: Any) -> Iterator[Any]:
    """What takes models and meshes."""
    mesh = tf_graft.dtensor.create_mesh({"x": 2, "y": 2})
    things = no_lists() | {"True": True, "NaN": NAN}
    no_paths = {k: v for k, v in things.items() if k not in ("text", "bytes")}
    given = {k: v for k, v in things.items() if k != "None"}
    sizes = {k: v for k, v in (COUNT | {"0": 0}).items() if k != "-1"}
    create_mesh, layout_map = tf_graft.dtensor.create_mesh, tf_graft.dtensor.LayoutMap
    dims = things | {f"a size, {k}": {"x": v, "y": -1} for k, v in sizes.items()}
    yield place("create_mesh", ("create_mesh",), dims, create_mesh)
    devices = given | {"3 in it": [3], "none": []}
    yield place("create_mesh", ("create_mesh",), devices, lambda x: create_mesh({"x": -1}, x))
    yield place("LayoutMap", ("LayoutMap",), things, layout_map)
    lay = {k: v for k, v in given.items() if k != "a dict"}
    yield place("LayoutMap", ("LayoutMap",), lay, lambda x: layout_map(mesh, x))
    specs = things | {"no dimension": ["z"], "twice": ["x", "x"], "a number in it": [3]}
    yield place("LayoutMap", ("LayoutMap",), specs, lambda x: layout_map(mesh, {"w": x}))
    expressions = {"deep": "(" * 5_000 + "a" + ")" * 5_000, "long": f"({LONG}", "(": "("}
    expressions |= {"a{9}": "a{99999999999999}", "3": 3, "None": None}
    spec = ["x", None]
    yield place("LayoutMap", ("LayoutMap",), expressions, lambda x: layout_map(mesh, {x: spec}))
    model = keras.Sequential([keras.Input([2]), keras.layers.Dense(1)])
    distribute, empty = tf_graft.dtensor.distribute, layout_map(mesh)
    yield place("distribute", ("distribute",), things, lambda x: distribute(x, empty))
    yield place("distribute", ("distribute",), things, lambda x: distribute(model, x))
    for name in ("multi_step", "multi_worker", "get_regularization_loss"):
        yield place(name, (name,), things, getattr(tf_graft, name))
    shards = no_lists() | {"a tensor in it": [tf.ones([2])]}
    yield place("shards", ("shards",), shards, tf_graft.shards)
    swaps = {k: v for k, v in things.items() if k != "True"}
    yield place("CenterWeights", ("swap_on_epoch",), swaps, tf_graft.CenterWeights)
    recorder = report.GraftRecorder
    yield place("GraftRecorder", ("path",), no_paths, recorder)
    yield place("GraftRecorder", ("every",), FROM_ONE, lambda x: recorder("/tmp/none", x))
