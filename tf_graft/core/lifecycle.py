"""An optimizer's life apart from its steps: made, built, configured, saved and loaded."""

import inspect
import re
from collections.abc import Iterable
from typing import Any, Self, Unpack

import keras
import numpy as np
import tensorflow as tf

from tf_graft.core import (
    accumulation,
    options,
    averaging,
    checks,
    matching,
    numerics,
    rates,
    replicas,
    slots,
    state,
)
from tf_graft.core.identity import Identity
from tf_graft.core.parameters import Parameter, Parameters, paths
from tf_graft.core.placed import Placed
from tf_graft.core.rates import Rates
from tf_graft.core.saving import Saving
from tf_graft.core.slots import Slot

MASTER = Slot(dtype="float32")
COUNTER = Slot(dtype="int64", within=slots.COUNTS)
RATES = (0.0, float(np.finfo(np.float32).max))


class Lifecycle(Saving, Placed):
    """Everything of `Optimizer` that is not the step itself."""

    def __init__(self, learning_rate: Any, **common: Unpack[options.Common]):
        owner = type(self).__name__
        given = options.checked(owner, self._own_arguments(), dict(common))
        self_made = ("mesh", "jit_compile", "sparse", "nonfinite", "exclude_from_weight_decay")
        own = {name: given.pop(name) for name in self_made}  # type: ignore[misc]
        super().__init__(learning_rate=rates.rate(owner, learning_rate), **given)
        self.jit_compile = own["jit_compile"]
        self.sparse = own["sparse"]
        self.nonfinite = own["nonfinite"]
        self._decay_exclusions = own["exclude_from_weight_decay"]
        self.settle(own["mesh"])
        self._parameters = Parameters({})
        self._strategy = tf.distribute.get_strategy()
        self._everywhere = replicas.Everywhere()
        self._scalars = {self.iterations.name: self.iterations}
        self.iterations.within = COUNTER.within
        for rate in Rates.rate_variables(self).values():
            rate.within = RATES
        self.skipped_steps = self._scalar("skipped_steps")
        self.micro_steps = self._scalar("micro_steps")
        if self.gradient_accumulation_steps and self.nonfinite == "skip":
            self.spoiled_micro_steps = self._scalar("spoiled_micro_steps")
        self._identity = Identity(self.signature, self._saved_variables, self._restore)

    def slots(self) -> dict[str, Slot]:
        """What is remembered for each variable, by role. Roles are checkpoint keys."""
        return {}

    def slots_for(self, path: str) -> dict[str, Slot]:
        """`slots`, where they differ from variable to variable."""
        return self.slots()

    def shared_slots(self) -> dict[str, Slot]:
        """What is remembered once, not for each variable."""
        return {}

    def prepare(self, variables: dict[str, Any]) -> None:
        """Looks at the variables, by path, before any state is made for them."""

    def complete(self, parameters: list[Parameter]) -> None:
        """Makes what stands on the state of the variables, after it was made.

        Args:
            parameters: the variables, with the slots of this optimizer by its own roles.
        """

    def build(self, variables: Iterable[Any]) -> None:
        """Creates all state for the variables. Building again for the same ones does nothing.

        Raises:
            TypeError: what is no variable, or one that is not floating point.
            ValueError: a variable given twice, or others than the optimizer was built for.
        """
        variables = matching.variables(f"{type(self).__name__}.build", variables)
        keys = [self._key(variable) for variable in variables]
        self._check_buildable(variables, keys)
        if self.built:
            return
        self._examine()
        made_under, self._strategy = self._strategy, replicas.strategy_of(variables)
        with tf.init_scope(), replicas.creating_under(self._strategy):
            self.settle(self.mesh or slots.mesh_of(variables), made_under is not self._strategy)
        with replicas.ahead_of(variables), replicas.creating_under(self._strategy):
            by_path = dict(zip(paths(variables), variables, strict=True))
            self.prepare(by_path)
            built = self._make_state(by_path)
            self.complete(built)
            self._parameters = Parameters(dict(zip(keys, built, strict=True)))
            self._state = {p.path: {**p.slots, **p.state} for p in built}
            try:
                self._settle_awaited()
            finally:  # it is built, whether what it waited for fits or not
                self._declare(variables, self._strategy)

    def _check_buildable(self, variables: list[Any], keys: list[Any]) -> None:
        owner = f"{type(self).__name__}.build"
        replicas.refuse_divided(owner, variables)
        matching.refuse_untrainable(owner, variables, keys)
        if self.built and any(self._parameters.get(key) is None for key in keys):
            raise ValueError(
                f"{owner}: it was built for other variables; make a new optimizer for these."
            )

    def _make_state(self, variables: dict[str, Any]) -> list[Parameter]:
        """Makes the state of the variables, by path, and the shared state."""
        own = {path: self.slots_for(path) for path in variables}
        engine = {path: self._engine_slots(variable) for path, variable in variables.items()}
        shared = self.shared_slots()
        state.refuse_clashes(type(self).__name__, own, engine, shared, self._early_variables())
        self._shared = {
            role: self._keep(slots.create((self.name,), role, slot, "float32", mesh=self.mesh))
            for role, slot in shared.items()
        }
        return [self._parameter(v, path, own[path], engine[path]) for path, v in variables.items()]

    def _engine_slots(self, variable: Any) -> dict[str, Slot]:
        """What the engine keeps for a variable, by role."""
        engine: dict[str, Slot] = {}
        if tf.as_dtype(variable.dtype) in numerics.HALF:
            engine["master"] = MASTER
        if self.use_ema:
            engine |= averaging.SLOTS
        if self.gradient_accumulation_steps:
            engine |= accumulation.SLOTS
        return engine

    def _parameter(
        self, variable: Any, path: str, own: dict[str, Slot], engine: dict[str, Slot]
    ) -> Parameter:
        dtype = numerics.compute_dtype(tf.as_dtype(variable.dtype)).name

        def made(roles: dict[str, Slot]) -> dict[str, keras.Variable]:
            return {
                role: self._keep(
                    slots.create((self.name, path), role, slot, dtype, variable, self.mesh)
                )
                for role, slot in roles.items()
            }

        return Parameter(variable, path, made(own), made(engine))

    def lacks_state(self) -> bool:
        """Whether the engine keeps less than its arguments ask for by now."""
        counts = self.gradient_accumulation_steps and self.nonfinite == "skip"
        return (counts and not hasattr(self, "spoiled_micro_steps")) or any(
            self._engine_slots(p.variable).keys() - p.state.keys() for p in self._parameters
        )

    def decays(self, path: str) -> bool:
        """Whether decoupled weight decay applies to the variable of that path."""
        return bool(self.weight_decay) and not checks.matches(path, self._decay_exclusions)

    def _scalar(self, role: str, slot: Slot = COUNTER) -> keras.Variable:
        """State that is there before anything is built: a counter, unless it says otherwise."""
        made = self._keep(slots.create((self.name,), role, slot, "float32", mesh=self.mesh))
        self._scalars[role] = made
        return made

    @property
    def iterations(self) -> keras.Variable:
        """How many updates have been made; micro-steps and skipped steps do not count."""
        return self._count_variable()

    def _done(self) -> tf.Tensor:
        """`iterations` as the calling replica sees it."""
        return tf.convert_to_tensor(replicas.local(self.iterations))

    def exclude_from_weight_decay(
        self, var_list: Iterable[Any] | None = None, var_names: Iterable[str] | None = None
    ) -> None:
        """Adds variables, or patterns for their paths, that weight decay leaves alone.

        Raises:
            ValueError: the optimizer has been built.
        """
        owner = f"{type(self).__name__}.exclude_from_weight_decay"
        if self.built:
            raise ValueError(f"{owner}: call it before the optimizer is built.")
        given = [] if var_list is None else matching.variables(owner, var_list)
        exact = [f"^{re.escape(path)}$" for path in paths(given)]
        named = checks.patterns(owner, "var_names", var_names) or []
        self._decay_exclusions = [*self._decay_exclusions, *exact, *named]

    def get_config(self) -> dict[str, Any]:
        """Every argument of the constructor but `mesh`, as plain values: the mesh of one process
        is not another's.
        """
        config = super().get_config()
        config |= {n: getattr(self, n) for n in self._own_arguments() if n not in config}
        config |= {
            "jit_compile": self.jit_compile,
            "sparse": self.sparse,
            "nonfinite": self.nonfinite,
            "exclude_from_weight_decay": list(self._decay_exclusions),
        }
        return config

    @classmethod
    def _own_arguments(cls) -> list[str]:
        """The arguments a class adds to the common ones; each is an attribute of the same name."""
        names = inspect.signature(cls.__init__).parameters
        return [name for name in names if name not in ("self", "common")]

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: Any = None) -> Self:
        """The optimizer that `get_config` describes, without its state."""
        config = dict(config)
        if isinstance(config.get("mesh"), str):  # saved by an earlier version
            del config["mesh"]
        return super().from_config(config, custom_objects=custom_objects)
