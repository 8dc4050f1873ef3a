"""Patterns for groups of a model's variables, as optimizers take them."""

from tf_graft.fine_tuning.groups import layerwise_decay, no_decay

__all__ = ["layerwise_decay", "no_decay"]
