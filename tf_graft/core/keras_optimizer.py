"""A Keras optimizer without its updates: arguments, gradients, state and files."""

import types
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar, Self, Unpack

import keras
import tensorflow as tf
from tensorflow.experimental import dtensor

from tf_graft.core import checks, keras_contract, patterns, variables
from tf_graft.core.arguments import declared, description, options, rates, signatures
from tf_graft.core.arguments.multipliers import Multipliers
from tf_graft.core.arguments.options import Common, Options
from tf_graft.core.arguments.settable import Settable
from tf_graft.core.files.saving import SavedState
from tf_graft.core.pipeline import matching
from tf_graft.core.pipeline.engine import Engine
from tf_graft.core.pipeline.scale import Scaling
from tf_graft.core.state import slots
from tf_graft.core.state.algorithm import Algorithm, refuse_mode
from tf_graft.core.state.parameters import paths
from tf_graft.core.state.rule import Rule
from tf_graft.core.types import (
    Config,
    Gradient,
    RateLike,
    Store,
    TensorLike,
    VariableLike,
)
from tf_graft.core.variables import Variables


@options.as_attributes
@keras_contract.with_private_methods
class KerasOptimizer(keras.optimizers.Optimizer, Algorithm):
    """A Keras optimizer except for `apply` and `build`; its state is saved by path and role.

    Attributes: see `Optimizer`.
    """

    rule: Rule
    engine: Engine
    state: Variables
    saved: SavedState
    skipped_steps: keras.Variable
    micro_steps: keras.Variable
    decay_exclusions: Sequence[str]
    learning_rate_multipliers: Multipliers | None
    _rule: ClassVar[type[Rule]] = Rule

    def __init_subclass__(cls, rule: type[Rule] | None = None, **options: Any):
        super().__init_subclass__(**options)
        if rule is not None:
            cls._rule = rule

    def __init__(self, learning_rate: RateLike = 0.001, **common: Unpack[Common]):
        keras_contract.guard_loading()
        owner = type(self).__name__
        given = options.checked(owner, signatures.own_arguments(type(self)), common)
        of_keras = {name: given.pop(name) for name in options.OF_KERAS}
        super().__init__(learning_rate=rates.rate(owner, learning_rate), **of_keras)
        kept: dict[str, Any] = self.__dict__
        kept.update({options.OPTIONS[name].kept_as: value for name, value in given.items()})
        refuse_mode(self)
        self.state, self.rule = Variables(self), self._rule(self)
        scaling = Scaling(lambda: self.loss_scale_factor)
        self.engine = Engine(owner, self.rule, lambda: Options.of(self), self.state, scaling)
        self.state.settle(self.mesh)
        keras_contract.bound(self, variables.COUNTER.within, rates.WITHIN)
        for role in variables.counters_of(self.engine.options):
            setattr(self, role, self.state.add_scalar(role))
        self.saved = SavedState(self)
        self._identity = self.saved.identity  # for a checkpoint of TensorFlow
        declared.assign(self)
        for name, given in list(kept.items()):
            if isinstance(given, Settable):
                kept[name] = self.state.hold_value(name, given)

    def __setattr__(self, name: str, value: Any) -> None:
        """Sets an attribute; that of an argument is checked, and one of nearly its name refused."""
        option = options.OPTIONS.get(name)
        if option is not None:
            name = option.kept_as
        elif vars(self).get(declared.CONSTRUCTED):
            own = signatures.own_arguments(type(self))
            checks.refuse_misspelt(self, name, [*own, *options.OPTIONS])
        super().__setattr__(name, value)

    learning_rate = rates.LearningRate()

    @property
    def iterations(self) -> keras.Variable:
        """The number of updates so far; micro-steps and skipped steps do not count."""
        return keras_contract.count_of(self)

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
        return self.state.laid_out(layout, shape, initializer, dtype, name)

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
        return self.state.laid_out(layout, like.shape, initializer, like.dtype, name)

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
        if self.rule.fixed:
            raise ValueError(f"{owner}: call it before the optimizer is built.")
        given = [] if var_list is None else matching.variables(owner, var_list)
        exact = [patterns.exact(path) for path in paths(given)]
        named = checks.patterns(owner, "var_names", var_names) or []
        self.decay_exclusions = [*self.decay_exclusions, *exact, *named]

    def get_config(self) -> Config:
        """Returns every argument of the constructor except `mesh`, as plain values.

        `mesh` is left out because another process cannot use this process's mesh.
        """
        return config_of(self, signatures.own_arguments(type(self)))

    @classmethod
    def from_config(cls, config: Config, custom_objects: Any = None) -> Self:
        """Returns the optimizer that a config describes, without its state."""
        return super().from_config(_copied(config), custom_objects=custom_objects)

    def __repr__(self) -> str:
        return written(self)

    def save_own_variables(self, store: Store) -> None:
        """Writes the state into a Keras weights store, by path and role.

        Raises:
            CheckpointError: a checkpoint of TensorFlow was restored and the optimizer is not built.
        """
        self.saved.save(store)

    def load_own_variables(self, store: Store) -> None:
        """Reads the state back, by path and role: either all of it, or nothing changes.

        When Keras loads the weights of a model, its optimizer is built first. Otherwise, an
        optimizer that is not built takes its counters and rates at once, and the rest when it is
        built. From the state of a Keras optimizer it takes the part that is the same here; if there
        is none, a warning says so.

        Raises:
            CheckpointError: the state is another optimizer's, of other variables or damaged.
        """
        self.saved.load(store)

    def set_weights(self, weights: Iterable[TensorLike]) -> None:
        """Sets all variables, in the order of `variables`; on an error it changes none.

        If the optimizer is not built, as when Keras loads a model from `.h5`, it sets counters and
        rates at once, and the others when it is built, which then raises the errors.

        Raises:
            ValueError: there are too many or too few values, or they have another shape or dtype
                than the variables.
        """
        self.saved.set(weights)


