"""Values that make no sense, by the kind of argument that they are given for."""

import fractions
import math
from typing import Any

import keras
import numpy as np
import tensorflow as tf

Values = dict[str, Any]  # by the words that an attack calls them by

NAN, INF = math.nan, math.inf
schedules = keras.optimizers.schedules


class Odd(schedules.LearningRateSchedule):
    """A schedule that returns whatever it is given."""

    def __init__(self, value: Any):
        self.value = value

    def __call__(self, step: Any) -> Any:
        """The value, whatever the step."""
        return self.value


LONG = "x" * 200_000
DEEP: Any = "sgd"
for _ in range(300):
    DEEP = {"name": "larc", "optimizer": DEEP}

NO_NUMBERS: Values = {
    "text": "0.1",
    "a long text": LONG,
    "text nan": "nan",
    "bytes": b"1",
    "True": True,
    "NumPy's True": np.True_,
    "a list": [0.1],
    "an empty dict": {},
    "a complex number": 1j,
    "an array": np.array([0.1]),
    "an object": object(),
    "a class": int,
}
NO_FINITE: Values = {
    "NaN": NAN,
    "infinity": INF,
    "-infinity": -INF,
    "NumPy's NaN": np.float32(NAN),
    "a NaN array": np.array(NAN),
    "1e39": 1e39,
    "-1e39": -1e39,
    "1e300": 1e300,
    "10^400": 10**400,
    "-10^400": -(10**400),
    "10^5000": 10**5000,
    "a fraction above float64": fractions.Fraction(10**400, 3),
}
TINY: Values = {"1e-39": 1e-39, "1e-300": 1e-300, "5e-324": 5e-324}
NOTHING: Values = {"None": None}

