"""Loss scales for half precision: when to change them."""

from tf_graft.scaling.backoff import BackoffScaler
from tf_graft.scaling.fixed import FixedScaler
from tf_graft.scaling.logmax import LogMaxScaler
from tf_graft.scaling.registry import AutomaticLossScaler, get
from tf_graft.scaling.scaler import LossScaler

__all__ = [
    "AutomaticLossScaler",
    "BackoffScaler",
    "FixedScaler",
    "LogMaxScaler",
    "LossScaler",
    "get",
]