def config_of(optimizer: KerasOptimizer, own: Iterable[str]) -> Config:
    """Returns the arguments of an optimizer as plain values, for `get_config`.

    Args:
        optimizer: the optimizer.
        own: the arguments that its class adds to the common ones; each is an attribute.
    """
    config = {name: getattr(optimizer, name) for name in own}
    config |= keras.optimizers.Optimizer.get_config(optimizer)
    config |= Options.of(optimizer).config()
    return {name: declared.plain(value) for name, value in config.items()}


def _copied(config: Any) -> Any:
    """Copies a config's dicts and lists, in which Keras and TensorFlow replace values."""
    if isinstance(config, dict):
        return {key: _copied(value) for key, value in config.items()}
    return [*map(_copied, config)] if isinstance(config, list) else config


def written(
    optimizer: KerasOptimizer, instead: Mapping[str, Any] = types.MappingProxyType({})
) -> str:
    """Returns an optimizer as the call that makes it, for `repr`.

    Args:
        optimizer: the optimizer.
        instead: arguments that are not the attributes of their names; None for those to leave out.
    """
    cls, common = type(optimizer), vars(Options.of(optimizer))
    names = dict.fromkeys([*signatures.own_arguments(cls), "learning_rate", *common, *instead])
    arguments = {name: getattr(optimizer, name) for name in names if hasattr(optimizer, name)}
    arguments |= {
        **common,
        "learning_rate": keras_contract.rate_of(optimizer),
        "mesh": description.mesh(optimizer.mesh),
        "exclude_from_weight_decay": optimizer.decay_exclusions or None,
        **instead,
    }
    given = {n: arguments[n] for n in names if n in arguments and instead.get(n, ...) is not None}
    usual = options.checked(cls.__name__, (), {}) | {"exclude_from_weight_decay": None}
    return description.call(cls, given, usual)
