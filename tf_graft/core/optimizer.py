"""The engine's face: the entry points that Keras and users call."""

from collections.abc import Iterable
from typing import Any, Unpack

import keras
import tensorflow as tf

from tf_graft.core import arguments, averaging, matching, replicas
from tf_graft.core.parameters import Parameter
from tf_graft.core.pipeline import Pipeline, in_precision
from tf_graft.core.rows import Part, Whole


class Optimizer(Pipeline):
    """A Keras optimizer made of two pure functions, `slots` and `step`.

    A subclass says what it remembers and what it proposes; this class alone writes variables.
    `apply` goes through, in this order: check, aggregate over replicas, coalesce repeated rows,
    unscale, judge finiteness, accumulate, clip, propose, write (with decay and constraint),
    average, count.

    Attributes:
        rowwise: each row of a variable is updated from that row alone.
        idle: a zero gradient changes neither slots nor weights.
        skipped_steps: how many updates were left out because a gradient was not finite.

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
            TypeError: a gradient that is not floating point.
            ValueError: gradients and variables differ in number or shape; a variable is unknown or
                given twice; there is no gradient at all.
            tf.errors.InvalidArgumentError: a row out of range; with `nonfinite="raise"` a gradient
                that is not finite. Whatever is raised, nothing has changed.
        """
        grads = list(grads)
        variables = None if trainable_variables is None else list(trainable_variables)
        if not grads and not variables:
            return
        gradients, parameters = matching.pairs(
            f"{type(self).__name__}.apply", grads, self._parameters_for("apply", variables)
        )
        # Plain tensors given from outside the replicas are sums over them already.
        summed = replicas.outside(self._strategy) and not any(
            isinstance(g, tf.distribute.DistributedValues) for g in gradients
        )
        with tf.name_scope(self.name.lstrip("_")):  # a scope may not begin with one
            replicas.everywhere(self._strategy, self._receive, gradients, parameters, summed)

    def apply_gradients(self, grads_and_vars: Iterable[tuple[Any, Any]]) -> keras.Variable:
        """`apply`, for pairs of gradient and variable; returns `iterations`."""
        pairs = list(grads_and_vars)
        self.apply([gradient for gradient, _ in pairs], [variable for _, variable in pairs])
        return self.iterations

    @tf.autograph.experimental.do_not_convert
    def apply_summed(self, gradients: list[Any], variables: Iterable[Any]) -> None:
        """`apply`, in a replica's context, for gradients that every replica has the same of."""
        self._receive(gradients, self._parameters_for("apply_summed", list(variables)), True)

    @tf.autograph.experimental.do_not_convert
    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        """One variable's update alone: not aggregated, judged, clipped, averaged or counted."""
        parameters = self._parameters_for("update_step", [variable])
        gradients, _ = matching.pairs(f"{type(self).__name__}.update_step", [gradient], parameters)

        def update() -> None:
            precise = in_precision(gradients, parameters)
            with self._ready(precise, parameters) as ready:
                self._write(
                    ready, parameters, None, self.rates() | {"learning_rate": learning_rate}
                )

        replicas.everywhere(self._strategy, update)

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
            wanted = self._parameters_for("finalize_variable_values", list(var_list))
            replicas.compiled_everywhere(
                self._strategy, lambda: self._overwrite(wanted, self._done())
            )

    def synchronized_averages(self) -> list[keras.Variable]:
        """The averages of all variables as of the last update, in the variables' order."""
        everything = list(self._parameters)
        whole: list[Part] = [Whole() for _ in everything]
        replicas.compiled_everywhere(
            self._strategy,
            lambda: averaging.catch_up(everything, whole, self._done(), self.ema_momentum),
        )
        return [parameter.state["average"] for parameter in everything]
