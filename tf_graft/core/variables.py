"""An optimizer's variables: made next to the model's, under names that are checkpoint keys."""

import contextlib
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import keras
import tensorflow as tf
from tensorflow.experimental import dtensor

from tf_graft.core import keras_contract
from tf_graft.core.arguments import multipliers
from tf_graft.core.arguments.options import Options
from tf_graft.core.arguments.settable import Settable
from tf_graft.core.files import checked_state
from tf_graft.core.files.identity import Named
from tf_graft.core.pipeline import (
    accumulation,
    averaging,
    judge,
    matching,
    row_clipping,
    row_counts,
    row_decay,
)
from tf_graft.core.places import replicas
from tf_graft.core.state import slots, write
from tf_graft.core.state.optimizer_state import OptimizerState
from tf_graft.core.state.parameters import Parameter, Parameters, error_of
from tf_graft.core.state.point import under
from tf_graft.core.state.slots import Slot
from tf_graft.core.tensors import numerics
from tf_graft.core.types import Key, VariableLike

MASTER = Slot(dtype="float32")
COUNTER = Slot(dtype="int64", within=slots.COUNTS)
ERROR = Slot(dtype="int8", within=(-128, 127))  # what a slot lacks that is stored in bfloat16


class Variables(OptimizerState):
    """Every variable of an optimizer; makes them, names them and keeps them where the model is.

    Args:
        optimizer: the optimizer, which Keras has constructed.

    Attributes:
        strategy: the strategy under which the model's variables were made.
        children: the variables of optimizers inside this one, by role.
        beside: the variables of an optimizer that is updated on its own, by the prefix of their
            roles; they are saved with these.
    """

    def __init__(self, optimizer: Any):
        self._optimizer = optimizer
        self.parameters, self.shared = Parameters({}), {}
        self.counters = {optimizer.iterations.name: optimizer.iterations}
        self.strategy = tf.distribute.get_strategy()
        self.children: dict[str, Variables] = {}
        self.beside: dict[str, Variables] = {}
        self._everywhere = replicas.Everywhere()
        self._one_at_a_time = threading.RLock()

    @property
    def mesh(self) -> dtensor.Mesh | None:  # type: ignore[override]
        """The mesh that holds the variables, if there is one."""
        mesh: dtensor.Mesh | None = self._optimizer.mesh
        return mesh

    def everywhere(self, method: Callable[..., None], *args: Any, traced: bool = False) -> None:
        """Runs a method in each replica's context; see `replicas.Everywhere`."""
        self._everywhere(self.strategy, method, *args, traced=traced)

    def alone(self) -> contextlib.AbstractContextManager[object]:
        """A context in which no other thread takes a step eagerly."""
        return replicas.one_at_a_time(self._one_at_a_time)

    # The variables that exist before the optimizer is built.

    def add_scalar(self, role: str, slot: Slot = COUNTER) -> keras.Variable:
        """Creates a variable that exists before the optimizer is built: a counter by default."""
        made = self._scalar(role, slot)
        self.counters = {**self.counters, role: made}
        keras_contract.lead_checkpoints(self._optimizer, "_scalars", dict(self.counters))
        return made

    def hold_value(self, name: str, given: Settable) -> Settable:
        """Returns the value of an argument, kept in a variable of the optimizer."""
        held = Settable(float(given))
        slot = Slot(held.value, dtype="float32", within=given.within)
        held.variable = self._scalar(f"{name}_value", slot)
        keras_contract.lead_checkpoints(self._optimizer, f"_{name}_value", held.variable)
        return held

    @staticmethod
    def set_value(held: Settable, value: float) -> None:
        """Changes the value of an argument for the next step."""
        write.put_everywhere(held.variable, value)

    def rate_variables(self) -> Named:
        """Returns the variables that hold learning rates, by role."""
        own = keras_contract.rate_variable(self._optimizer)
        named = {} if own is None else {own.name: own}
        return named | self._of_children(Variables.rate_variables)

    def value_variables(self) -> Named:
        """Returns the variables that hold arguments that can be set between steps, by role."""
        held = (x.variable for x in vars(self._optimizer).values() if isinstance(x, Settable))
        named = {variable.name: variable for variable in held if variable is not None}
        return named | self._of_children(Variables.value_variables)

    def early(self) -> Named:
        """Returns the variables that exist before the optimizer is built, by role."""
        return {**self.counters, **self.rate_variables(), **self.value_variables()}

    def _of_children(self, named: Callable[["Variables"], Named]) -> Named:
        """Returns variables of the optimizers inside, under their roles."""
        return {n: v for role, x in self.children.items() for n, v in under(role, named(x)).items()}

    def adopt(self, role: str, child: "Variables") -> None:
        """Takes the variables of an optimizer inside, and keeps those of its arguments."""
        self.children[role] = child
        self.keep(under(role, child.rate_variables() | child.value_variables()))

    def keep(self, named: Named) -> None:
        """Adds variables to `Optimizer.variables`, under these names."""
        for name, variable in named.items():
            kept = keras_contract.keep(self._optimizer, variable)
            keras_contract.rename(kept, f"{self._optimizer.name}/{name}")

    def named(self, place: str = "") -> Named:
        """Returns every variable of the optimizer by path and role; none before it is built.

        Args:
            place: a prefix for every role: `"center/"` for `dense/kernel/center/momentum`.
        """
        if not len(self.parameters):
            return {}
        shared = {**self.early(), **self.shared}
        named = {f"{place}{role}": variable for role, variable in shared.items()}
        for p in self.parameters:
            named |= {f"{p.path}/{place}{r}": v for r, v in {**p.slots, **p.state}.items()}
        for prefix, other in self.beside.items():
            named |= other.named(prefix)
        return named

    def with_rows(self, path: str, place: str = "") -> list[str]:
        """Returns the names of the state that has a part for each row of a model variable.

        Args:
            path: the path of the model variable.
            place: the prefix for every role, as for `named`.
        """
        (p,) = (p for p in self.parameters if p.path == path)
        own = self._optimizer.slots_for(path)
        declared = {**own, **self._engine_slots(Options.of(self._optimizer), path, p.variable, own)}
        roles = [role for role, slot in declared.items() if slot.has_rows(p.variable)]
        roles += [error_of(role) for role in roles if error_of(role) in p.state]
        names = [f"{path}/{place}{role}" for role in dict.fromkeys(roles)]
        return names + [n for prefix, x in self.beside.items() for n in x.with_rows(path, prefix)]

    # Where they are.

    def settle(self, mesh: dtensor.Mesh | None, moved: bool = False) -> None:
        """Creates the present variables anew if the model's variables are in another place.

        Args:
            mesh: the mesh of the model's variables, if they are on one.
            moved: whether everything is in another place, such as under another strategy.
        """
        self._optimizer.mesh = mesh
        if mesh is not None:
            keras_contract.check_order_on_mesh()
        for variable in self._optimizer.variables:
            if moved or (mesh is not None and slots.layout_of(variable) is None):
                keras_contract.set_storage(variable, self._copy(variable))

    def move_to(self, variables: Sequence[VariableLike]) -> None:
        """Moves the present variables to where the model's variables are."""
        made_under, self.strategy = self.strategy, replicas.strategy_of(variables)
        with replicas.outside_functions(), replicas.creating_under(self.strategy):
            self.settle(self.mesh or slots.mesh_of(variables), made_under is not self.strategy)

    def _copy(self, variable: keras.Variable) -> keras.Variable:
        """Creates a variable of the same value."""
        value = variable.numpy()
        start = Slot(lambda _: value, value.shape, value.dtype.name)
        return slots.create(self._scope, variable.name, start, "float32", mesh=self.mesh)

    # The variables that are made for the model's.

    @contextlib.contextmanager
    def adding(self, new: Mapping[str, VariableLike]) -> Iterator[Mapping[str, VariableLike]]:
        """A context that creates variables for new ones of the model; yields all by path."""
        known = {p.path: p.variable for p in self.parameters}
        with replicas.ahead_of(new.values()), replicas.creating_under(self.strategy):
            yield {**known, **new}

    def make(self, new: Mapping[str, VariableLike]) -> tuple[list[Parameter], Named]:
        """Creates the state of variables of the model, by path, and the shared slots, by role."""
        owner, options = type(self._optimizer).__name__, Options.of(self._optimizer)
        own: dict[str, dict[str, Slot]] = {p: self._optimizer.slots_for(p) for p in new}
        if options.state_dtype is not None:
            own = _halved(owner, own, new, options.state_dtype)
        engine = {path: self._engine_slots(options, path, v, own[path]) for path, v in new.items()}
        shared = self._optimizer.shared_slots()
        checked_state.refuse_clashes(owner, own, engine, shared, self.early())
        dtype = slots.shared_dtype([tf.as_dtype(v.dtype) for v in new.values()]).name
        made = {
            role: self._kept(slots.create(self._scope, role, slot, dtype, mesh=self.mesh))
            for role, slot in shared.items()
            if role not in self.shared
        }
        parameters = [self._parameter(v, p, own[p], engine[p]) for p, v in new.items()]
        return parameters, {**self.shared, **made}

    def hold(
        self, parameters: Mapping[Key, Parameter], shared: Named, order: Sequence[Key]
    ) -> None:
        """Adds the state that was created.

        In the order of the model, state does not depend on when a layer was first trained.

        Args:
            parameters: the new ones, by key.
            shared: all state that does not belong to one variable, by role.
            order: the keys in the order of the model; if it lacks some, new ones come last.
        """
        self.parameters, self.shared = self.parameters.extended(parameters, order), shared
        state = {p.path: {**p.slots, **p.state} for p in self.parameters}
        keras_contract.arrange(self._optimizer, [held.values() for held in state.values()])
        keras_contract.lead_checkpoints(self._optimizer, "_state", state)
        keras_contract.lead_checkpoints(self._optimizer, "_shared", shared)

    def lacks(self, options: Options) -> bool:
        """Returns whether there is less state than the options require."""
        return any(role not in self.counters for role in counters_of(options)) or any(
            self._engine_slots(options, p.path, p.variable, p.slots).keys() - p.state.keys()
            for p in self.parameters
        )

    def parameters_of(self, owner: str, variables: Iterable[VariableLike]) -> list[Parameter]:
        """Returns the parameters of variables; `owner` begins the message about an unknown one."""
        variables = list(variables)
        keys = [keras_contract.key_of(self._optimizer, variable) for variable in variables]
        return matching.parameters_for(owner, self.parameters, keys, variables)

    def laid_out(
        self,
        layout: dtensor.Layout,
        shape: Sequence[int],
        initializer: Any,
        dtype: Any,
        name: str | None,
    ) -> keras.Variable:
        """Creates a variable on the mesh, for `Optimizer.add_variable`."""
        with keras.name_scope(self._optimizer.name):
            return self._kept(
                slots.on_mesh(
                    layout,
                    initializer=keras.initializers.get(initializer),
                    shape=tuple(shape),
                    dtype=dtype,
                    trainable=False,
                    name=name,
                )
            )

    @property
    def _scope(self) -> tuple[str, ...]:
        return (self._optimizer.name,)

    def _kept(self, variable: keras.Variable) -> keras.Variable:
        return keras_contract.keep(self._optimizer, variable)

    def _scalar(self, role: str, slot: Slot) -> keras.Variable:
        return self._kept(slots.create(self._scope, role, slot, "float32", mesh=self.mesh))

    def _engine_slots(
        self,
        options: Options,
        path: str,
        variable: VariableLike,
        own: Mapping[str, Slot | keras.Variable],
    ) -> dict[str, Slot]:
        """Returns the engine's slots for a variable, by role, beside those of its algorithm."""
        engine: dict[str, Slot] = {}
        dtype = tf.as_dtype(variable.dtype)
        if dtype in numerics.HALF and (options.master_weights or dtype != tf.bfloat16):
            engine["master"] = MASTER
        if options.use_ema:
            engine |= averaging.SLOTS
        if options.gradient_accumulation_steps:
            engine |= accumulation.SLOTS
            if row_clipping.counts_ids(options.clip_rows, path):
                engine |= accumulation.TIMES
        engine |= row_counts.slots_for(multipliers.of(options.count_rows, path))
        decays = self._optimizer.rule.decaying(path).decays(path)
        if options.sparse == row_decay.CHOICE and decays and len(variable.shape) > 1:
            engine |= row_decay.SLOTS
        if options.state_dtype == "bfloat16+8":
            engine |= {error_of(r): ERROR for r, slot in own.items() if slot.dtype == "bfloat16"}
        return engine

    def _parameter(
        self, variable: VariableLike, path: str, own: dict[str, Slot], engine: dict[str, Slot]
    ) -> Parameter:
        dtype = numerics.compute_dtype(tf.as_dtype(variable.dtype)).name

        def made(roles: dict[str, Slot]) -> Named:
            scope = (*self._scope, path)
            return {
                role: self._kept(slots.create(scope, role, slot, dtype, variable, self.mesh))
                for role, slot in roles.items()
            }

        return Parameter(variable, path, made(own), made(engine))


def counters_of(options: Options) -> tuple[str, ...]:
    """Returns the roles of the engine's counters, except that of the updates."""
    spoiled = options.gradient_accumulation_steps and judge.skips(options.nonfinite)
    return ("skipped_steps", "micro_steps", *(["spoiled_micro_steps"] if spoiled else []))


def _halved(
    owner: str,
    own: Mapping[str, dict[str, Slot]],
    variables: Mapping[str, VariableLike],
    dtype: str,
) -> dict[str, dict[str, Slot]]:
    """Returns the slots by path and role, in bfloat16 where they can be rounded."""
    kinds = {p: numerics.compute_dtype(tf.as_dtype(v.dtype)) for p, v in variables.items()}
    halved = {
        path: {r: s.halved() for r, s in slots.items()} if kinds[path] == tf.float32 else slots
        for path, slots in own.items()
    }
    if halved == own:
        raise ValueError(
            f"{owner}(state_dtype={dtype!r}): no slot of these variables can be rounded; give None."
        )
    return halved
