"""The private names of Keras and TensorFlow that the package uses, each with its reason."""

OPTIMIZER_NAMES = {
    "_iterations": "Keras' trainer and callbacks count steps in this variable",
    "_learning_rate": "the rate as given: a variable, a schedule or a callable",
    "_track_variable": "puts a variable into `Optimizer.variables`",
    "_variables": "what `Optimizer.variables` and `set_weights` iterate over",
    "_trainable_variables": "SwapEMAWeights iterates over it together with the averages",
    "_trainable_variables_indices": "`_get_variable_index` of Keras optimizers looks here",
    "_var_key": "one key for a Keras variable, its tf.Variable and a replica's copy of it",
    "_distribution_strategy": "SwapEMAWeights updates through it",
    "_trackable_children": "what tf.train.Checkpoint saves and restores of an object",
    "_lookup_dependency": "tf.train.Checkpoint asks it for each object that it restores into",
    "_deferred_dependencies": "where tf.train.Checkpoint leaves values it has no variable for yet",
    "_update_uid": "the number of the checkpoint that an object was last restored from",
    "_backend_update_step": "Nadam overrides it to do its work once per update",
    "_backend_apply_gradients": "an optimizer that overrides it cannot be wrapped",
    "_apply_weight_decay": "Muon overrides it with a weight decay of its own",
    "_exclude_from_weight_decay": "the keys of variables excluded from decay",
    "_exclude_from_weight_decay_pattern": "the pattern of variable names excluded from decay",
}
PROVIDED_NAMES = {
    "_model_variables_moving_average": "SwapEMAWeights swaps these with the model variables",
}
VARIABLE_NAMES = {
    "_initialize": "gives a variable an ordinary tf.Variable, with its aggregation",
    "_initialize_with_initializer": "the one place where Keras makes the tf.Variable",
    "_path": "where a variable belongs: a child optimizer's rate belongs to its parent",
    "_value": "the tf.Variable behind a keras.Variable, which a mesh replaces by a DVariable",
}
MODEL_NAMES = {
    "_flatten_layers": "all layers of a model, nested ones too",
    "_symbolic_build": "makes the variables of compiled metrics and losses before the first step",
    "_maybe_symbolic_build": "averages the first batch over all replicas to make metrics of it, "
    "which workers cannot do",
}
STORE_NAMES = {
    "_h5_entry_group": "holds the name of the optimizer that wrote a weights store, and its entries"
}
RESOURCE_NAMES = {
    "_handle_data": "tells the handle of a variable from that of a table or an iterator",
    "_serialize_to_tensors": "by which tf.train.Checkpoint reads a variable",
    "_restore_from_tensors": "by which tf.train.Checkpoint gives a variable its saved value",
}
EXPRESSION_NAMES = {"_combine_flags": "the flags in a group of a regular expression"}
GRAPH_NAMES = {"_watched_variables": "the names of the variables that a function uses"}
MODULE_NAMES = {
    "keras.src.utils.tracking.no_automatic_dependency_tracking": "keeps the model's variables out "
    "of the optimizer's own variables when it lists them",
    "keras.src.saving.saving_lib.H5IOStore": "reads the entries of a file of weights; since Keras "
    "3.12 `safe_get_h5_dataset` of that module does",
    "keras.src.saving.saving_lib.load_weights_only": "what `Model.load_weights` and "
    "`keras.saving.load_weights` call",
    "keras.src.backend.common.stateless_scope.in_stateless_scope": "whether Keras only computes "
    "shapes, in a graph that never runs",
    "re._parser.parse": "the parts of a regular expression, of which one can be slow",
    "re._compiler.compile": "a regular expression of one such part",
    "tensorflow.python.ops.control_flow_util.GraphOrParentsInXlaContext": "there is no public name "
    "for whether XLA will compile the function being traced",
    "tensorflow.compiler.tf2xla.ops.gen_xla_ops": "XLA's barrier, which has no public name",
    "tensorflow.python.eager.context.context": "holds the functions that DTensor made for each "
    "device, which have no public name",
    "tensorflow.dtensor.python.api._dtensor_singleton": "whether DTensor has started, after which "
    "it reads no environment variables",
}
