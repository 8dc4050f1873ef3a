"""The private names of Keras and TensorFlow that the package uses, and what would replace them."""

from typing import NamedTuple


class Private(NamedTuple):
    """A name that any version may drop.

    Attributes:
        reason: what the package uses it for.
        instead: what would replace it, and what would be lost.
        since: the version of Keras that brought it, if the package supports older ones.
    """

    reason: str
    instead: str
    since: str = ""


MESSAGE = "a module of our own that `protoc` makes of TensorFlow's `.proto` file"


OPTIMIZER_NAMES = {
    "_iterations": Private(
        "Keras' trainer and callbacks count steps in this variable",
        "a variable of ours, with `iterations` as a property that returns it",
    ),
    "_learning_rate": Private(
        "the rate as given: a variable, a schedule or a callable",
        "an attribute of ours that keeps the learning rate as it was given",
    ),
    "_track_variable": Private(
        "puts a variable into `Optimizer.variables`",
        "`add_variable`, which would create the variable where Keras wants it",
    ),
    "_variables": Private(
        "what `Optimizer.variables` and `set_weights` iterate over",
        "a `variables` property of ours",
    ),
    "_trainable_variables": Private(
        "SwapEMAWeights iterates over it together with the averages",
        "a callback of ours in place of SwapEMAWeights",
    ),
    "_trainable_variables_indices": Private(
        "`_get_variable_index` of Keras optimizers looks here", "a `_get_variable_index` of ours"
    ),
    "_var_key": Private(
        "one key for a Keras variable, its tf.Variable and a replica's copy of it",
        "`id` of the `tf.Variable` that a replica's copy belongs to",
    ),
    "_distribution_strategy": Private(
        "SwapEMAWeights updates through it", "a callback of ours in place of SwapEMAWeights"
    ),
    "_trackable_children": Private(
        "what tf.train.Checkpoint saves and restores of an object",
        "attributes that `tf.train.Checkpoint` tracks by itself, under other keys",
    ),
    "_lookup_dependency": Private(
        "tf.train.Checkpoint asks it for each object that it restores into",
        "attributes that `tf.train.Checkpoint` tracks by itself, under other keys",
    ),
    "_deferred_dependencies": Private(
        "where tf.train.Checkpoint leaves values it has no variable for yet",
        "a refusal to restore before `build`",
    ),
    "_update_uid": Private(
        "the number of the checkpoint that an object was last restored from",
        "a refusal to restore before `build`",
    ),
    "_backend_update_step": Private(
        "Nadam overrides it to do its work once per update",
        "`update_step` for each variable, which Nadam then gets wrong",
    ),
    "_backend_apply_gradients": Private(
        "an optimizer that overrides it cannot be wrapped", "nothing: the check is left out"
    ),
    "_apply_weight_decay": Private(
        "Muon overrides it with a weight decay of its own", "nothing: Muon is refused"
    ),
    "_exclude_from_weight_decay": Private(
        "the keys of variables excluded from decay", "exclusions that are given to our class alone"
    ),
    "_exclude_from_weight_decay_pattern": Private(
        "the pattern of variable names excluded from decay",
        "exclusions that are given to our class alone",
    ),
}
PROVIDED_NAMES = {
    "_model_variables_moving_average": Private(
        "SwapEMAWeights swaps these with the model variables",
        "a callback of ours in place of SwapEMAWeights",
    ),
}
VARIABLE_NAMES = {
    "_dtype": Private(
        "the dtype that the constructor was given, when `_initialize_with_initializer` is called",
        "a dtype that our class keeps from its own constructor",
    ),
    "_shape": Private(
        "the shape that the constructor was given, when `_initialize_with_initializer` is called",
        "a shape that our class keeps from its own constructor",
    ),
    "_initialize": Private(
        "gives a variable an ordinary tf.Variable, with its aggregation",
        "a `keras.Variable` created within the scope of the strategy or mesh",
    ),
    "_initialize_with_initializer": Private(
        "the one place where Keras makes the tf.Variable",
        "a `keras.Variable` created within the scope of the strategy or mesh",
    ),
    "_path": Private(
        "where a variable belongs: a child optimizer's rate belongs to its parent",
        "a `name_scope` around the creation",
    ),
    "_value": Private(
        "the tf.Variable behind a keras.Variable, which a mesh replaces by a DVariable",
        "`assign` on ordinary variables; without it there are no meshes",
    ),
}
MODEL_NAMES = {
    "_flatten_layers": Private(
        "all layers of a model, nested ones too", "`model.layers`, followed down by us"
    ),
    "_symbolic_build": Private(
        "makes the variables of compiled metrics and losses before the first step",
        "a first step on zeros before the state is saved",
    ),
    "_maybe_symbolic_build": Private(
        "averages the first batch over all replicas to make metrics of it, which workers cannot do",
        "a first step on zeros before the state is saved",
    ),
}
LAYER_NAMES = {
    "_embeddings": Private(
        "the table that an `Embedding` looks up rows in, divided by rows on a mesh",
        "a lookup of ours for the class `Embedding`; its subclasses would gather the whole table",
    ),
}
STORE_NAMES = {
    "_h5_entry_group": Private(
        "holds the name of the optimizer that wrote a weights store, and its entries",
        "a load without the check of who wrote the file",
    ),
}
STATUS_NAMES = {
    "_checkpoint": Private(
        "tells which weights a checkpoint that was read has values for",
        "`assert_existing_objects_matched`, which also asks for the metrics of a compiled model",
    ),
}
RESOURCE_NAMES = {
    "_handle_data": Private(
        "tells the handle of a variable from that of a table or an iterator",
        "nothing: every captured resource counts as a variable",
    ),
    "_serialize_to_tensors": Private(
        "by which tf.train.Checkpoint reads a variable",
        "`tf.train.experimental.PythonState` for variables on a mesh",
    ),
    "_restore_from_tensors": Private(
        "by which tf.train.Checkpoint gives a variable its saved value",
        "`tf.train.experimental.PythonState` for variables on a mesh",
    ),
}
GRAPH_NAMES = {
    "_watched_variables": Private(
        "the names of the variables that a function uses", "the names of captured tensors"
    ),
}
OPERATION_NAMES = {
    "_update_input": Private(
        "counts the axes of concatenations from 0, in a step on a mesh: TensorFlow does not notice "
        "that a negative axis is divided",
        "a refusal of concatenations whose axis is negative",
    ),
}
MODULE_NAMES = {
    "keras.src.utils.tracking.no_automatic_dependency_tracking": Private(
        "keeps the model's variables out of the optimizer's own variables when it lists them",
        "a holder that Keras does not look into",
    ),
    "keras.src.saving.saving_lib.H5IOStore": Private(
        "reads the entries of a file of weights before Keras 3.12",
        "a load without the check of declared sizes",
    ),
    "keras.src.saving.saving_lib.safe_get_h5_dataset": Private(
        "reads the entries of a file of weights",
        "a load without the check of declared sizes",
        since="3.12",
    ),
    "keras.src.saving.saving_lib.load_weights_only": Private(
        "what `Model.load_weights` and `keras.saving.load_weights` call",
        "loads that may stop half-way",
    ),
    "keras.src.backend.common.stateless_scope.in_stateless_scope": Private(
        "whether Keras only computes shapes, in a graph that never runs",
        "`keras.StatelessScope`, entered by us",
    ),
    "tensorflow.__internal__.FuncGraph": Private(
        "tells the graph of a function from that of TensorFlow 1",
        "`hasattr` of what such a graph has",
    ),
    "tensorflow.__internal__.distribute.ShardedVariable": Private(
        "tells a variable that is divided among parameter servers",
        "`hasattr` of `variables`, which such a variable has",
    ),
    "tensorflow.core.framework.function_pb2.FunctionDef": Private(
        "the message that describes a function: what a mesh's devices run", MESSAGE
    ),
    "tensorflow.core.framework.node_def_pb2.NodeDef": Private(
        "the message that describes an operation: what a mesh's devices send", MESSAGE
    ),
    "tensorflow.core.protobuf.trackable_object_graph_pb2.TrackableObjectGraph": Private(
        "the message that describes the objects in a checkpoint", MESSAGE
    ),
    "tensorflow.python.ops.control_flow_util.GraphOrParentsInXlaContext": Private(
        "there is no public name for whether XLA will compile the function being traced",
        "an argument that says it",
    ),
    "tensorflow.compiler.tf2xla.ops.gen_xla_ops.xla_optimization_barrier": Private(
        "XLA's barrier, which has no public name", "`tf.raw_ops`, if the barrier comes there"
    ),
    "tensorflow.python.eager.context.context": Private(
        "holds the functions that DTensor made for each device, which have no public name",
        "counts of bytes computed from layouts alone",
    ),
    "tensorflow.dtensor.python.api._dtensor_singleton": Private(
        "whether DTensor has started, after which it reads no environment variables",
        "nothing: the check is left out",
    ),
}
