"""Every private name of Keras (and of TensorFlow) that tf_graft relies on, each with its reason.

Nothing else in the package touches one. `tests/test_keras_contract.py` fails by name when a release
drops one.
"""

import contextlib
import copy
import functools
import math
import os
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras.src.backend.common.stateless_scope import in_stateless_scope
from keras.src.saving import saving_lib
from keras.src.utils.tracking import no_automatic_dependency_tracking
from tensorflow.dtensor.python.api import _dtensor_singleton as dtensor_started
from tensorflow.python.ops import control_flow_util

from tf_graft.core.nesting import nested

if keras.backend.backend() != "tensorflow":
    raise ImportError(
        f"tf_graft needs Keras on the TensorFlow backend, and Keras runs on "
        f"'{keras.backend.backend()}': set the environment variable KERAS_BACKEND=tensorflow "
        "before Keras is imported."
    )

OPTIMIZER_NAMES = {
    "_iterations": "Keras' trainer and callbacks count steps in this variable",
    "_learning_rate": "the rate as given: a variable, a schedule or a callable",
    "_track_variable": "puts a variable into `Optimizer.variables`",
    "_variables": "what `Optimizer.variables` and `set_weights` go through",
    "_trainable_variables": "SwapEMAWeights walks it beside the averages",
    "_trainable_variables_indices": "`_get_variable_index` of Keras optimizers looks here",
    "_var_key": "one key for a Keras variable, its tf.Variable and a replica's copy of it",
    "_distribution_strategy": "SwapEMAWeights updates through it",
    "_trackable_children": "what tf.train.Checkpoint goes through",
    "_lookup_dependency": "what tf.train.Checkpoint asks for each thing that it restores",
    "_deferred_dependencies": "where it leaves what it has found no place for",
    "_update_uid": "the number of the checkpoint that something was restored from last",
    "_backend_update_step": "Nadam does there what it does once an update",
    "_backend_apply_gradients": "an optimizer with its own cannot be recorded",
    "_apply_weight_decay": "Muon decays in its own way there",
    "_exclude_from_weight_decay": "the keys of variables excluded from decay",
    "_exclude_from_weight_decay_pattern": "what the names of such variables contain",
}
PROVIDED_NAMES = {
    "_model_variables_moving_average": "SwapEMAWeights swaps these with the model variables",
}
BY_POSITION = ("_variables", "_trainable_variables")
MODULE_NAMES = {
    "keras.src.utils.tracking.no_automatic_dependency_tracking": "keeps the model's variables out "
    "of the optimizer's own when it takes note of them",
    "tensorflow.python.ops.control_flow_util.GraphOrParentsInXlaContext": "there is no public name "
    "for whether the code being traced is going to be compiled",
}
VARIABLE_NAMES = {
    "_initialize_with_initializer": "the one place where Keras makes the tf.Variable",
    "_path": "where a variable says it belongs: a child's rate belongs to its parent",
    "_value": "the tf.Variable behind a keras.Variable, which a mesh replaces by a DVariable",
}


def in_xla() -> bool:
    """Whether the code being traced is going to be compiled by XLA.

    TensorFlow has no public name for it: some in-place kernels exist outside XLA only.
    """
    if tf.executing_eagerly():
        return False
    return bool(control_flow_util.GraphOrParentsInXlaContext(tf.compat.v1.get_default_graph()))


class OwnVariable(keras.Variable):
    """A variable of an optimizer: it reads as a number where it has copies on several replicas.

    Args:
        within: the least and the largest value that it can have.
        **arguments: of `keras.Variable`.
    """

    within: tuple[float, float] = (-math.inf, math.inf)

    def __init__(self, *, within: tuple[float, float] = within, **arguments: Any):
        self.within = within
        super().__init__(**arguments)

    def __int__(self) -> int:
        return super().__int__() if self.ndim else int(self.numpy())

    def __float__(self) -> float:
        return super().__float__() if self.ndim else float(self.numpy())

    def __repr__(self) -> str:
        """As Keras', which leaves the value out in the scope of a strategy."""
        shown = super().__repr__()
        has_copies = isinstance(self._value, tf.distribute.DistributedValues)
        if has_copies and "value=" not in shown and tf.executing_eagerly():
            return f"{shown[:-1]}, value={self.numpy()}>"
        return shown


