"""Mixed precision, and the loss scalers that choose its loss scale."""

from tf_graft.scaling.backoff import BackoffScaler
from tf_graft.scaling.fixed import FixedScaler
from tf_graft.scaling.logger import LossScaleLogger
from tf_graft.scaling.logmax import LogMaxScaler
from tf_graft.scaling.master_regularizer import MasterRegularizer
from tf_graft.scaling.mixed_precision import MixedPrecision
from tf_graft.scaling.registry import AutomaticLossScaler, get
from tf_graft.scaling.scaler import LossScaler

__all__ = [
    "AutomaticLossScaler",
    "BackoffScaler",
    "FixedScaler",
    "LogMaxScaler",
    "LossScaleLogger",
    "LossScaler",
    "MasterRegularizer",
    "MixedPrecision",
    "get",
]
