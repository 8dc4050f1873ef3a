"""Learning rates as functions of the step, for any Keras optimizer."""

from tf_graft.schedules import lr_policies
from tf_graft.schedules.exp_decay import ExpDecay
from tf_graft.schedules.fixed_lr import FixedLR
from tf_graft.schedules.inv_poly_decay import InvPolyDecay
from tf_graft.schedules.lr_policy import LrPolicy
from tf_graft.schedules.piecewise_constant import PiecewiseConstant
from tf_graft.schedules.poly_decay import PolyDecay
from tf_graft.schedules.registry import get, list_schedules
from tf_graft.schedules.transformer import Noam, TransformerSchedule
from tf_graft.schedules.warmup import Warmup

__all__ = [
    "ExpDecay",
    "FixedLR",
    "InvPolyDecay",
    "LrPolicy",
    "Noam",
    "PiecewiseConstant",
    "PolyDecay",
    "TransformerSchedule",
    "Warmup",
    "get",
    "list_schedules",
    "lr_policies",
]