class StoredVariable(OwnVariable):
    """A `keras.Variable` on the storage that a function makes.

    Args:
        store: called with the initializer, shape, dtype and name.
        **arguments: of `keras.Variable`.
    """

    def __init__(self, *, store: Callable[..., tf.Variable], **arguments: Any):
        self._store = store
        super().__init__(**arguments)

    def _initialize_with_initializer(self, initializer: Any) -> None:
        self._value = self._store(initializer, self._shape, self._dtype, self.name)


class Recording(keras.optimizers.Optimizer):
    """Comes between an optimizer's class and Keras' own: what it is told to do is written down.

    The variables it makes and those it is given stand on stand-ins, which take `assign`. `count`
    and `rate` are what it sees as its `iterations` and `learning_rate`.
    """

    count: Any = None
    rate: Any = None

    iterations = property(lambda self: self.count)
    learning_rate = property(lambda self: self.rate)

    def __setattr__(self, name: str, value: Any) -> None:
        """Keras' would list variables with those of the original, whose lists these are."""
        object.__setattr__(self, name, value)

    def add_variable_from_reference(
        self, reference_variable: Any, name: str | None = None, initializer: Any = "zeros"
    ) -> keras.Variable:
        """As Keras', under the name it gives."""
        return self.add_variable(
            shape=reference_variable.shape,
            initializer=initializer,
            dtype=reference_variable.dtype,
            name=f"{reference_variable.path.replace('/', '_')}_{name or 'var'}",
        )

    def assign(self, variable: Any, value: Any) -> None:
        """Has the stand-in write it down."""
        storage(variable).assign(value)

    def assign_add(self, variable: Any, value: Any) -> None:
        """Has the stand-in write it down."""
        storage(variable).assign_add(value)

    def assign_sub(self, variable: Any, value: Any) -> None:
        """Has the stand-in write it down."""
        storage(variable).assign_sub(value)

    def once(self) -> None:
        """What it does once an update and not for each variable."""
        self._backend_update_step([], [], self.rate)

    def decay(self, variable: keras.Variable) -> None:
        """Its decoupled weight decay, which comes before the update."""
        if type(self)._apply_weight_decay is not keras.optimizers.Optimizer._apply_weight_decay:
            self._apply_weight_decay([variable])
        elif self.weight_decay is not None:
            weights = tf.convert_to_tensor(variable)
            rate = tf.cast(self.rate, weights.dtype)
            storage(variable).assign_sub(weights * self.weight_decay * rate)

    def _backend_update_step(self, *arguments: Any) -> None:
        """Not Keras': it would update under the strategy, and nothing is updated here."""

    def _track_variable(self, variable: Any) -> None:
        """Not listed: what it makes has no storage."""


def own_way(cls: type[keras.optimizers.Optimizer]) -> str | None:
    """The method of a class that takes the place of one of Keras' pipeline."""
    for name in ("apply", "apply_gradients", "_backend_apply_gradients"):
        if getattr(cls, name) is not getattr(keras.optimizers.Optimizer, name):
            return name
    return None


def recording(optimizer: keras.optimizers.Optimizer) -> Recording:
    """A copy of an unbuilt Keras optimizer that records; the original is left alone.

    Raises:
        TypeError: the optimizer does in its own way what Keras' pipeline does.
    """
    cls = type(optimizer)
    if way := own_way(cls):
        raise TypeError(f"it has a method '{way}' of its own, which would be passed over")
    double: Any = object.__new__(
        type(cls.__name__, (cls, Recording), {"__module__": cls.__module__})
    )
    for name, value in vars(optimizer).items():
        double.__dict__[name] = copy.copy(value) if isinstance(value, list | dict) else value
    return double


class Probe(keras.Variable):
    """A `keras.Variable` on the storage it is given, under the path it is given."""

    def __init__(self, given: Any, path: str):
        self._given, self._given_path = given, path
        super().__init__(
            shape=given.shape,
            dtype=given.dtype.name,
            initializer="zeros",
            name=path.rpartition("/")[2],
        )

    def _initialize_with_initializer(self, initializer: Any) -> None:
        self._value = self._given

    @property
    def path(self) -> str:
        """As the model's variable."""
        return self._given_path


