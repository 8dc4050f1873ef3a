"""The engine's face: the entry points that Keras and users call."""

from collections.abc import Iterable
from typing import Any, Unpack

import keras
import tensorflow as tf
from tensorflow.experimental import dtensor

from tf_graft.core import (
    arguments,
    averaging,
    checks,
    description,
    keras_contract,
    matching,
    rates,
    replicas,
)
from tf_graft.core.parameters import Parameter
from tf_graft.core.pipeline import Pipeline, in_precision
from tf_graft.core.write import Part, Whole

# What the engine's parts ask of one another: `dir`, and with it tab completion, leaves it out.
INTERNAL = {
    *("aggregate", "apply_summed", "complete", "decays", "divisor", "join", "judged"),
    *("keras_slots", "meet", "named_variables", "outermost", "penalized", "prepare", "proposals"),
    *("rate_variables", "rates", "settle", "signature", "slot_from_keras", "snapshot"),
    *("spoiled_micro_steps", "lacks_state", "watch", "write_by_kernel"),
    # of wrappers
    *("accumulated_steps", "adapts", "centers", "check_finite", "children", "follow"),
    *("handed_over", "local_step", "on_servers", "ratio", "show_center", "take_center"),
}


class Optimizer(Pipeline):
    """A Keras optimizer made of two pure functions, `slots` and `step`.

    A subclass says what it remembers and what it proposes; this class alone writes variables.
    `apply` goes through, in this order: check, aggregate over replicas, coalesce repeated rows,
    unscale, judge finiteness, accumulate, clip, propose, write (with decay and constraint),
    average, count.

    Attributes:
        rowwise: each row of a variable is updated from that row alone.
        idle: a zero gradient changes neither slots nor weights.
        skipped_steps: how many updates were left out by `nonfinite="skip"`.

    Args:
        learning_rate: a number, at least 0; a `LearningRateSchedule`; or a callable without
            arguments.
        **common: see `tf_graft.core.arguments.Common`.

    Raises:
        TypeError: an argument of the wrong type.
        ValueError: an argument out of its range, named.
    """

    def __init__(self, learning_rate: Any = 0.001, **common: Unpack[arguments.Common]):
        super().__init__(learning_rate, **common)

    @tf.autograph.experimental.do_not_convert
    def apply(self, grads: Iterable[Any], trainable_variables: Iterable[Any] | None = None) -> None:
        """Updates the variables.

        Args:
            grads: one gradient per variable, each a tensor of the variable's shape, a
                `tf.IndexedSlices`, or None (then that variable and its state are left alone).
            trainable_variables: the variables; all that the optimizer was built for when None.

        Raises:
            TypeError: no list; what is no gradient or no variable; a gradient that is not floating
                point; rows that are not integers.
            ValueError: gradients and variables differ in number or shape; a variable is unknown or
                given twice; there is no gradient at all.
            tf.errors.InvalidArgumentError: a row out of range; with `nonfinite="raise"` a gradient
                that is not finite or too large, or such a learning rate. Whatever is raised,
                nothing has changed.
        """
        owner = f"{type(self).__name__}.apply"
        grads = checks.listed(f"{owner}: the gradients are {{}}; they must be in a list.", grads)
        variables = trainable_variables
        variables = None if variables is None else matching.variables(owner, variables)
        if not grads and not variables:
            return
        gradients, parameters = matching.pairs(
            owner, grads, self._parameters_for("apply", variables)
        )
        # Plain tensors given from outside the replicas are sums over them already.
        summed = replicas.outside(self._strategy) and not any(
            isinstance(g, tf.distribute.DistributedValues) for g in gradients
        )
        with tf.name_scope(self.name.lstrip("_")):  # a scope may not begin with one
            self._everywhere(self._strategy, self._receive, gradients, parameters, summed)

    def minimize(self, loss: Any, var_list: Any, tape: tf.GradientTape | None = None) -> Any:
        """`apply_gradients` of `compute_gradients`; returns `iterations`.

        Example:
            >>> from tf_graft.optimizers import SGD
            >>> w = tf.Variable(2.0)
            >>> int(SGD(0.25).minimize(lambda: w * w, [w])), float(w)
            (1, 1.0)
        """
        return self.apply_gradients(self.compute_gradients(loss, var_list, tape))

    def compute_gradients(
        self, loss: Any, var_list: Any, tape: tf.GradientTape | None = None
    ) -> list[tuple[Any, Any]]:
        """Pairs of gradient and variable, as `apply_gradients` takes them.

        They are those of `scale_loss(loss)`: with a loss scale, times the scale, which
        `apply_gradients` divides them by.

        Args:
            loss: a function without arguments that returns the loss; or the loss, a tensor, with
                the tape that recorded it.
            var_list: the variables; or a function that returns them, for variables that are made
                when `loss` is called for the first time.
            tape: records a `loss` that is a function; a new one when None.

        Raises:
            TypeError: `var_list` is no list of variables; the loss is not floating point.
            ValueError: a loss that is a tensor, without its tape.
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

    def apply_gradients(self, grads_and_vars: Iterable[tuple[Any, Any]]) -> keras.Variable:
        """`apply`, for pairs of gradient and variable; returns `iterations`."""
        owner = f"{type(self).__name__}.apply_gradients"
        self.apply(*matching.gradients_and_variables(owner, grads_and_vars))
        return self.iterations

    @tf.autograph.experimental.do_not_convert
    def apply_summed(self, gradients: list[Any], variables: Iterable[Any]) -> None:
        """`apply`, in a replica's context, for gradients that every replica has the same of."""
        self._receive(gradients, self._parameters_for("apply_summed", list(variables)), True)

    @tf.autograph.experimental.do_not_convert
    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        """One variable's update alone: not aggregated, judged, clipped, averaged or counted."""
        owner = f"{type(self).__name__}.update_step"
        rate = rates.number_or_tensor(owner, learning_rate)
        variables = matching.variables(owner, [variable])
        parameters = self._parameters_for("update_step", variables)
        gradients, _ = matching.pairs(owner, [gradient], parameters)
        self._everywhere(self._strategy, self._update_alone, gradients, parameters, rate)

    def _update_alone(
        self, gradients: list[Any], parameters: list[Parameter], learning_rate: tf.Tensor
    ) -> None:
        with self._ready(in_precision(gradients, parameters), parameters) as ready:
            self._write(ready, parameters, None, self.rates() | {"learning_rate": learning_rate})

    def __dir__(self) -> list[str]:
        return [name for name in super().__dir__() if name not in INTERNAL]

    def __repr__(self) -> str:
        usual = {
            **arguments.checked(type(self).__name__, (), {}),
            "exclude_from_weight_decay": None,
        }
        return description.call(type(self), self._arguments(), usual)

    def _arguments(self) -> dict[str, Any]:
        """What `repr` shows where it is not the default: the constructor's arguments, as of now."""
        common = ("learning_rate", *arguments.Common.__annotations__)
        names = dict.fromkeys([*self._own_arguments(), *common])
        held = {name: getattr(self, name) for name in names if hasattr(self, name)}
        return held | {
            "learning_rate": keras_contract.rate_of(self),
            "mesh": self.mesh and description.Written(f"Mesh({_dimensions(self.mesh)})"),
            "exclude_from_weight_decay": self._decay_exclusions or None,
        }

    def _parameters_for(self, method: str, variables: list[Any] | None) -> list[Parameter]:
        owner = f"{type(self).__name__}.{method}"
        if variables is None:
            if not self.built:
                raise ValueError(f"{owner}: without variables the optimizer must be built first.")
            return list(self._parameters)
        if not self.built:
            self.build(variables)
        return matching.parameters_for(owner, self._parameters, self._key, variables)

    def finalize_variable_values(self, var_list: Iterable[Any]) -> None:
        """With `use_ema`, gives the variables their averages; `fit` calls it when it ends."""
        if self.use_ema:
            owner = f"{type(self).__name__}.finalize_variable_values"
            variables = matching.variables(owner, var_list)
            wanted = self._parameters_for("finalize_variable_values", variables)
            self._everywhere(self._strategy, self._finalize, wanted, traced=True)

    def _finalize(self, parameters: list[Parameter]) -> None:
        self._overwrite(parameters, self._done())

    def synchronized_averages(self) -> list[keras.Variable]:
        """The averages of all variables as of the last update, in the variables' order."""
        self._everywhere(self._strategy, self._synchronize, traced=True)
        return [parameter.state["average"] for parameter in self._parameters]

    def _synchronize(self) -> None:
        whole: list[Part] = [Whole() for _ in self._parameters]
        averaging.catch_up(list(self._parameters), whole, self._done(), self.ema_momentum)


def _dimensions(mesh: dtensor.Mesh) -> str:
    return ", ".join(f"{name}={mesh.dim_size(name)}" for name in mesh.dim_names)
