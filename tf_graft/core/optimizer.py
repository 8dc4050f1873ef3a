"""The class that users subclass and call: an algorithm with the engine that runs it."""

import weakref
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar

import keras
import numpy as np
import tensorflow as tf

from tf_graft.core import building, checks, contract, keras_contract, variable_table
from tf_graft.core.arguments import (
    checked,
    declared,
    description,
    multipliers,
    rates,
    signatures,
)
from tf_graft.core.keras_optimizer import KerasOptimizer
from tf_graft.core.pipeline import matching, skips
from tf_graft.core.pipeline.engine import Engine
from tf_graft.core.pipeline.exchange import Exchange
from tf_graft.core.pipeline.scale import Scaling
from tf_graft.core.places import replicas
from tf_graft.core.state import slots
from tf_graft.core.state.algorithm import Algorithm, Watcher, Watchers
from tf_graft.core.state.parameters import Parameter
from tf_graft.core.state.point import multiplied
from tf_graft.core.types import Gradient, Key, Rates, Scalar, VariableLike


@signatures.complete
class Optimizer(KerasOptimizer, Algorithm):
    """A Keras optimizer made of two pure functions, `slots` and `step`.

    A subclass declares its state and proposes steps; the engine writes them into variables. `apply`
    runs these stages in this order: check, aggregate over replicas, coalesce repeated rows, judge
    finiteness, unscale, accumulate, clip, propose, write (with decay and constraint), average,
    count.

    Attributes:
        skipped_steps: the number of updates that `nonfinite="skip"` skipped.

    Args:
        learning_rate: a number, at least 0; a `LearningRateSchedule`; or a callable without
            arguments.
        **common: see `tf_graft.algorithm.Common`.

    Raises:
        TypeError: an argument of the wrong type.
        ValueError: an argument out of its range; the message names it.
    """

    # What `dir` shows beside the arguments and Keras' names: for users, then for authors.
    offers: ClassVar[tuple[str, ...]] = (
        *("compute_gradients", "loss_scale", "micro_steps", "minimize", "skipped_steps"),
        *("synchronized_averages", "table", "warn_of_skips"),
        *("advance", "exact_kernel", "idle", "kernel", "kernel_reads", "propose", "rowwise"),
        *("shared_slots", "skips_zero_rows", "slots", "slots_for", "step", "traits", "whole"),
    )
    # The roles of the slots of Keras' optimizer of that name, in its order.
    keras_slots: Sequence[Sequence[str]] | None = None
    # Whether `build` can add state for further variables later.
    extends = True
    _watcher: Watchers | None = None
    _models: Sequence[weakref.ref[keras.Model]] = ()

    def __init_subclass__(cls, **options: Any):
        super().__init_subclass__(**options)
        contract.check_class(cls)
        declared.declare(cls)
        signatures.complete(cls)

    @property
    def engine(self) -> Engine:
        """The pipeline of `apply`."""
        parts = (self.common, self.state(self.counted_by()), self.scaling(), self.exchange())
        return Engine(type(self).__name__, self, *parts, self._watcher, self.seen_skips)

    def scaling(self) -> Scaling:
        """Returns the part of the pipeline that scales the loss."""
        return Scaling(self.loss_scale_factor)

    def exchange(self) -> Exchange:
        """Returns the part of the pipeline in which replicas communicate."""
        return Exchange()

    def counted_by(self) -> str:
        """Returns the role of the counter that bias corrections use."""
        return self.iterations.name

    def scale_loss(self, loss: tf.Tensor) -> tf.Tensor:
        """Returns the loss times the loss scale; Keras' `fit` calls this method."""
        return self.scaling().scaled(loss)

    def loss_scale(self) -> Scalar | None:
        """Returns the factor of `scale_loss`; None for no factor."""
        return self.scaling().scale()

    @tf.autograph.experimental.do_not_convert
    def apply(
        self,
        grads: Iterable[Gradient | None],
        trainable_variables: Iterable[VariableLike] | None = None,
    ) -> None:
        """Updates the variables.

        Args:
            grads: one gradient per variable, each a tensor of the variable's shape, a
                `tf.IndexedSlices`, or None (then that variable and its state are left alone).
            trainable_variables: the variables; None for all that the optimizer was built for.

        Raises:
            TypeError: an argument is no list; an entry is no gradient or no variable; a gradient is
                not floating point; row indices are not integers.
            ValueError: gradients and variables differ in number or shape; a variable is unknown or
                given twice; there is no gradient at all.
            tf.errors.InvalidArgumentError: a row is out of range; with `nonfinite="raise"`, a
                gradient is not finite or too large, or such a learning rate. Whatever is raised,
                nothing has changed.

        Threads that call `apply` eagerly wait for each other. Steps of a `tf.function` do not wait:
        call such a function from one thread at a time.
        """
        with self.alone():
            self._apply(grads, trainable_variables)

    @tf.autograph.experimental.do_not_convert
    def apply_summed(
        self, gradients: Iterable[Gradient | None], variables: Iterable[VariableLike]
    ) -> None:
        """Like `apply`, for gradients that are already summed over the replicas."""
        with self.alone():
            self._apply(gradients, variables, summed=True)

    def _apply(
        self,
        grads: Iterable[Gradient | None],
        trainable_variables: Iterable[VariableLike] | None,
        summed: bool = False,
    ) -> None:
        owner = f"{type(self).__name__}.apply"
        given = checks.listed(f"{owner}: the gradients are {{}}; they must be in a list.", grads)
        variables = trainable_variables
        variables = None if variables is None else matching.variables(owner, variables)
        if not given and not variables:
            return
        parameters = self.parameters_for("apply", variables)
        gradients, parameters = self._unfrozen(*matching.pairs(owner, given, parameters))
        if not parameters:
            return
        # Plain tensors given from outside the replicas are already sums over the replicas.
        summed |= replicas.outside(self.strategy) and not any(
            isinstance(g, tf.distribute.DistributedValues) for g in gradients
        )
        with tf.name_scope(self.name.lstrip("_")):  # a scope must not begin with "_"
            self.everywhere(self._receive, gradients, parameters, summed)

    def _unfrozen(
        self, gradients: list[Gradient], parameters: list[Parameter]
    ) -> tuple[list[Gradient], list[Parameter]]:
        """Returns the gradients and parameters whose multiplier is not 0."""
        factors, both = self.learning_rate_multipliers, zip(gradients, parameters, strict=True)
        kept = [(g, p) for g, p in both if not multipliers.freezes(factors, p.path)]
        return [g for g, _ in kept], [p for _, p in kept]

    def _receive(self, gradients: list[Any], parameters: list[Parameter], summed: bool) -> None:
        self.engine.receive(gradients, parameters, summed)

    @tf.autograph.experimental.do_not_convert
    def apply_coalesced(self, gradients: list[Gradient], variables: Iterable[VariableLike]) -> None:
        """Applies gradients as the pipeline has them, summed and each row once, in a replica."""
        parameters = self.parameters_for("apply_coalesced", list(variables))
        self._receive(*self._unfrozen(gradients, parameters), True)

    @tf.autograph.experimental.do_not_convert
    def update_step(
        self, gradient: Gradient, variable: VariableLike, learning_rate: Scalar
    ) -> None:
        """Updates one variable without aggregation, checks, clipping, averaging and counting."""
        owner = f"{type(self).__name__}.update_step"
        rate = rates.number_or_tensor(owner, learning_rate)
        variables = matching.variables(owner, [variable])
        parameters = self.parameters_for("update_step", variables)
        gradients, parameters = self._unfrozen(*matching.pairs(owner, [gradient], parameters))
        self.everywhere(self._update_alone, gradients, parameters, rate)

    def _update_alone(
        self, gradients: list[Any], parameters: list[Parameter], rate: tf.Tensor
    ) -> None:
        self.engine.update_alone(
            gradients, parameters, {**self.rates(), **self.values(), "learning_rate": rate}
        )

    def parameters_for(
        self, method: str, variables: Sequence[VariableLike] | None
    ) -> list[Parameter]:
        """Returns the parameters of variables; builds the optimizer for them if necessary."""
        owner = f"{type(self).__name__}.{method}"
        if variables is None:
            if not self.built:
                raise ValueError(f"{owner}: without variables the optimizer must be built first.")
            return list(self.parameters)
        if not self.built:
            self.build(variables)
        keys = [keras_contract.key_of(self, variable) for variable in variables]
        known = [key in self.parameters for key in keys]
        if any(known) and not all(known):
            self.build(variables)
        return matching.parameters_for(owner, self.parameters, keys, variables)

    def finalize_variable_values(self, var_list: Iterable[VariableLike]) -> None:
        """Assigns the averages to the variables with `use_ema`; `fit` calls it when it ends.

        It also warns if ten updates in a row were skipped: compiled steps cannot.
        """
        self.warn_of_skips()
        if self.use_ema:
            owner = f"{type(self).__name__}.finalize_variable_values"
            variables = matching.variables(owner, var_list)
            wanted = self.parameters_for("finalize_variable_values", variables)
            self.everywhere(self._finalize, wanted, traced=True)

    def warn_of_skips(self) -> None:
        """Warns if ten updates in a row were skipped; once, until another update is made.

        Steps that are not compiled warn by themselves, and `finalize_variable_values`, with which
        `fit` ends, calls this method. Call it now and then in a compiled loop of your own, such as
        once an epoch; it only reads two counters. If updates were made since the last call, it
        warns if there were ten times as many skipped ones, as then ten were in a row.
        """
        counters = {"iteration": self.iterations, "skipped_steps": self.skipped_steps}
        if tf.executing_eagerly() and self.seen_skips.found(counters):
            skips.warn(type(self).__name__)

    def _finalize(self, parameters: list[Parameter]) -> None:
        self.engine.overwrite(parameters)

    def table(self) -> str:
        """Returns a table, as text: the present learning rate of each variable, and its decay.

        Raises:
            ValueError: the optimizer is not built.
        """
        self.parameters_for("table", None)
        return variable_table.table(self)

    def synchronized_averages(self) -> list[keras.Variable]:
        """Returns the averages of all variables as of the last update, in the variables' order."""
        self.everywhere(self._synchronize, traced=True)
        return [parameter.state["average"] for parameter in self.parameters]

    def _synchronize(self) -> None:
        self.engine.synchronize(list(self.parameters))

    def build(self, variables: Iterable[VariableLike | keras.Model] | keras.Model) -> None:
        """Creates all state for the variables. Building again for the same ones does nothing.

        Optimizers of matrices, such as `Muon`, also ask the model's layers what is a matrix. They
        know the model in `fit`, and in every other method of it. In a loop of your own, give
        `build` the model before the first step.

        If some of the variables are new, because a layer was unfrozen or a head was replaced, the
        optimizer adds state for them. The other state stays, even that of variables that are not
        among the given ones: it waits for their return.

        Args:
            variables: a list of variables; or a built model, or a list of models that are trained
                together, for their trainable variables.

        Raises:
            TypeError: an entry is no variable, or a variable is not floating point.
            ValueError: a variable is given twice; a model is not built; the optimizer was built for
                other variables only; a new variable has the name of one that it was built for; or
                the optimizer is an `AGN` or a wrapped Keras optimizer, which cannot add variables.
        """
        with self.alone():
            self.build_for(
                *matching.variables_and_models(f"{type(self).__name__}.build", variables)
            )

    def build_for(
        self, variables: Sequence[VariableLike], models: Sequence[keras.Model] = ()
    ) -> None:
        """Creates all state for variables of models; if none are given, the caller's is looked for.

        Args:
            variables: the variables.
            models: the models that hold them, or for whose variables they stand.
        """
        owner = f"{type(self).__name__}.build"
        keys = [keras_contract.key_of(self, variable) for variable in variables]
        replicas.refuse_unwritable(owner, variables)
        matching.refuse_untrainable(owner, variables, keys)
        if not self.built:
            self._place(variables)
        new = {key: v for key, v in zip(keys, variables, strict=True) if key not in self.parameters}
        if self.built and new:
            self._refuse_others(owner, len(new) == len(keys))
        if new:
            found = models or keras_contract.calling_models(variables)
            self._models = [weakref.ref(model) for model in found] or self._models
            self._add_state(list(new), self.parameters.paths_with(owner, list(new.values())))

    def _refuse_others(self, owner: str, all_new: bool) -> None:
        """Refuses to add variables, if all of them are new or if the class cannot do it."""
        if all_new:
            raise ValueError(
                f"{owner}: it was built for other variables; make a new optimizer for these."
            )
        if not self.extends:
            raise ValueError(
                f"{owner}: it was built for fewer variables, and {self.called} cannot add any; "
                "make a new optimizer for these."
            )

    def _place(self, variables: Sequence[VariableLike]) -> None:
        """Moves the optimizer's present variables to where the model's variables are."""
        self.examine()
        made_under, self.strategy = self.strategy, replicas.strategy_of(variables)
        with tf.init_scope(), replicas.creating_under(self.strategy):
            self.settle(self.mesh or slots.mesh_of(variables), made_under is not self.strategy)

    def _add_state(self, keys: Sequence[Key], new: Mapping[str, VariableLike]) -> None:
        """Creates the state of new variables, by path, beside the present state."""
        known = {p.path: p.variable for p in self.parameters}
        with replicas.ahead_of(new.values()), replicas.creating_under(self.strategy):
            self.introduce({**known, **new}, self.outer_exclusions, self.models)
            contract.check(self, new)
            early, present = self.early_variables(), self.state(self.counted_by()).shared
            built, shared = self.builder.state(self, self.common, new, early, present)
            self.complete([*self.parameters, *built])
            self.hold(dict(zip(keys, built, strict=True)), shared)

    def introduce(
        self,
        variables: Mapping[str, VariableLike],
        excluded: Sequence[str],
        models: Sequence[keras.Model],
    ) -> None:
        """Shows the variables to the optimizer and fixes its arguments.

        Args:
            variables: the variables by path; there is no state for them yet.
            excluded: the patterns of paths that an optimizer around this one excludes from decay.
            models: the models that are trained, as far as they are known.
        """
        self.outer_exclusions = excluded
        self._models = [weakref.ref(model) for model in models]
        checked.warn_of_idle_patterns(self, list(variables))
        multipliers.refuse_idle(self.called, self.learning_rate_multipliers, variables)
        self.prepare(variables)
        self.fixed = True

    @property
    def models(self) -> list[keras.Model]:
        """The models that are trained, as far as they are known."""
        return [model for model in (known() for known in self._models) if model is not None]

    def multiplier_role(self, path: str) -> str | None:
        """Returns the role, among `rates`, of the multiplier of a variable's learning rate."""
        return multipliers.role_of(self.learning_rate_multipliers, path)

    def rate_of(self, path: str, rates: Rates) -> Scalar:
        """Returns the learning rate of the variable of a path, of the optimizer's rates by role."""
        return self.rates_for(path, rates)["learning_rate"]

    def rates_for(self, path: str, rates: Rates) -> Rates:
        """Returns the rates by role, with the multiplier of the variable of a path."""
        role = self.multiplier_role(path)
        return rates if role is None else multiplied(rates, rates[role])

    def lacks_state(self) -> bool:
        """Returns whether the engine keeps less state than the arguments now require."""
        return building.lacks(self.common, self.early_variables(), self.parameters)

    def signature(self) -> str:
        """Returns the class name that identifies the state."""
        return type(self).__name__

    def __dir__(self) -> list[str]:
        hidden = description.internal(type(self)) - {*self.own_arguments(), *vars(self.common)}
        return [name for name in super().__dir__() if name not in hidden]

    @property
    def called(self) -> str:
        """Returns the class name that messages show."""
        return type(self).__name__

    def namesake(self) -> str | None:
        """Returns the class of the Keras optimizer that keeps the same state."""
        return None if self.keras_slots is None else type(self).__name__

    def slots_in_keras(self) -> Sequence[str | None]:
        """Returns the names of the slots as the namesake saves them; None where it has one more."""
        if not len(self.parameters):
            return []
        own = [
            f"{p.path}/{role}"
            for group in self.keras_slots or ()
            for p in self.parameters
            for role in group
            if role in p.slots
        ]
        return [*own, *self.shared_slots()]

    def slot_from_keras(self, role: str, value: np.ndarray) -> np.ndarray:
        """Returns a slot's value, converted from the namesake's."""
        return value

    def watch(self, watcher: Watcher, name: str = "watcher") -> None:
        """Registers a callback that receives each update's gradients, before they are clipped.

        The callback is called in each replica's context with the gradients (summed over replicas,
        unscaled, each row once, the means of accumulation) and their parameters, even if the update
        is then skipped. It replaces an earlier callback of the same name. Register it before the
        first step is traced.
        """
        if not callable(watcher):
            raise TypeError(f"{type(self).__name__}.watch: {checks.shown(watcher)} is no function.")
        self._watcher = Watchers(self._watcher, name, watcher)
