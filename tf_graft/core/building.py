"""Creates an optimizer's variables next to the model's, under names that are checkpoint keys."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import keras
import tensorflow as tf
from tensorflow.experimental import dtensor

from tf_graft.core import keras_contract
from tf_graft.core.arguments.options import Options
from tf_graft.core.files import checked_state
from tf_graft.core.files.identity import Named
from tf_graft.core.pipeline import accumulation, averaging, judge
from tf_graft.core.state import slots
from tf_graft.core.state.algorithm import Algorithm
from tf_graft.core.state.parameters import Parameter, error_of
from tf_graft.core.state.slots import Slot
from tf_graft.core.tensors import numerics
from tf_graft.core.types import VariableLike

MASTER = Slot(dtype="float32")
COUNTER = Slot(dtype="int64", within=slots.COUNTS)
ERROR = Slot(dtype="int8", within=(-128, 127))  # what a slot lacks that is stored in bfloat16


class Builder(NamedTuple):
    """Creates variables of an optimizer.

    Args:
        owner: the class name that messages show.
        name: the first part of the variables' names.
        mesh: the mesh that holds them, if there is one.
        keep: adds a variable to those of the optimizer, and returns it.
    """

    owner: str
    name: str
    mesh: dtensor.Mesh | None
    keep: Callable[[keras.Variable], keras.Variable]

    def scalar(self, role: str, slot: Slot = COUNTER) -> keras.Variable:
        """Creates state before anything is built: a counter, unless `slot` says otherwise."""
        return self.keep(slots.create((self.name,), role, slot, "float32", mesh=self.mesh))

    def laid_out(
        self,
        layout: dtensor.Layout,
        shape: Sequence[int],
        initializer: Any,
        dtype: Any,
        name: str | None,
    ) -> keras.Variable:
        """Creates a variable on the mesh, for `Optimizer.add_variable`."""
        with keras.name_scope(self.name):
            return self.keep(
                slots.on_mesh(
                    layout,
                    initializer=keras.initializers.get(initializer),
                    shape=tuple(shape),
                    dtype=dtype,
                    trainable=False,
                    name=name,
                )
            )

    def move(self, variables: Sequence[keras.Variable], moved: bool) -> None:
        """Creates anew the variables that are in another place than the builder's.

        Args:
            variables: the optimizer's variables.
            moved: whether all of them are in another place, such as under another strategy.
        """
        if self.mesh is not None:
            keras_contract.check_order_on_mesh()
        for variable in variables:
            if moved or (self.mesh is not None and slots.layout_of(variable) is None):
                keras_contract.set_storage(variable, self._copy(variable))

    def _copy(self, variable: keras.Variable) -> keras.Variable:
        """Creates a variable of the same value."""
        value = variable.numpy()
        start = Slot(lambda _: value, value.shape, value.dtype.name)
        return slots.create((self.name,), variable.name, start, "float32", mesh=self.mesh)

    def state(
        self,
        algorithm: Algorithm,
        options: Options,
        variables: Mapping[str, VariableLike],
        early: Named,
        present: Mapping[str, keras.Variable],
    ) -> tuple[list[Parameter], Named]:
        """Creates the state of variables, by path, and the shared slots, by role.

        Args:
            algorithm: declares the slots.
            options: determine the engine's state.
            variables: the model's variables.
            early: the optimizer's variables that exist before it is built.
            present: the shared slots that exist already, by role.
        """
        own = {path: algorithm.slots_for(path) for path in variables}
        if options.state_dtype is not None:
            own = self._halved(own, variables, options.state_dtype)
        engine = {path: engine_slots(options, v, own[path]) for path, v in variables.items()}
        shared = algorithm.shared_slots()
        checked_state.refuse_clashes(self.owner, own, engine, shared, early)
        dtype = slots.shared_dtype([tf.as_dtype(v.dtype) for v in variables.values()]).name
        made = {
            role: self.keep(slots.create((self.name,), role, slot, dtype, mesh=self.mesh))
            for role, slot in shared.items()
            if role not in present
        }
        parameters = [self._parameter(v, p, own[p], engine[p]) for p, v in variables.items()]
        return parameters, {**present, **made}

    def _halved(
        self,
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
                f"{self.owner}(state_dtype={dtype!r}): no slot of these variables can be rounded; "
                "give None."
            )
        return halved

    def _parameter(
        self, variable: VariableLike, path: str, own: dict[str, Slot], engine: dict[str, Slot]
    ) -> Parameter:
        dtype = numerics.compute_dtype(tf.as_dtype(variable.dtype)).name

        def made(roles: dict[str, Slot]) -> Named:
            scope = (self.name, path)
            return {
                role: self.keep(slots.create(scope, role, slot, dtype, variable, self.mesh))
                for role, slot in roles.items()
            }

        return Parameter(variable, path, made(own), made(engine))


def engine_slots(
    options: Options, variable: VariableLike, own: Mapping[str, Slot | keras.Variable]
) -> dict[str, Slot]:
    """Returns the engine's slots for a variable, by role, beside those of its algorithm."""
    engine: dict[str, Slot] = {}
    if tf.as_dtype(variable.dtype) in numerics.HALF:
        engine["master"] = MASTER
    if options.use_ema:
        engine |= averaging.SLOTS
    if options.gradient_accumulation_steps:
        engine |= accumulation.SLOTS
    if options.state_dtype == "bfloat16+8":
        engine |= {error_of(r): ERROR for r, slot in own.items() if slot.dtype == "bfloat16"}
    return engine


def counters(options: Options) -> tuple[str, ...]:
    """Returns the roles of the engine's counters, except that of the updates."""
    spoiled = options.gradient_accumulation_steps and judge.skips(options.nonfinite)
    return ("skipped_steps", "micro_steps", *(["spoiled_micro_steps"] if spoiled else []))


def lacks(options: Options, early: Named, parameters: Iterable[Parameter]) -> bool:
    """Returns whether there is less state than the options require."""
    return any(role not in early for role in counters(options)) or any(
        engine_slots(options, p.variable, p.slots).keys() - p.state.keys() for p in parameters
    )
