"""The step of any Keras optimizer as a pure function: no variable is changed.

A Keras optimizer updates variables in place. Here it works on stand-ins, each of which holds a
tensor and records assignments and additions. The step is therefore exact, however large the weights
are, and the optimizer's state becomes slots. Tracing each update once shows which state belongs to
which variable; an optimizer that uses anything but its stand-ins is refused then.
"""

import collections
import functools
from collections.abc import Callable, Mapping, Sequence

import keras
import tensorflow as tf

from tf_graft.compose.stand_in import StandIn, Value
from tf_graft.core import keras_contract
from tf_graft.core.keras_contract import Probe, storage
from tf_graft.core.places import replicas
from tf_graft.core.state.point import Point, Step
from tf_graft.core.tensors import numerics
from tf_graft.core.types import Key, Slots, VariableLike

StandIns = dict[str, StandIn]  # by role

# Operations that compute each entry from that entry alone, and from scalars.
ENTRYWISE = {
    *("Abs", "Add", "AddN", "AddV2", "BroadcastTo", "Cast", "ClipByValue", "Const", "DivNoNan"),
    *("Equal", "Erf", "Exp", "Expm1", "Fill", "FloorDiv", "FloorMod", "Greater", "GreaterEqual"),
    *("Identity", "IsFinite", "IsInf", "IsNan", "Less", "LessEqual", "Log", "Log1p", "LogicalAnd"),
    *("LogicalNot", "LogicalOr", "Maximum", "Minimum", "Mul", "MulNoNan", "Neg", "NoOp"),
    *("NotEqual", "OnesLike", "Placeholder", "Pow", "RealDiv", "Reciprocal", "Rsqrt", "Select"),
    *("SelectV2", "Shape", "Sigmoid", "Sign", "Sqrt", "Square", "SquaredDifference"),
    *("StopGradient", "Sub", "Tanh", "Xdivy", "Xlogy", "ZerosLike"),
}

# How Keras ends the names of averages and accumulators, which belong to no step.
OF_PIPELINE = ("_average", "_gradient_accumulator")


