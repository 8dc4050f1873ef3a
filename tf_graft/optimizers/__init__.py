"""The optimizers: each declares slots and computes a step for the engine in `tf_graft.core`."""

from tf_graft.optimizers.adabelief import AdaBelief
from tf_graft.optimizers.adadelta import Adadelta
from tf_graft.optimizers.adafactor import Adafactor
from tf_graft.optimizers.adagrad import Adagrad
from tf_graft.optimizers.adam import Adam
from tf_graft.optimizers.adamax import Adamax
from tf_graft.optimizers.adamw import AdamW
from tf_graft.optimizers.adan import Adan
from tf_graft.optimizers.ademamix import AdEMAMix
from tf_graft.optimizers.adopt import ADOPT
from tf_graft.optimizers.cocob import COCOB
from tf_graft.optimizers.ftrl import Ftrl
from tf_graft.optimizers.kl_shampoo import KLShampoo
from tf_graft.optimizers.kl_soap import KLSOAP
from tf_graft.optimizers.lamb import LAMB
from tf_graft.optimizers.lars import LARS
from tf_graft.optimizers.lion import Lion
from tf_graft.optimizers.mars import MARS
from tf_graft.optimizers.momentum import Momentum
from tf_graft.optimizers.muon import Muon
from tf_graft.optimizers.nadam import NAdam
from tf_graft.optimizers.nadamw import NAdamW
from tf_graft.optimizers.normuon import NorMuon
from tf_graft.optimizers.novograd import NovoGrad
from tf_graft.optimizers.prodigy import Prodigy
from tf_graft.optimizers.radam import RAdam
from tf_graft.optimizers.rmsprop import RMSprop
from tf_graft.optimizers.rowwise_adagrad import RowWiseAdagrad
from tf_graft.optimizers.rowwise_adam import RowWiseAdam
from tf_graft.optimizers.schedule_free import (
    ScheduleFreeAdamW,
    ScheduleFreeRAdam,
    ScheduleFreeSGD,
)
from tf_graft.optimizers.sgd import SGD
from tf_graft.optimizers.sgdsai import SGDSaI
from tf_graft.optimizers.shampoo import Shampoo
from tf_graft.optimizers.soap import SOAP
from tf_graft.optimizers.soap_muon import SOAPMuon
from tf_graft.optimizers.yogi import Yogi

__all__ = [
    "ADOPT",
    "COCOB",
    "KLSOAP",
    "LAMB",
    "LARS",
    "MARS",
    "SGD",
    "SOAP",
    "AdEMAMix",
    "AdaBelief",
    "Adadelta",
    "Adafactor",
    "Adagrad",
    "Adam",
    "AdamW",
    "Adamax",
    "Adan",
    "Ftrl",
    "KLShampoo",
    "Lion",
    "Momentum",
    "Muon",
    "NAdam",
    "NAdamW",
    "NorMuon",
    "NovoGrad",
    "Prodigy",
    "RAdam",
    "RMSprop",
    "RowWiseAdagrad",
    "RowWiseAdam",
    "SGDSaI",
    "SOAPMuon",
    "ScheduleFreeAdamW",
    "ScheduleFreeRAdam",
    "ScheduleFreeSGD",
    "Shampoo",
    "Yogi",
]