def decay_exclusions(optimizer: keras.optimizers.Optimizer) -> tuple[list[str], set[Any]]:
    """What was excluded from its weight decay: patterns for names, and keys of variables."""
    pattern = getattr(optimizer, "_exclude_from_weight_decay_pattern", None)
    keys = getattr(optimizer, "_exclude_from_weight_decay", ())
    return ([pattern.pattern] if pattern else []), set(keys)


def rate_of(optimizer: keras.optimizers.Optimizer) -> Any:
    """The learning rate as it was given: a number, a schedule or a callable."""
    given = optimizer._learning_rate
    if not isinstance(given, keras.Variable):
        return given
    with tf.init_scope():  # a function may be traced
        return float(str(np.asarray(given.numpy())[()]))  # 0.1, where a float32 is a little more


def storage(variable: Any) -> Any:
    """What a `keras.Variable` stands on; anything else is that already."""
    return variable.value if isinstance(variable, keras.Variable) else variable


class KerasOptimizer(keras.optimizers.Optimizer):
    """`keras.optimizers.Optimizer` with the private names that the engine needs made plain."""

    def _count_variable(self) -> keras.Variable:
        return self._iterations

    def _rate_variable(self) -> keras.Variable | None:
        """The variable that holds the learning rate; None under a schedule or a callable."""
        return self._learning_rate if isinstance(self._learning_rate, keras.Variable) else None

    def _key(self, variable: Any) -> Any:
        return self._var_key(variable)

    def _track_variable(self, variable: keras.Variable) -> None:
        """Keras tells of each variable that it makes for the optimizer."""
        if type(variable) is keras.Variable:
            variable.__class__ = OwnVariable
        super()._track_variable(variable)

    def _keep(self, variable: keras.Variable) -> keras.Variable:
        """Lists a variable among `Optimizer.variables`."""
        self._track_variable(variable)
        return variable

    @no_automatic_dependency_tracking
    def _declare(self, variables: list[Any], strategy: tf.distribute.Strategy) -> None:
        """Tells Keras which variables the optimizer was built for."""
        self._trainable_variables = list(variables)
        self._trainable_variables_indices = {self._var_key(v): i for i, v in enumerate(variables)}
        self._distribution_strategy = strategy
        self.built = True

    def _trackable_children(self, save_type: str = "checkpoint", **kwargs: Any) -> dict[str, Any]:
        """What a checkpoint holds: not the lists that Keras keeps, which go by position."""
        children = super()._trackable_children(save_type, **kwargs)
        return {name: child for name, child in children.items() if name not in BY_POSITION}

    def _lookup_dependency(self, name: str, *arguments: Any, **kwargs: Any) -> Any:
        """What in the optimizer a checkpoint's thing of that name is restored into.

        TensorFlow itself restores nothing but `PythonState`: it is told when all that is to be
        restored is known. The rest the optimizer reads.
        """
        found = super()._lookup_dependency(name, *arguments, **kwargs)
        if not (arguments or kwargs):  # nothing is being restored
            return found
        self._examine()
        return found if isinstance(found, tf.train.experimental.PythonState) else None

    def _deferred(self) -> Any | None:
        """Where something of the optimizer stands in a checkpoint that is being restored, as
        TensorFlow left it; takes it out of its hands. None where there is nothing new.
        """
        names = list(self._deferred_dependencies)
        left = [at for name in names for at in self._deferred_dependencies.pop(name)]
        newest = max(left, key=lambda at: at.checkpoint.restore_uid, default=None)
        if newest is None or newest.checkpoint.restore_uid <= self._examined:
            return None
        self._examined = newest.checkpoint.restore_uid
        return newest

    _examined = -1  # the number of the checkpoint that was looked through last

    def _examine(self) -> None:
        """Looks through what a checkpoint that is being restored holds of the optimizer."""
        raise NotImplementedError

    def snapshot(self) -> Callable[[], None]:
        """What puts the state back that there is now."""
        raise NotImplementedError

    @property
    def _model_variables_moving_average(self) -> list[keras.Variable]:
        """What `SwapEMAWeights` swaps with the model variables, brought up to date first."""
        if not self.use_ema or not self.built:
            raise AttributeError("_model_variables_moving_average")
        averages = self.synchronized_averages()
        for variable, average in zip(self._trainable_variables, averages, strict=True):
            if tf.as_dtype(variable.dtype) != tf.as_dtype(average.dtype):
                raise TypeError(
                    f"{type(self).__name__}: SwapEMAWeights cannot swap a variable of "
                    f"{tf.as_dtype(variable.dtype).name} with its average, which is kept in "
                    f"{tf.as_dtype(average.dtype).name}; leave it out (the averages are written "
                    "into the model when `fit` ends), or use a mixed precision policy."
                )
        return averages

    def __dir__(self) -> list[str]:
        """Without the averages: Keras' saving reads all it finds here, and reading them acts.
        Without optimizers that it holds either: their state is part of its own.
        """
        optimizer = keras.optimizers.Optimizer
        held = {name for name, value in vars(self).items() if isinstance(value, optimizer)}
        return [name for name in super().__dir__() if name not in {*PROVIDED_NAMES, *held}]

    def synchronized_averages(self) -> list[keras.Variable]:
        """The averages of all variables as of the last step, in the variables' order."""
        raise NotImplementedError


