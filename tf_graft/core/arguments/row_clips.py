"""Limits of the norm of each row's gradient, which `clip_rows` takes."""

from collections.abc import Mapping
from typing import Any

import keras
import tensorflow as tf

from tf_graft.core import checks
from tf_graft.core.arguments.multipliers import by_pattern
from tf_graft.core.arguments.plain import Plain, configured, serialized
from tf_graft.core.checks import shown
from tf_graft.core.types import Config


@keras.saving.register_keras_serializable(package="tf_graft")
class CowClip(Plain):
    """Clips the gradient of each row of an embedding by the row's weights and frequency.

        largest = n * max(ratio * ||w||, lower_bound)       n: how often the batch has the row's id
        g <- g * largest / ||g||                            where ||g|| > largest

    With it, batches of click-through models can be many times larger: keep the learning rate of the
    embeddings, multiply their L2 penalty by the same factor as the batch size, and the learning
    rate of the dense layers by its root. Gradients are of the mean loss of a batch, as in `fit`.

    The ids are counted in the row-sparse gradient of the lookup; a dense gradient is refused. The
    `embeddings_regularizer` of a layer makes the gradient dense; its `activity_regularizer`, which
    penalizes the rows of the batch, does not.

    Args:
        ratio: the largest length of a gradient for each time that the batch has the id, relative to
            the length of the row, above 0.
        lower_bound: the least such length, so that rows of zeros can move, above 0.

    Raises:
        TypeError, ValueError: an argument of the wrong type or out of range.

    Example:
        >>> from tf_graft.optimizers import SGD
        >>> table = tf.Variable([[3.0, 4.0], [0.6, 0.8]])
        >>> optimizer = SGD(1.0, clip_rows={"": CowClip(ratio=0.1)})
        >>> gradient = tf.IndexedSlices(tf.constant([[9.0, 0.0], [0.0, 0.5]]), tf.constant([0, 1]))
        >>> optimizer.apply([gradient], [table])  # to lengths of 0.5 and 0.1
        >>> [[round(x, 2) for x in row] for row in table.numpy().tolist()]
        [[2.5, 4.0], [0.6, 0.7]]

    Reference:
        Zheng et al., 2022, "CowClip: reducing CTR prediction model training time from 12 hours to
        10 minutes on 1 GPU" (arXiv 2204.06240), algorithm 1 and section 5.
    """

    def __init__(self, ratio: float = 1.0, lower_bound: float = 1e-5):
        self.ratio = checks.number("CowClip", "ratio", ratio, 0, open_low=True)
        self.lower_bound = checks.number("CowClip", "lower_bound", lower_bound, 0, open_low=True)

    def largest(self, norms: tf.Tensor, times: tf.Tensor) -> tf.Tensor:
        """Returns the largest length of each row's gradient.

        Args:
            norms: the lengths of the rows' weights, of shape [k, 1, ...].
            times: how often the batch has each row, of the same shape.
        """
        return times * tf.maximum(self.ratio * norms, self.lower_bound)


Limits = Mapping[str, float | CowClip]  # by regular expression


def checked(owner: str, name: str, given: object) -> Limits | None:
    """Returns limits by regular expression; None for none.

    Raises:
        TypeError: the argument is no mapping, a key no string, or a value no number or limit.
        ValueError: a key is no regular expression, or a number is out of range.
    """
    return by_pattern(owner, name, given, "numbers or CowClip", _limit)


def _limit(owner: str, name: str, given: Any) -> float | CowClip:
    if isinstance(given, CowClip):
        return given
    where = f"{owner}({name}={shown(given)})"
    if given is CowClip:
        raise TypeError(f"{where}: this is the class; give a limit, such as CowClip(ratio=1.0).")
    if not isinstance(given, dict):
        return checks.number(owner, name, given, 0, open_low=True)
    return configured(where, given, CowClip, "limit", {"cow_clip": CowClip})


def config(limits: Limits | None) -> Config | None:
    """Returns limits as plain values, from which `checked` makes equal ones."""
    return None if limits is None else {key: serialized(x) for key, x in limits.items()}
