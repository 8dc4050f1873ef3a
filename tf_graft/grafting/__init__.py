"""AdaGraft, what it measures, and the learning rates for each layer that result."""

from tf_graft.grafting.adagraft import AdaGraft
from tf_graft.grafting.layerwise_rates import LayerwiseRates

__all__ = ["AdaGraft", "LayerwiseRates"]