# What Keras' own optimizers leave in files.

STORE_NAMES = {"_h5_entry_group": "says the name of the optimizer whose variables a store holds"}


def author_of(store: Any) -> str | None:
    """The name of the optimizer that wrote into a Keras weights store, where it says."""
    group = getattr(store, "_h5_entry_group", None)
    return getattr(group, "attrs", {}).get("name")


def held_by(trackable: Any) -> dict[str, Any]:
    """What TensorFlow finds in something when it saves or restores it, by name."""
    return trackable._trackable_children()


def take_for_restored(checkpoint: Any, node: int, trackable: Any) -> None:
    """Has a checkpoint that is being restored take one of its nodes for restored."""
    checkpoint.object_by_proto_id[node] = trackable
    checkpoint.matched_proto_ids.add(node)
    trackable._update_uid = checkpoint.restore_uid


def rename(variable: keras.Variable, path: str) -> None:
    """Gives a variable another path."""
    variable._path = path


@contextlib.contextmanager
def named(variables: dict[str, keras.Variable]) -> Iterator[None]:
    """Has variables go by other paths for a while."""
    before = {path: variable.path for path, variable in variables.items()}
    for path, variable in variables.items():
        rename(variable, path)
    try:
        yield
    finally:
        for path, variable in variables.items():
            rename(variable, before[path])


class ScalesLoss(keras.optimizers.LossScaleOptimizer):
    """What `compile` takes for a loss scaling optimizer, which it then does not wrap in its own.

    It stands last among the bases, so that nothing of Keras' class is in use.
    """

    __init__ = keras.optimizers.Optimizer.__init__
    variables = keras.optimizers.Optimizer.variables
    get_config = keras.optimizers.Optimizer.get_config
    from_config: Any = classmethod(keras.optimizers.Optimizer.from_config.__func__)


def rehome(variable: keras.Variable, source: keras.Variable) -> None:
    """Gives a variable the storage of another, newly made one: on a mesh, or under a strategy."""
    variable._value = source._value


# Loading a file of weights. Keras has changed the model's when it asks the optimizer, and goes on
# with the next layer where one of them, or the optimizer, refuses what it is given.

MODULE_NAMES["keras.src.saving.saving_lib.load_weights_only"] = (
    "what `Model.load_weights` and `keras.saving.load_weights` call"
)


def _all_or_nothing(load: Callable[..., None]) -> Callable[..., None]:
    """A file is loaded into a model with an optimizer of this package whole, or changes nothing."""

    @functools.wraps(load)
    def load_whole(model: keras.Model, *args: Any, **kwargs: Any) -> None:
        inner: list[Any] = list(nested(getattr(model, "optimizer", None)))
        ours = [optimizer for optimizer in inner if isinstance(optimizer, KerasOptimizer)]
        if not ours:
            load(model, *args, **kwargs)
            return
        put_back = [optimizer.snapshot() for optimizer in ours]
        before = [(v, tf.convert_to_tensor(v)) for v in map(storage, model.variables)]
        try:
            load(model, *args, **kwargs)
        except BaseException:
            for variable, value in before:
                variable.assign(value)
            for undo in put_back:
                undo()
            raise

    return load_whole


saving_lib.load_weights_only = _all_or_nothing(saving_lib.load_weights_only)


# A model on a DTensor mesh (`tf_graft/dtensor`).