POSITIVE = NO_NUMBERS | NO_FINITE | TINY | {"0": 0, "-0.0": -0.0, "-1": -1, "-1e-9": -1e-9}
NOT_NEGATIVE = NO_NUMBERS | NO_FINITE | TINY | {"-1": -1, "-1e-9": -1e-9, "-1e-300": -1e-300}
UNIT = NOT_NEGATIVE | {"1.1": 1.1, "2": 2, "1.0000001": 1.0000001}
INSIDE = UNIT | {"0": 0, "-0.0": -0.0, "1": 1}
BETA = UNIT | {"1": 1, "1 in float32": 0.9999999999, "above 1 - 2^-25": 1 - 2.0**-26}
ABOVE_ONE = POSITIVE | {"1": 1, "0.5": 0.5, "1 in float32": 1 + 1e-10}
COUNT = (
    NO_NUMBERS
    | NO_FINITE
    | TINY
    | {"-1": -1, "1.5": 1.5, "1e29": 1e29, "10^30": 10**30, "2^53 + 1": 2**53 + 1, "2^63": 2**63}
)
FROM_ONE = COUNT | {"0": 0, "-0.0": -0.0}
FROM_TWO = FROM_ONE | {"1": 1}
BOOLEAN: Values = {
    **{"1": 1, "0": 0, "text": "yes", "None": None, "an empty list": [], "1.0": 1.0},
    **{"a tensor": tf.constant(True), "an array": np.array([True]), "NaN": NAN},
}
CHOICE: Values = {
    **{
        "another": "other",
        "empty text": "",
        "None": None,
        "1": 1,
        "NaN": NAN,
        "an object": object(),
    },
    **{
        "a list": ["auto"],
        "a dict": {},
        "an array": np.array(["auto", "skip"]),
        "10^5000": 10**5000,
    },
}
CHOICE_OR_NONE: Values = {kind: value for kind, value in CHOICE.items() if kind != "None"}
PATTERNS: Values = {
    **{"text": "bias", "bytes": b"bias", "3": 3, "a dict": {"bias": 1}, "0.1": 0.1, "True": True},
    **{"a number in it": ["bias", 3], "None in it": [None], "unbalanced": ["("], "NaN": NAN},
    **{"too many times": ["a{99999999999999}"], "a tensor": tf.constant("bias")},
    **{"an array": np.array(["a"]), "nested": [["bias"]], "a star": ["*"]},
    **{"deep": ["(" * 5_000 + "a" + ")" * 5_000], "long": [LONG + "("]},
}
MULTIPLIERS: Values = {
    **{"text": "bias", "3": 3, "a list": [("bias", 1.0)], "NaN": NAN, "True": True},
    **{f"a pattern, {key}": {key: 1.0} for key in ("(", "*", "a{99999999999999}")},
    **{f"a key, {key!r}": {key: 1.0} for key in (3, None, b"bias")},
    **{f"a multiplier, {name}": {"bias": value} for name, value in NOT_NEGATIVE.items()},
    "a callable": {"bias": lambda: 1.0},
}
AXES: Values = {
    **{"text": "kernel", "3": 3, "a list": [("kernel", None)], "NaN": NAN, "True": True},
    **{f"a pattern, {key}": {key: None} for key in ("(", "*")},
    **{f"axes, {x!r}": {"kernel": x} for x in (3, "matrix", {"inputs": [0]}, {"inputs": 0})},
}
COEFFICIENTS: Values = {
    **{"text": "abc", "3": 3, "None": None, "two": (1.0, 2.0), "none": [], "NaN": (1.0, 2.0, NAN)},
    **{"a list of twos": [(1.0, 2.0)], "texts": ["abc"]},
}
NAME: Values = {
    **{"empty": "", "a slash": "a/b", "a space": "two words", "3": 3, "bytes": b"adam"},
    **{"a line": "a\n", "accents": "é", "a list": ["a"], "True": True, "a colon": "a:0"},
}
MESH: Values = {"8": 8, "text": "x=2", "a list": ["x"], "True": True, "a dict": {}, "NaN": NAN}
OPTIMIZER: Values = {
    **{"3": 3, "None": None, "a class": dict, "text": "no_such", "empty text": "", "NaN": NAN},
    **{"an empty dict": {}, "no name": {"learning_rate": 0.1}, "a layer": "dense", "True": True},
    **{"a bad argument": {"name": "sgd", "momentum": 2}, "a list": ["sgd"], "bytes": b"sgd"},
    **{
        "an unknown argument": {"name": "sgd", "qqq": 2},
        "a rate": {"name": "sgd", "learning_rate": NAN},
    },
    **{"a class_name that is none": {"class_name": "NoSuch", "config": {}}},
    **{"deep": DEEP, "a long name": LONG, "a long key": {"name": "sgd", LONG: 1}},
    **{"a long class_name": {"class_name": LONG, "config": {}}},
    **{"a number for a name": {"name": 3}, "its base": "Optimizer", "a tensor": tf.constant(1.0)},
}
COMPUTED: Values = {
    "a schedule of NaN": Odd(NAN),
    "a schedule of infinity": Odd(INF),
    "a schedule below 0": Odd(-0.1),
    "a schedule of 1e39": Odd(1e39),
    "a schedule of text": Odd("0.1"),
    "a schedule of None": Odd(None),
    "a schedule of True": Odd(True),
    "a schedule of a vector": Odd([0.1, 0.2]),
    "a schedule of a NaN tensor": Odd(tf.constant(NAN)),
    "a schedule of a NaN variable": Odd(tf.Variable(NAN)),
    "Keras' with a NaN": schedules.ExponentialDecay(NAN, 10, 0.5),
    "Keras' below 0": schedules.CosineDecay(-1.0, 10),
    "Keras' with no steps": schedules.PolynomialDecay(INF, 10),
    "a class of schedules": schedules.CosineDecay,
    "a function of one argument": lambda step: 0.1,
    "a config of nothing": {"class_name": "NoSuch", "config": {}},
    "a config of a layer": {"class_name": "Dense", "config": {"units": 1}},
    "a config of no arguments": {"class_name": "ExponentialDecay", "config": {}},
    "a config of NaN": {
        "class_name": "ExponentialDecay",
        "config": {"initial_learning_rate": NAN, "decay_steps": 1, "decay_rate": 0.5},
    },
}
# Seen when they are called, which is in a step.
CALLED: Values = {
    "a function of None": lambda: None,
    "a function of text": lambda: "0.1",
    "a function of True": lambda: True,
    "a function of a vector": lambda: [0.1, 0.2],
    "a function of a matrix": lambda: tf.ones([1, 1]),
    "a function of an object": lambda: object(),
}
RATE = NOT_NEGATIVE | COMPUTED
# What a rate is set to, and may be a tensor.
SET_RATE = (
    RATE
    | NOTHING
    | {
        "a NaN tensor": tf.constant(NAN),
        "a negative tensor": tf.constant(-0.1),
        "an infinite tensor": tf.constant(INF),
        "a float64 tensor of 1e300": tf.constant(1e300, tf.float64),
        "a tiny float64 tensor": tf.constant(1e-300, tf.float64),
        "a vector": tf.constant([0.1]),
        "a matrix": tf.constant([[0.1]]),
        "a bool tensor": tf.constant(True),
        "a text tensor": tf.constant("0.1"),
        "a complex tensor": tf.constant(1j),
        "a NaN variable": tf.Variable(NAN),
        "a negative variable": keras.Variable(-0.1),
        "a half NaN": tf.constant(NAN, tf.bfloat16),
    }
)
STEP: Values = {
    **{"-1": -1, "-5.0": -5.0, "NaN": NAN, "infinity": INF, "text": "1", "None": None, "1j": 1j},
    **{"10^400": 10**400, "2^63": 2**63, "1e29": 1e29, "an object": object(), "True": True},
    **{"a negative tensor": tf.constant(-1), "a NaN tensor": tf.constant(NAN), "a dict": {}},
    **{"negative in an array": np.array([1, -1]), "a text tensor": tf.constant("1")},
}


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
    **{"a long name": LONG, "a long key": {"name": "backoff", LONG: 1}},
}
BOUNDARIES = each_in(COUNT, 0) | {"out of order": [2, 1], "twice": [1, 1], "one": [1]}
RATES = {"format": "tf_graft layerwise rates 1", "kind": "global", "rate": 0.5}
NO_RATES: Values = {
    **{f"a rate, {k}": {**RATES, "rate": v} for k, v in (NOT_NEGATIVE | NOTHING).items()},
    **{"3": 3, "None": None, "a path": "/no/such/rates.json", "a list": [0.5], "no format": {}},
    **{
        "a long path": LONG,
        "a long kind": {**RATES, "kind": LONG},
        "a long key": {**RATES, LONG: 1},
    },
    **{"a folder": "/", "a kind": {**RATES, "kind": "qqq"}, "more": {**RATES, "qqq": 1}},
}
