"""What training needs around an optimizer: callbacks, the finder, fine-tuning."""

from tf_graft.fit.evaluation_weights import EvaluationWeights
from tf_graft.fit.finder import LearningRateCurve, find_learning_rate
from tf_graft.fit.multi_step import multi_step
from tf_graft.fit.unfreeze import Unfreeze
from tf_graft.fit.variable_groups import layerwise_decay, no_decay

__all__ = [
    "EvaluationWeights",
    "LearningRateCurve",
    "Unfreeze",
    "find_learning_rate",
    "layerwise_decay",
    "multi_step",
    "no_decay",
]
