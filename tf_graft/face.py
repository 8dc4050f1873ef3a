"""The public names of tf_graft. Importing them registers the classes with Keras."""

from tf_graft import algorithm, averages, dtensor, report, scaling, schedules, vocabulary
from tf_graft.agn import AGN, CenterWeights, diloco, lookahead
from tf_graft.compose.of_keras import get, wrap
from tf_graft.compose.to_keras import to_keras
from tf_graft.core.arguments.decay_modes import CautiousDecay, CorrectedDecay
from tf_graft.core.arguments.registry import deserialize, register, serialize
from tf_graft.core.arguments.row_clips import CowClip
from tf_graft.core.arguments.row_frequency import RowFrequency
from tf_graft.core.arguments.settable import Settable
from tf_graft.core.errors import CheckpointError
from tf_graft.core.optimizer import Optimizer
from tf_graft.core.pipeline.clipping import clip_by_global_norm
from tf_graft.core.places.replicas import shards
from tf_graft.core.state.slots import Slot
from tf_graft.fit import (
    EvaluationWeights,
    LearningRateCurve,
    Unfreeze,
    find_learning_rate,
    layerwise_decay,
    multi_step,
    no_decay,
)
from tf_graft.grafting import AdaGraft, LayerwiseRates
from tf_graft.listing import list_optimizers
from tf_graft.matrices.found import axes_of
from tf_graft.monitor import Monitor
from tf_graft.openseq2seq.optimize_loss import get_regularization_loss, optimize_loss
from tf_graft.optimizers import (
    ADOPT,
    COCOB,
    LAMB,
    LARS,
    MARS,
    SGD,
    SOAP,
    AdaBelief,
    Adadelta,
    Adafactor,
    Adagrad,
    Adam,
    Adamax,
    AdamW,
    Adan,
    AdEMAMix,
    Ftrl,
    Lion,
    Momentum,
    Muon,
    NAdam,
    NAdamW,
    NorMuon,
    NovoGrad,
    Prodigy,
    RAdam,
    RMSprop,
    RowWiseAdagrad,
    RowWiseAdam,
    ScheduleFreeAdamW,
    ScheduleFreeRAdam,
    ScheduleFreeSGD,
    SGDSaI,
    Shampoo,
    Yogi,
)
from tf_graft.processes.multi_worker import multi_worker
from tf_graft.scaling import MixedPrecision
from tf_graft.tf_keras_models import legacy
from tf_graft.wrappers import (
    LARC,
    AdaptiveGradientClipping,
    Cautious,
    GradientCentralization,
    Hyperball,
    MultiOptimizer,
)

__all__ = [
    "ADOPT",
    "AGN",
    "COCOB",
    "LAMB",
    "LARC",
    "LARS",
    "MARS",
    "SGD",
    "SOAP",
    "AdEMAMix",
    "AdaBelief",
    "AdaGraft",
    "Adadelta",
    "Adafactor",
    "Adagrad",
    "Adam",
    "AdamW",
    "Adamax",
    "Adan",
    "AdaptiveGradientClipping",
    "Cautious",
    "CautiousDecay",
    "CenterWeights",
    "CheckpointError",
    "CorrectedDecay",
    "CowClip",
    "EvaluationWeights",
    "Ftrl",
    "GradientCentralization",
    "Hyperball",
    "LayerwiseRates",
    "LearningRateCurve",
    "Lion",
    "MixedPrecision",
    "Momentum",
    "Monitor",
    "MultiOptimizer",
    "Muon",
    "NAdam",
    "NAdamW",
    "NorMuon",
    "NovoGrad",
    "Optimizer",
    "Prodigy",
    "RAdam",
    "RMSprop",
    "RowFrequency",
    "RowWiseAdagrad",
    "RowWiseAdam",
    "SGDSaI",
    "ScheduleFreeAdamW",
    "ScheduleFreeRAdam",
    "ScheduleFreeSGD",
    "Settable",
    "Shampoo",
    "Slot",
    "Unfreeze",
    "Yogi",
    "algorithm",
    "averages",
    "axes_of",
    "clip_by_global_norm",
    "deserialize",
    "diloco",
    "dtensor",
    "find_learning_rate",
    "get",
    "get_regularization_loss",
    "layerwise_decay",
    "legacy",
    "list_optimizers",
    "lookahead",
    "multi_step",
    "multi_worker",
    "no_decay",
    "optimize_loss",
    "register",
    "report",
    "scaling",
    "schedules",
    "serialize",
    "shards",
    "to_keras",
    "vocabulary",
    "wrap",
]
