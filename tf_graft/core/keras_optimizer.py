"""A Keras optimizer without its updates: arguments, gradients, state and files."""

import contextlib
import threading
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Self, Unpack

import keras
import tensorflow as tf
from tensorflow.experimental import dtensor

from tf_graft.core import building, checks, keras_contract, patterns
from tf_graft.core.arguments import declared, description, multipliers, options, rates, signatures
from tf_graft.core.arguments.checked import Checked
from tf_graft.core.arguments.multipliers import Multipliers
from tf_graft.core.arguments.options import Common, Options
from tf_graft.core.arguments.settable import Settable
from tf_graft.core.building import Builder
from tf_graft.core.files.identity import Named
from tf_graft.core.files.saving import SavedState
from tf_graft.core.pipeline import matching
from tf_graft.core.pipeline.skips import Skips
from tf_graft.core.places import replicas
from tf_graft.core.state import slots, write
from tf_graft.core.state.optimizer_state import OptimizerState
from tf_graft.core.state.parameters import Parameter, Parameters, paths
from tf_graft.core.state.slots import Slot
from tf_graft.core.types import (
    Config,
    Gradient,
    Key,
    RateLike,
    Scalar,
    Store,
    TensorLike,
    VariableLike,
)


@options.as_attributes
@keras_contract.with_private_methods
class KerasOptimizer(keras.optimizers.Optimizer):
    """A Keras optimizer except for `apply` and `build`; its state is saved by path and role.

    Attributes:
        parameters: the model's variables with their state; empty before `build`.
        skipped_steps: the number of updates that `nonfinite="skip"` skipped.
        fixed: whether the arguments can no longer be set, as compiled steps would not see a change.
        strategy: the strategy under which the model's variables were made.
    """

    parameters: Parameters
    strategy: tf.distribute.Strategy
    seen_skips: Skips
    spoiled_micro_steps: keras.Variable
    decay_exclusions: Sequence[str]
    learning_rate_multipliers: Multipliers | None
    fixed = False
    _shared: Mapping[str, keras.Variable] = types.MappingProxyType({})

    def __init__(self, learning_rate: RateLike = 0.001, **common: Unpack[Common]):
        owner = type(self).__name__
        given = options.checked(owner, self.own_arguments(), common)
        of_keras = {name: given.pop(name) for name in options.OF_KERAS}
        super().__init__(learning_rate=rates.rate(owner, learning_rate), **of_keras)
        for name, value in given.items():
            setattr(self, options.OPTIONS[name].kept_as, value)
        self.settle(self.mesh)
        self.parameters = Parameters({})
        self.strategy = tf.distribute.get_strategy()
        self._everywhere = replicas.Everywhere()
        self.seen_skips = Skips()
        self._one_at_a_time = threading.RLock()
        self._scalars = {self.iterations.name: self.iterations}
        keras_contract.bound(self, building.COUNTER.within, rates.WITHIN)
        for role in building.counters(self.common):
            setattr(self, role, self.add_scalar(role))
        self._saved = SavedState(self)
        self._identity = self._saved.identity  # for a checkpoint of TensorFlow
        declared.assign(self)
        kept: dict[str, Any] = self.__dict__
        for name, given in list(kept.items()):
            if isinstance(given, Settable):
                kept[name] = self.held_value(name, given)

    def __setattr__(self, name: str, value: Any) -> None:
        """Sets an attribute; that of an argument is checked, and one of nearly its name refused."""
        option = options.OPTIONS.get(name)
        if option is not None:
            name = option.kept_as
        elif declared.constructed(self):
            checks.refuse_misspelt(self, name, [*self.own_arguments(), *options.OPTIONS])
        super().__setattr__(name, value)

    @property
    def common(self) -> Options:
        """The current common arguments."""
        return Options.of(self)

    def everywhere(self, method: Callable[..., None], *args: Any, traced: bool = False) -> None:
        """Runs a method in each replica's context; see `replicas.Everywhere`."""
        self._everywhere(self.strategy, method, *args, traced=traced)

    def alone(self) -> contextlib.AbstractContextManager[object]:
        """A context in which no other thread takes a step eagerly."""
        return replicas.one_at_a_time(self._one_at_a_time)

    learning_rate = rates.LearningRate()

    @property
    def iterations(self) -> keras.Variable:
        """The number of updates so far; micro-steps and skipped steps do not count."""
        return keras_contract.count_of(self)

    def rates(self) -> dict[str, Scalar]:
        """Returns the current learning rates by role."""
        factors = multipliers.current(self.learning_rate_multipliers, self.iterations)
        return {"learning_rate": self.learning_rate, **factors}

    def scheduled(self) -> dict[str, Any]:
        """Returns the arguments that are schedules or settable, by role."""
        kept = vars(self).items()
        found = {n: x for n, x in kept if isinstance(x, rates.LearningRateSchedule)}
        return {f"value/{n}": x for n, x in found.items() if self._check_of(n) is not None}

    def values(self) -> dict[str, Scalar]:
        """Returns the values of these arguments at the next update by role; NaN out of range."""
        now = {role: x(self.iterations) for role, x in self.scheduled().items()}
        checks = {role: self._check_of(role.partition("/")[2]) for role in now}
        return {role: checks[role].or_nan(value) for role, value in now.items()}

    def _check_of(self, name: str) -> Any:
        """Returns what checks an argument; None for other attributes."""
        check = options.OPTIONS.get(name, getattr(type(self), name, None))
        return check if isinstance(check, Checked) else None

    def rate_variables(self) -> Named:
        """Returns the variables that hold learning rates, by role."""
        own = keras_contract.rate_variable(self)
        return {} if own is None else {own.name: own}

    def apply_gradients(
        self, grads_and_vars: Iterable[tuple[Gradient | None, VariableLike]]
    ) -> keras.Variable:
        """Calls `apply` with pairs of gradient and variable, and returns `iterations`."""
        owner = f"{type(self).__name__}.apply_gradients"
        self.apply(*matching.gradients_and_variables(owner, grads_and_vars))
        return self.iterations

    def minimize(
        self, loss: Any, var_list: Any, tape: tf.GradientTape | None = None
    ) -> keras.Variable:
        """Calls `compute_gradients` and `apply_gradients`, and returns `iterations`.

        Example:
            >>> from tf_graft.optimizers import SGD
            >>> w = tf.Variable(2.0)
            >>> int(SGD(0.25).minimize(lambda: w * w, [w])), float(w)
            (1, 1.0)
        """
        return self.apply_gradients(self.compute_gradients(loss, var_list, tape))

    def compute_gradients(
        self, loss: Any, var_list: Any, tape: tf.GradientTape | None = None
    ) -> list[tuple[Gradient | None, VariableLike]]:
        """Returns pairs of gradient and variable, as `apply_gradients` takes them.

        The gradients are those of `scale_loss(loss)`: they contain the loss scale, if there is one,
        and `apply_gradients` divides them by it.

        Args:
            loss: a function without arguments that returns the loss; or the loss, a tensor, with
                the tape that recorded it.
            var_list: the variables; or a function that returns them, for variables that are made
                when `loss` is called for the first time.
            tape: records a `loss` that is a function; None for a new tape.

        Raises:
            TypeError: `var_list` is no list of variables; the loss is not floating point.
            ValueError: the loss is a tensor without its tape.
        """
        owner = f"{type(self).__name__}.compute_gradients"
        if isinstance(var_list, tf.Variable | keras.Variable):
            raise TypeError(f"{owner}: var_list is a single variable; put it in a list.")
        known = [] if callable(var_list) else matching.variables(owner, var_list)
        if callable(loss):
            tape = tf.GradientTape() if tape is None else tape
            with tape:
                tape.watch([keras_contract.storage(variable) for variable in known])
                loss = matching.as_loss(owner, loss())
        elif tape is None:
            what = "a tensor" if tf.is_tensor(loss) else checks.shown(loss)
            raise ValueError(
                f"{owner}: the loss is {what}; give the tape that recorded it, or a function that "
                "computes the loss."
            )
        variables = matching.variables(owner, var_list()) if callable(var_list) else known
        scale = tf.cast(self.scale_loss(tf.ones_like(loss)), loss.dtype)
        gradients = tape.gradient(loss, variables, output_gradients=scale)
        return list(zip(gradients, variables, strict=True))

    @property
    def builder(self) -> Builder:
        """The builder that creates variables of the optimizer."""
        owner = type(self).__name__
        return Builder(owner, self.name, self.mesh, lambda v: keras_contract.keep(self, v))

    def add_scalar(self, role: str, slot: slots.Slot = building.COUNTER) -> keras.Variable:
        """Creates state that exists before the optimizer is built: a counter by default."""
        self._scalars[role] = self.builder.scalar(role, slot)
        return self._scalars[role]

    def held_value(self, name: str, given: Settable) -> Settable:
        """Returns the value of an argument, kept in a variable of this optimizer."""
        held = Settable(float(given))
        slot = Slot(held.value, dtype="float32", within=given.within)
        held.variable = self.builder.scalar(f"{name}_value", slot)
        setattr(self, f"_{name}_value", held.variable)  # for a checkpoint of TensorFlow
        return held

    def set_value(self, held: Settable, value: float) -> None:
        """Changes the value of an argument for the next step."""
        if held.variable is None:
            held.value = value
        else:
            write.put_everywhere(held.variable, value)

    def value_variables(self) -> Named:
        """Returns the variables that hold arguments that can be set between steps, by role."""
        held = (x.variable for x in vars(self).values() if isinstance(x, Settable))
        return {variable.name: variable for variable in held if variable is not None}

    def early_variables(self) -> Named:
        """Returns the variables that exist before the optimizer is built."""
        return {**self._scalars, **self.rate_variables(), **self.value_variables()}

    def settle(self, mesh: dtensor.Mesh | None, moved: bool = False) -> None:
        """Creates the present variables anew if the model's variables are in another place.

        Args:
            mesh: the mesh of the model's variables, if they are on one.
            moved: whether everything is in another place, such as under another strategy.
        """
        self.mesh = mesh
        self.builder.move(self.variables, moved)

    def add_variable(
        self,
        shape: Sequence[int],
        initializer: Any = "zeros",
        dtype: Any = None,
        aggregation: str | None = "none",
        layout: Any = None,
        name: str | None = None,
    ) -> keras.Variable:
        """Creates a variable as in Keras.

        If the optimizer is on a mesh, so is the variable; it is replicated unless you give a
        `tf.experimental.dtensor.Layout`.
        """
        if not isinstance(layout, dtensor.Layout):
            if self.mesh is None:
                of_keras = keras.optimizers.Optimizer.add_variable
                return of_keras(self, shape, initializer, dtype, aggregation, layout, name)
            layout = dtensor.Layout.replicated(self.mesh, len(shape))
        return self.builder.laid_out(layout, shape, initializer, dtype, name)

    def add_variable_from_reference(
        self,
        reference_variable: VariableLike,
        name: str | None = None,
        initializer: Any = "zeros",
    ) -> keras.Variable:
        """Creates a variable as in Keras; on a mesh it has the layout of the reference's slots."""
        layout = slots.slot_layout_of(reference_variable)
        if layout is None:
            of_keras = keras.optimizers.Optimizer.add_variable_from_reference
            return of_keras(self, reference_variable, name, initializer)
        (path,) = paths([reference_variable])
        name = f"{path.replace('/', '_')}_{name or 'var'}"
        like = reference_variable
        return self.builder.laid_out(layout, like.shape, initializer, like.dtype, name)

    def state(self, done: str) -> OptimizerState:
        """Returns the variables as the engine sees them; `done` names the counter of updates."""
        return OptimizerState(self.parameters, self._shared, self._scalars, done, self.mesh)

    def hold(self, parameters: dict[Key, Parameter], shared: Named) -> None:
        """Adds the state that was created, and assigns it values that were loaded before."""
        self.parameters = self.parameters.extended(parameters)
        self._shared = shared
        self._state = {p.path: {**p.slots, **p.state} for p in self.parameters}
        try:
            self._saved.settle()
        finally:  # the optimizer is built, whether the state that waited fits or not
            keras_contract.declare(self, [p.variable for p in self.parameters], self.strategy)

    def named_variables(self, place: str = "") -> Named:
        """Returns every variable of the optimizer by path and role; none before it is built.

        Args:
            place: a prefix for every role: `"center/"` for `dense/kernel/center/momentum`.
        """
        if not len(self.parameters):
            return {}
        shared = {**self.early_variables(), **self._shared}
        named = {f"{place}{role}": variable for role, variable in shared.items()}
        for p in self.parameters:
            named |= {f"{p.path}/{place}{r}": v for r, v in {**p.slots, **p.state}.items()}
        return named

    def exclude_from_weight_decay(
        self,
        var_list: Iterable[VariableLike] | None = None,
        var_names: Iterable[str] | None = None,
    ) -> None:
        """Excludes variables, or patterns for their paths, from weight decay.

        Raises:
            ValueError: the optimizer has been built.
        """
        owner = f"{type(self).__name__}.exclude_from_weight_decay"
        if self.fixed:
            raise ValueError(f"{owner}: call it before the optimizer is built.")
        given = [] if var_list is None else matching.variables(owner, var_list)
        exact = [patterns.exact(path) for path in paths(given)]
        named = checks.patterns(owner, "var_names", var_names) or []
        self.decay_exclusions = [*self.decay_exclusions, *exact, *named]

    def get_config(self) -> Config:
        """Returns every argument of the constructor except `mesh`, as plain values.

        `mesh` is left out because another process cannot use this process's mesh.
        """
        config = super().get_config()
        config |= {name: getattr(self, name) for name in self.own_arguments() if name not in config}
        return {name: declared.plain(x) for name, x in (config | self.common.config()).items()}

    @classmethod
    def from_config(cls, config: Config, custom_objects: Any = None) -> Self:
        """Returns the optimizer that a config describes, without its state."""
        return super().from_config(dict(config), custom_objects=custom_objects)

    @classmethod
    def own_arguments(cls) -> list[str]:
        """Returns the arguments that a class adds to the common ones, which are attributes too."""
        given = signatures.parameters(cls)
        return [p.name for p in given if p.kind is not p.VAR_KEYWORD]

    def arguments(self) -> Config:
        """Returns the current arguments of the constructor, which `repr` shows."""
        common = vars(self.common)
        names = dict.fromkeys([*self.own_arguments(), "learning_rate", *common])
        held = {n: getattr(self, n) for n in names if n not in common and hasattr(self, n)}
        held = {n: held.get(n, common.get(n)) for n in names if n in held or n in common}
        return held | {
            "learning_rate": keras_contract.rate_of(self),
            "mesh": description.mesh(self.mesh),
            "exclude_from_weight_decay": self.decay_exclusions or None,
        }

    def __repr__(self) -> str:
        usual = options.checked(type(self).__name__, (), {}) | {"exclude_from_weight_decay": None}
        return description.call(type(self), self.arguments(), usual)

    def save_own_variables(self, store: Store) -> None:
        """Writes the state into a Keras weights store, by path and role.

        Raises:
            CheckpointError: a checkpoint of TensorFlow was restored and the optimizer is not built.
        """
        self._saved.save(store)

    def load_own_variables(self, store: Store) -> None:
        """Reads the state back, by path and role: either all of it, or nothing changes.

        When Keras loads the weights of a model, its optimizer is built first. Otherwise, one that
        is not built takes its counters and rates at once, and the rest when it is built. From the
        state of a Keras optimizer it takes the part that is the same here; if there is none, a
        warning says so.

        Raises:
            CheckpointError: the state is another optimizer's, of other variables or damaged.
        """
        self._saved.load(store)

    def set_weights(self, weights: Iterable[TensorLike]) -> None:
        """Sets all variables, in the order of `variables`; on an error it changes none.

        If the optimizer is not built, as when Keras loads a model from `.h5`, it sets counters and
        rates at once, and the others when it is built, which then raises the errors.

        Raises:
            ValueError: there are too many or too few values, or they have another shape or dtype
                than the variables.
        """
        self._saved.set(weights)

    def examine(self) -> None:
        """Reads the optimizer's part of a checkpoint that is being restored."""
        self._saved.examine()

    def snapshot(self) -> Callable[[], None]:
        """Returns a function that restores the current state."""
        return self._saved.snapshot()
