"""Learning rates as functions of the step, for any Keras optimizer."""

from tf_graft.schedules import lr_policies
from tf_graft.schedules.cosine_restarts import CosineRestarts
from tf_graft.schedules.cyclical import Cyclical
from tf_graft.schedules.cyclical_momentum import CyclicalMomentum
from tf_graft.schedules.exp_decay import ExpDecay
from tf_graft.schedules.fixed_lr import FixedLR
from tf_graft.schedules.inv_poly_decay import InvPolyDecay
from tf_graft.schedules.lr_policy import LrPolicy
from tf_graft.schedules.one_cycle import OneCycle
from tf_graft.schedules.piecewise_constant import PiecewiseConstant
from tf_graft.schedules.poly_decay import PolyDecay
from tf_graft.schedules.power_decay import PowerDecay, PowerLinearDecay
from tf_graft.schedules.registry import get, list_schedules
from tf_graft.schedules.sequence import Sequence
from tf_graft.schedules.step_cosine import StepCosine
from tf_graft.schedules.transformer import Noam, TransformerSchedule
from tf_graft.schedules.warmup import Warmup
from tf_graft.schedules.warmup_stable_decay import WarmupStableDecay

__all__ = [
    "CosineRestarts",
    "Cyclical",
    "CyclicalMomentum",
    "ExpDecay",
    "FixedLR",
    "InvPolyDecay",
    "LrPolicy",
    "Noam",
    "OneCycle",
    "PiecewiseConstant",
    "PolyDecay",
    "PowerDecay",
    "PowerLinearDecay",
    "Sequence",
    "StepCosine",
    "TransformerSchedule",
    "Warmup",
    "WarmupStableDecay",
    "get",
    "list_schedules",
    "lr_policies",
]