MODEL_NAMES = {
    "_flatten_layers": "all layers of a model, nested ones too",
    "_symbolic_build": "makes the variables of compiled metrics and losses before the first step",
}
VARIABLE_NAMES["_initialize"] = "gives a variable an ordinary tf.Variable, with its aggregation"
MODULE_NAMES["tensorflow.dtensor.python.api._dtensor_singleton"] = (
    "whether DTensor has started, after which it reads no environment variables"
)
MODULE_NAMES["keras.src.backend.common.stateless_scope.in_stateless_scope"] = (
    "whether Keras asks for shapes only, in a graph that never runs"
)
GRAPH_NAMES = {"_watched_variables": "the names of the variables that a function uses"}

# TensorFlow moves the all-reduces of a function together, and with them the assignments that wait
# for one, without what reads the variable afterwards: a metric, an average, a clipped weight would
# be those before the step. It reads this name once, when DTensor is first used.
COMBINING = "DTENSOR_ENABLE_COMBINE_ALL_REDUCES_OPTIMIZATION"
IN_ORDER = os.environ.get(COMBINING) == "0"
os.environ.setdefault(COMBINING, "0")


def check_order_on_mesh() -> None:
    """Refuses a process in which functions on a mesh read variables out of order."""
    if os.environ[COMBINING] != "0" or (dtensor_started is not None and not IN_ORDER):
        raise RuntimeError(
            f"A mesh needs the environment variable {COMBINING}=0 before DTensor is first used, "
            "or TensorFlow reads variables before they are assigned: import tf_graft first, which "
            "sets it."
        )


def settle(variable: keras.Variable, storage: tf.Variable) -> None:
    """Gives a variable another storage, such as one on a mesh."""
    variable._value = storage


def settle_at_home(variable: keras.Variable, value: Any) -> None:
    """Gives a variable an ordinary `tf.Variable` of its own with that value."""
    variable._initialize(value)


class _Capture:
    """Stands in for the method by which the graph of a function takes tensors from outside it."""

    def __init__(self, graph: Any, check: Callable[[tf.Tensor, str | None], None]):
        self._graph = weakref.ref(graph)
        self._check = check
        self._unchecked = [tensor for tensor, _ in graph.captures]

    def __call__(self, tensor: tf.Tensor, *args: Any, **kwargs: Any) -> Any:
        graph: Any = self._graph()
        for taken in (*self._unchecked, tensor):
            if taken.dtype == tf.resource and not tf.is_symbolic_tensor(taken):
                watched = {id(v.handle): v.name.partition(":")[0] for v in graph._watched_variables}
                self._check(taken, watched.get(id(taken)))
        self._unchecked = []
        return type(graph).capture(graph, tensor, *args, **kwargs)


def check_captured(check: Callable[[tf.Tensor, str | None], None]) -> None:
    """Has all variables, tables and the like checked that the function being traced uses.

    Those it has used already and those it is going to, and those of the functions around it.

    Args:
        check: called with each one's handle, and its name if that is known.
    """
    if tf.executing_eagerly() or in_stateless_scope():
        return
    graph = tf.compat.v1.get_default_graph()
    while isinstance(graph, tf.__internal__.FuncGraph) and not isinstance(graph.capture, _Capture):
        graph.capture = _Capture(graph, check)
        graph = graph.outer_graph


def layers_of(model: keras.Model) -> list[keras.Layer]:
    """The model itself and its layers, those within layers too."""
    return list(model._flatten_layers())


def make_metrics(model: keras.Model, batch: Any) -> None:
    """Makes what Keras makes on the first step: variables of compiled metrics and losses."""
    model._symbolic_build(data_batch=batch)


# A model on several workers (`tf_graft/processes/multi_worker.py`).

MODEL_NAMES["_maybe_symbolic_build"] = (
    "averages the first batch over all replicas to make metrics of it, which workers cannot"
)


def make_metrics_of_one_replica(model: keras.Model) -> None:
    """Has `fit` and `evaluate` make metrics of what one replica gets of the first batch."""
    strategy = model.distribute_strategy

    def first(value: Any) -> Any:
        return strategy.experimental_local_results(value)[0]

    def build(iterator: Any = None, data_batch: Any = None) -> None:
        for _, _, batches in iterator or ():
            data_batch = tf.nest.map_structure(first, next(batches))
            break
        with strategy.scope():
            make_metrics(model, data_batch)

    model._maybe_symbolic_build = build
