"""Fine-tuning: groups of a model's variables, and layers that are trained later."""

from tf_graft.fine_tuning.groups import layerwise_decay, no_decay
from tf_graft.fine_tuning.unfreeze import Unfreeze

__all__ = ["Unfreeze", "layerwise_decay", "no_decay"]
