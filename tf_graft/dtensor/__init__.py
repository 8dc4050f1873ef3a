"""Training Keras 3 models on a DTensor mesh."""

from tf_graft.core.places.mesh_tensors import from_mesh, to_mesh
from tf_graft.core.places.meshes import create_mesh, logical_cpus
from tf_graft.dtensor.clients import client_share
from tf_graft.dtensor.costs import memory, traffic
from tf_graft.dtensor.dataset import DTensorDataset, pack_batch
from tf_graft.dtensor.layout_map import LayoutMap
from tf_graft.dtensor.model import collect, distribute
from tf_graft.dtensor.placements import layout_map_of
from tf_graft.dtensor.replicated import replicate

__all__ = [
    "DTensorDataset",
    "LayoutMap",
    "client_share",
    "collect",
    "create_mesh",
    "distribute",
    "from_mesh",
    "layout_map_of",
    "logical_cpus",
    "memory",
    "pack_batch",
    "replicate",
    "to_mesh",
    "traffic",
]
