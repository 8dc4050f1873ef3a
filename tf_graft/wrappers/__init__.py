"""Optimizers made of optimizers."""

from tf_graft.wrappers.adagraft import AdaGraft
from tf_graft.wrappers.larc import LARC
from tf_graft.wrappers.layerwise_rates import LayerwiseRates

__all__ = ["LARC", "AdaGraft", "LayerwiseRates"]
