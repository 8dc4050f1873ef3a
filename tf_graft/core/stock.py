"""Converts the saved state of Keras' own optimizers to that of their namesakes here.

Keras saves an optimizer's name, and its variables by position: the count and the rate first, then
averages, accumulators and slots.
"""

import re
from collections.abc import Sequence

import keras
import numpy as np
import tensorflow as tf

from tf_graft.core.identity import Named
from tf_graft.core.state import Saved, Value, Values

# Roles in the order in which a Keras optimizer keeps them. The roles of a group alternate, variable
# by variable.
Groups = Sequence[Sequence[str]]


def is_of(name: str, author: str | None) -> bool:
    """Whether `author`, such as `adam_1`, is a Keras optimizer of that class name."""
    return re.sub(r"_\d+$", "", author or "").replace("_", "").lower() == name.lower()


def never_stepped(values: Values) -> bool:
    """Whether the optimizer has made no update: all values but its rate are zero."""
    return bool(values) and not any(np.any(v) for i, v in values.items() if i != "1")


def matched(values: Values, names: Sequence[str], named: Named) -> Values | None:
    """The values by name, for names in Keras' order; None if one is missing or of another shape.

    There may be more values than names.
    """
    result = {name: values.get(str(i)) for i, name in enumerate(names)}
    fits = all(x is not None and x.shape == tuple(named[n].shape) for n, x in result.items())
    return result if fits else None


def widened(value: Value, variable: keras.Variable) -> Value:
    """The value in the variable's dtype, if that is as wide or wider and of the same kind.

    Keras keeps state in the precision of the weights, and some of its counters are narrower.
    """
    dtype = tf.as_dtype(variable.dtype)
    integers = dtype.is_integer and np.issubdtype(value.dtype, np.signedinteger)
    floats = dtype.is_floating and value.dtype in (np.float16, tf.bfloat16.as_numpy_dtype)
    wider = value.dtype.itemsize <= dtype.size
    taken = (integers or floats) and wider
    return np.asarray(value).astype(dtype.as_numpy_dtype) if taken else value


def completed(values: Saved, named: Named, micro_steps: int | None) -> Saved:
    """Adds the engine's own state as it would be after the same steps.

    Args:
        values: the values by name.
        named: the optimizer's variables.
        micro_steps: how many micro-steps make an update; Keras counts these.
    """
    counted = values["iteration"]
    done = counted // micro_steps if micro_steps else counted
    result = {
        name: np.zeros(v.shape, np.int64) for name, v in named.items() if name.endswith("_steps")
    }
    result |= {**values, "iteration": done} | ({"micro_steps": counted} if micro_steps else {})
    for name, variable in named.items():
        path, _, role = name.rpartition("/")
        if role == "average_step":
            result[name] = np.full(variable.shape, done)
        elif role == "accumulated_rows":
            sums = values[f"{path}/gradient_accumulator"]
            result[name] = np.any(sums != 0, axis=tuple(range(1, sums.ndim)))
    return result
