"""All uses of private names of Keras and TensorFlow in this package.

No other module of the package uses a private name. `names` lists each of them with its reason and
with what would replace it, and `tests/test_keras_contract.py` fails with the name when a release
drops one.
"""

from tf_graft.core import environment as environment  # first: it prepares the process
from tf_graft.core.keras_contract.checkpoints import (
    SavedAsTwin,
    as_large_as,
    author_of,
    build_for_loading,
    entry,
    held_by,
    restored,
    take_for_restored,
)
from tf_graft.core.keras_contract.graphs import (
    check_captured,
    check_order_on_mesh,
    function_named,
    in_xla,
    is_variable,
    opaque,
    program_on_mesh,
)
from tf_graft.core.keras_contract.messages import FunctionDef, NodeDef, TrackableObjectGraph
from tf_graft.core.keras_contract.models import (
    NORMALIZATIONS,
    calling_models,
    layers_of,
    make_metrics,
    make_metrics_of_one_replica,
    parts_of,
)
from tf_graft.core.keras_contract.on_stand_ins import (
    OnStandIns,
    Probe,
    decay_exclusions,
    on_stand_ins,
    own_way,
)
from tf_graft.core.keras_contract.optimizers import (
    ScalesLoss,
    bound,
    count_of,
    declare,
    deferred,
    keep,
    key_of,
    lead_checkpoints,
    rate_of,
    rate_variable,
    rates_kept,
    share_schedule,
    with_private_methods,
    without_schedules,
)
from tf_graft.core.keras_contract.variables import (
    OwnVariable,
    ShardedVariable,
    StoredVariable,
    named,
    rename,
    set_ordinary_storage,
    set_storage,
    storage,
)

__all__ = [
    "NORMALIZATIONS",
    "FunctionDef",
    "NodeDef",
    "OnStandIns",
    "OwnVariable",
    "Probe",
    "SavedAsTwin",
    "ScalesLoss",
    "ShardedVariable",
    "StoredVariable",
    "TrackableObjectGraph",
    "as_large_as",
    "author_of",
    "bound",
    "build_for_loading",
    "calling_models",
    "check_captured",
    "check_order_on_mesh",
    "count_of",
    "decay_exclusions",
    "declare",
    "deferred",
    "entry",
    "function_named",
    "held_by",
    "in_xla",
    "is_variable",
    "keep",
    "key_of",
    "layers_of",
    "lead_checkpoints",
    "make_metrics",
    "make_metrics_of_one_replica",
    "named",
    "on_stand_ins",
    "opaque",
    "own_way",
    "parts_of",
    "program_on_mesh",
    "rate_of",
    "rate_variable",
    "rates_kept",
    "rename",
    "restored",
    "set_ordinary_storage",
    "set_storage",
    "share_schedule",
    "storage",
    "take_for_restored",
    "with_private_methods",
    "without_schedules",
]
