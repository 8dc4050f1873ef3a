"""Local steps, then one push of their mean to a center: on replicas, workers, parameter servers."""

from tf_graft.agn.agn import AGN, ScaledAGN
from tf_graft.agn.center_weights import CenterWeights
from tf_graft.agn.outer_steps import diloco, lookahead

__all__ = ["AGN", "CenterWeights", "ScaledAGN", "diloco", "lookahead"]
