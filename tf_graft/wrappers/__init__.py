"""Optimizers that contain other optimizers."""

from tf_graft.wrappers.adagraft import AdaGraft
from tf_graft.wrappers.cautious import Cautious
from tf_graft.wrappers.gradients import AdaptiveGradientClipping, GradientCentralization
from tf_graft.wrappers.hyperball import Hyperball
from tf_graft.wrappers.larc import LARC
from tf_graft.wrappers.layerwise_rates import LayerwiseRates
from tf_graft.wrappers.multi_optimizer import MultiOptimizer

__all__ = [
    "LARC",
    "AdaGraft",
    "AdaptiveGradientClipping",
    "Cautious",
    "GradientCentralization",
    "Hyperball",
    "LayerwiseRates",
    "MultiOptimizer",
]
