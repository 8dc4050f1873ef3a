"""Optimizers around other optimizers, which change their gradients or steps."""

from tf_graft.wrappers.cautious import Cautious
from tf_graft.wrappers.ema_nesterov import EMANesterov
from tf_graft.wrappers.gradients import AdaptiveGradientClipping, GradientCentralization
from tf_graft.wrappers.larc import LARC
from tf_graft.wrappers.multi_optimizer import MultiOptimizer
from tf_graft.wrappers.norms import Hyperball, RadialBrake

__all__ = [
    "LARC",
    "AdaptiveGradientClipping",
    "Cautious",
    "EMANesterov",
    "GradientCentralization",
    "Hyperball",
    "MultiOptimizer",
    "RadialBrake",
]
