"""The base class of LARS and LAMB, which scale the learning rate with each variable's norm."""

from collections.abc import Sequence
from typing import Any, Unpack

import tensorflow as tf

from tf_graft import algorithm as ta


class Layerwise(ta.Optimizer):
    """An optimizer with a learning rate of its own for each variable that is not excluded.

    Its `step` also receives `decay`, the variable's weight decay, and `adapts`, whether the
    variable has a learning rate of its own.

    Args:
        learning_rate: number, at least 0, or schedule.
        weight_decay_rate: weight decay inside the ratio, unlike the common `weight_decay`.
        exclude_from_weight_decay: patterns of variables without weight decay of either kind.
        exclude_from_layer_adaptation: patterns of variables without a learning rate of their own;
            None for those of `exclude_from_weight_decay`.
        **common: see `tf_graft.algorithm.Common`.
    """

    rowwise = False
    skips_zero_rows = True

    def __init__(  # type: ignore[misc]  # a common argument with a default of its own
        self,
        learning_rate: ta.RateLike,
        weight_decay_rate: ta.AtLeastZero,
        exclude_from_weight_decay: Sequence[str] | None,
        exclude_from_layer_adaptation: ta.OptionalPatterns,
        **common: Unpack[ta.Common],
    ):
        super().__init__(
            learning_rate, exclude_from_weight_decay=exclude_from_weight_decay, **common
        )

    def traits(self, path: str) -> dict[str, Any]:
        undecayed, layers = self.rule.undecayed(path), self.exclude_from_layer_adaptation
        return {
            "decay": 0.0 if undecayed else self.weight_decay_rate,
            "adapts": not (undecayed if layers is None else ta.matches(path, layers)),
        }


def ratio(above: tf.Tensor, below: tf.Tensor) -> tf.Tensor:
    """Returns `above / below`; 1 if either is zero, or if the ratio is not finite."""
    result = ta.quotient(above, below)
    zero, one = ta.scalar(0.0, result.dtype), ta.scalar(1.0, result.dtype)
    says = (above > zero) & (below > zero) & tf.math.is_finite(result)
    return tf.where(says, result, one)