class KerasStep:
    """The step of a Keras optimizer, which works on stand-ins.

    Args:
        optimizer: the optimizer, not built.
        variables: the model's variables by path.
        key: returns the key by which Keras finds a variable.
        decays: whether the optimizer's own weight decay applies to the variable of a path.

    Raises:
        TypeError: the optimizer uses more than its stand-ins; the message says what.

    Attributes:
        slots: for each path, the state of the variable by role.
        shared: the state that belongs to no single variable, by role.
        whole: the paths whose update needs the whole variable rather than some rows of it.
    """

    def __init__(
        self,
        optimizer: keras.optimizers.Optimizer,
        variables: Mapping[str, VariableLike],
        key: Callable[[VariableLike], Key],
        decays: Callable[[str], bool],
    ):
        self._decays = decays
        self._optimizer = keras_contract.on_stand_ins(optimizer)
        self._optimizer.count, self._optimizer.rate = tf.constant(0, tf.int64), tf.constant(0.0)
        self._made: list[StandIn] = []
        self._probes = {path: _probe(v, path, key(v)) for path, v in variables.items()}
        with tf.variable_creator_scope(self._create):
            self._optimizer.build(list(self._probes.values()))
        self._first = {made: made.state() for made in self._made}
        self.whole: set[str] = set()
        self.slots, self.shared = self._found()

    def step(self, p: Point) -> Step:
        """Returns the step of one variable, and its new slots."""
        if p.w.shape.num_elements() == 0:  # `keras.ops` takes no rows for a bias
            return tf.zeros_like(p.w), {}
        weights = storage(self._probes[p.path])
        weights.hold(p.w)
        self._hold({**self.slots[p.path], **self.shared}, p.state(), p.lr, p.t)
        self._update(p.path, p.g, p.lr, bare=p.bare)
        new = {role: s.read() for role, s in self.slots[p.path].items() if s.written}
        return weights.change(), new

    def decay(self, p: Point) -> tf.Tensor:
        """Returns the step of the optimizer's own weight decay, which a bare step lacks."""
        weights = storage(self._probes[p.path])
        weights.hold(p.w)
        self._optimizer.rate = p.lr
        if self._decays(p.path):
            self._optimizer.decay(self._probes[p.path])
        return weights.change()

    def once(self, s: Slots, rate: tf.Tensor, t: tf.Tensor) -> dict[str, tf.Tensor]:
        """Returns the shared state for this update."""
        self._hold(self.shared, s, rate, t)
        self._optimizer.once()
        return {role: stand_in.read() for role, stand_in in self.shared.items()}

    def names(self) -> list[str | None]:
        """Returns the names of all state, `path/role`, in the order of its creation.

        They are None for state that no step uses. Averages and accumulators are left out.
        """
        at = {
            s: f"{path}/{role}" for path, slots in self.slots.items() for role, s in slots.items()
        }
        at |= {stand_in: role for role, stand_in in self.shared.items()}
        return [at.get(s) for s in self._made if s in at or not s.name.endswith(OF_PIPELINE)]

    def first(self, stand_in: StandIn) -> tf.Tensor:
        """Returns the initial value of a piece of state."""
        made = self._first[stand_in]
        return tf.convert_to_tensor(made() if callable(made) else made)

    def _hold(self, roles: StandIns, s: Slots, rate: tf.Tensor, t: tf.Tensor) -> None:
        for role, stand_in in roles.items():
            stand_in.hold(s[role])
        self._optimizer.count, self._optimizer.rate = tf.cast(t, tf.int64) - 1, rate

    def _update(self, path: str, gradient: tf.Tensor, rate: tf.Tensor, bare: bool = False) -> None:
        if self._decays(path) and not bare:
            self._optimizer.decay(self._probes[path])
        self._optimizer.update_step(gradient, storage(self._probes[path]), rate)

    def _create(
        self,
        _: object,
        initial_value: Value | None = None,
        shape: tf.TensorShape | None = None,
        dtype: tf.DType | None = None,
        name: str | None = None,
        **__: object,
    ) -> StandIn:
        """Makes a stand-in in place of every `tf.Variable` that the optimizer makes."""
        if shape is None or dtype is None:
            given = initial_value() if callable(initial_value) else initial_value
            tensor = tf.convert_to_tensor(given, dtype)
            shape, dtype = tensor.shape, tensor.dtype
            # A function is kept as it is: its tensor would take as much memory as the slot, and a
            # `tf.function` on a mesh refuses tensors that were made outside of it.
            initial_value = initial_value if callable(initial_value) else tensor
        self._made.append(StandIn(name or "variable", initial_value, shape, dtype))
        return self._made[-1]

    # Which state belongs to which variable: found by tracing each update on placeholders.

    def _found(self) -> tuple[dict[str, StandIns], StandIns]:
        """Returns the slots of each path, and the shared state."""
        used, changed = {}, set()
        for path in self._probes:
            used[path] = self._used_for(path)
            changed |= {s for s in used[path] if s.written}
        self._trace(self._optimizer.once)
        once = [s for s in self._made if s.touched]
        uses = collections.Counter(s for found in used.values() for s in found)
        shared = [s for s in self._made if s in once or uses[s] > 1]
        for stand_in in shared:
            if stand_in in changed:
                raise TypeError(
                    f"its '{stand_in.name}' is changed by the updates of several variables"
                )
        slots = {
            path: self._by_role([s for s in found if s not in shared], path)
            for path, found in used.items()
        }
        return slots, self._by_role(shared)

    def _used_for(self, path: str) -> list[StandIn]:
        """Returns the state that an update uses; adds the path to `whole` if it needs all rows."""
        if not self._serves_rows(path):
            self.whole.add(path)
            self._trace_update(path, storage(self._probes[path]).shape)
        return [s for s in self._made if s.touched]

    def _serves_rows(self, path: str) -> bool:
        """Returns whether the update takes any number of rows, and each entry only needs itself."""
        shape = storage(self._probes[path]).shape
        if not shape.rank:
            return False
        try:
            graph = self._trace_update(path, tf.TensorShape([None, *shape[1:]]))
        except TypeError:
            return False
        fits = all(s.shape.rank == 0 or s.shape == shape for s in self._made if s.touched)
        return fits and all(op.type in ENTRYWISE for op in graph.get_operations())

    def _trace_update(self, path: str, shape: tf.TensorShape) -> tf.Graph:
        weights = storage(self._probes[path])
        placeholder = functools.partial(tf.compat.v1.placeholder, weights.dtype)
        graph = self._trace(
            lambda: self._update(path, placeholder(shape), placeholder([])), {weights.shape: shape}
        )
        touched = [s.name for s in map(storage, self._probes.values()) if s.touched]
        strangers = [name for name in touched if name != path]
        if strangers:
            raise TypeError(f"its update of '{path}' touches '{strangers[0]}' too")
        return graph

    def _trace(
        self,
        run: Callable[[], None],
        shapes: Mapping[tf.TensorShape, tf.TensorShape] | None = None,
    ) -> tf.Graph:
        """Returns the graph of `run` with a placeholder in every stand-in.

        Args:
            run: makes an update.
            shapes: the shapes of placeholders for stand-ins of another shape.
        """

        def traced() -> None:
            for s in [*map(storage, self._probes.values()), *self._made]:
                shape = (shapes or {}).get(s.shape, s.shape)
                s.hold(functools.partial(tf.compat.v1.placeholder, s.dtype, shape))
            run()

        before = self._attributes()
        try:
            graph = tf.function(traced, autograph=False).get_concrete_function().graph
        except Exception as error:  # the optimizer's code may raise anything
            raise TypeError(f"its update cannot be traced: {error}") from error
        for name, value in self._attributes().items():
            if value != before.get(name):
                raise TypeError(
                    f"its update changes its attribute '{name}', which is not a variable"
                )
        for tensor, _ in graph.captures:
            if tensor.dtype == tf.resource:
                raise TypeError(
                    "its update uses a variable that is neither its own state nor the variable "
                    "it is given"
                )
        return graph

    def _attributes(self) -> dict[str, object]:
        """Returns the optimizer's plain Python state, which a traced update would not keep."""
        kinds = (bool, int, float, str, type(None))
        return {name: x for name, x in vars(self._optimizer).items() if isinstance(x, kinds)}

    def _by_role(self, stand_ins: Sequence[StandIn], path: str = "") -> StandIns:
        roles: StandIns = {}
        for stand_in in stand_ins:
            role = self._role(stand_in, path)
            while role in roles:
                role += "_"
            roles[role] = stand_in
        return roles

    def _role(self, stand_in: StandIn, path: str) -> str:
        """Returns `momentum` for `dense_kernel_momentum`; otherwise the attribute's name."""
        of_path = f"{path.replace('/', '_')}_"
        if path and stand_in.name.startswith(of_path):
            return stand_in.name.removeprefix(of_path)
        for attribute, value in vars(self._optimizer).items():
            kept = value if isinstance(value, list | tuple) else [value]
            if any(storage(x) is stand_in for x in kept):
                return attribute.strip("_")
        return "state"


def _probe(variable: VariableLike, path: str, key: Key) -> Probe:
    dtype = numerics.compute_dtype(tf.as_dtype(variable.dtype))

    def value() -> tf.Tensor:
        return tf.convert_to_tensor(replicas.local(variable))

    return Probe(StandIn(path, value, variable.shape, dtype, key), path)
