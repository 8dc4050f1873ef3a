"""The engine: what happens between a list of gradients and the variables, in one order, once."""

import contextlib
import itertools
from collections.abc import Iterable, Iterator
from typing import Any, Unpack

import keras
import tensorflow as tf

from tf_graft.core import (
    accumulation,
    arguments,
    averaging,
    clipping,
    keras_contract,
    matching,
    numerics,
    replicas,
    rows,
)
from tf_graft.core.algorithm import Algorithm
from tf_graft.core.parameters import Parameter
from tf_graft.core.rows import Rows, Whole


class Optimizer(Algorithm):
    """A Keras optimizer made of two pure functions, `slots` and `step`.

    A subclass says what it remembers and what it proposes; this class alone writes variables.
    `apply` goes through, in this order: check, aggregate over replicas, coalesce repeated rows,
    unscale, judge finiteness, accumulate, clip, propose, write (with decay and constraint),
    average, count.

    Attributes:
        rowwise: each row of a variable is updated from that row alone.
        idle: a zero gradient changes neither slots nor weights.
        skipped_steps: how many calls were left out because a gradient was not finite.

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
    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        """One variable's update alone: not aggregated, judged, clipped, averaged or counted."""
        parameters = self._parameters_for("update_step", [variable])
        gradients, _ = matching.pairs(f"{type(self).__name__}.update_step", [gradient], parameters)

        def update() -> None:
            precise = _in_precision(gradients, parameters)
            with self._ready(precise, parameters) as ready:
                self._write(ready, parameters, self.rates() | {"learning_rate": learning_rate})

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

    # From here on the code runs in each replica's own context.

    def _receive(self, gradients: list[Any], parameters: list[Parameter], summed: bool) -> None:
        """Aggregate, coalesce, unscale, judge."""
        gradients = _in_precision(gradients, parameters)
        gradients = gradients if summed else replicas.summed(gradients)
        with self._ready(gradients, parameters) as ready:
            if self.loss_scale_factor is not None:
                ready = [numerics.divided(g, self.loss_scale_factor) for g in ready]
            if self.nonfinite == "apply":
                self._accept(ready, parameters)
                return
            finite = numerics.all_finite([numerics.values(g) for g in ready])
            if self.nonfinite == "raise":
                with tf.control_dependencies(self._finite_check(finite)):
                    self._accept(ready, parameters)
            else:
                tf.cond(finite, lambda: self._accept(ready, parameters), self._skip)

    @contextlib.contextmanager
    def _ready(self, gradients: list[Any], parameters: list[Parameter]) -> Iterator[list[Any]]:
        """Gradients with each row once, dense where they are to act so.

        What is done with them waits until every row was found to exist.
        """
        both = [(rows.coalesce(g), p) for g, p in zip(gradients, parameters, strict=True)]
        owner = type(self).__name__
        checks = [rows.range_checks(owner, g, p.path, p.rows) for g, p in both]
        with tf.control_dependencies(list(itertools.chain.from_iterable(checks))):
            yield [rows.densify(g, p.rows) if self._acts_dense(g, p) else g for g, p in both]

    def _acts_dense(self, gradient: Any, parameter: Parameter) -> bool:
        if not isinstance(gradient, tf.IndexedSlices):
            return False
        exact_on_rows = self.idle and self.rowwise and not self.decays(parameter.path)
        return self.whole(parameter.path) or (self.sparse == "exact" and not exact_on_rows)

    def _finite_check(self, finite: tf.Tensor) -> list[Any]:
        if keras_contract.in_xla():
            raise ValueError(
                f"{type(self).__name__}(nonfinite='raise'): compiled by XLA nothing can be raised; "
                "use 'skip'."
            )
        message = f"{type(self).__name__}.apply: a gradient is not finite; nothing was changed."
        check = tf.debugging.Assert(finite, [message])
        return [] if check is None else [check]

    def _skip(self) -> None:
        replicas.local(self.skipped_steps).assign_add(1, read_value=False)

    def _accept(self, gradients: list[Any], parameters: list[Parameter]) -> None:
        """Accumulate: an update now, or at the last micro-step."""
        steps = self.gradient_accumulation_steps
        if not steps:
            self._update(gradients, parameters)
            return
        both = list(zip(gradients, parameters, strict=True))
        for gradient, parameter in both:
            accumulation.add(gradient, parameter)
        taken = replicas.local(self.micro_steps).assign_add(1)
        tf.cond(
            taken % steps == 0,
            lambda: self._update([accumulation.take(g, p, steps) for g, p in both], parameters),
            lambda: None,
        )

    def _update(self, gradients: list[Any], parameters: list[Parameter]) -> None:
        """Clip, propose, write, average, count."""
        count = replicas.local(self.iterations)
        done = self._done()
        parts = self._parts(gradients, parameters)
        if self.use_ema:
            averaging.catch_up(parameters, parts, done, self.ema_momentum)
        clips = (self.clipvalue, self.clipnorm, self.global_clipnorm)
        self._write(clipping.clipped(gradients, *clips), parameters, self.rates())
        if self.use_ema:
            averaging.update(parameters, parts, done + 1, self.ema_momentum)
            self._overwrite_when_due(done + 1)
        count.assign_add(1, read_value=False)

    def _parts(self, gradients: list[Any], parameters: list[Parameter]) -> list[Whole | Rows]:
        return [rows.part_of(g, p.rows) for g, p in zip(gradients, parameters, strict=True)]

    # Averages.

    def _overwrite_when_due(self, step: tf.Tensor) -> None:
        frequency = self.ema_overwrite_frequency
        if frequency:
            everything = list(self._parameters)
            tf.cond(step % frequency == 0, lambda: self._overwrite(everything, step), lambda: None)

    def _overwrite(self, parameters: list[Parameter], step: tf.Tensor) -> None:
        averaging.catch_up(parameters, [Whole()] * len(parameters), step, self.ema_momentum)
        for parameter in parameters:
            average = replicas.local(parameter.state["average"])
            parameter.replace(tf.convert_to_tensor(average))

    def finalize_variable_values(self, var_list: Iterable[Any]) -> None:
        """With `use_ema`, gives the variables their averages; `fit` calls it when it ends."""
        if self.use_ema:
            wanted = self._parameters_for("finalize_variable_values", list(var_list))
            replicas.everywhere(self._strategy, lambda: self._overwrite(wanted, self._done()))

    def synchronized_averages(self) -> list[keras.Variable]:
        """The averages of all variables as of the last update, in the variables' order."""
        everything = list(self._parameters)
        whole: list[Whole | Rows] = [Whole() for _ in everything]
        replicas.everywhere(
            self._strategy,
            lambda: averaging.catch_up(everything, whole, self._done(), self.ema_momentum),
        )
        return [parameter.state["average"] for parameter in everything]


def _in_precision(gradients: list[Any], parameters: list[Parameter]) -> list[Any]:
    """The gradients in the precision of the update, before anything is summed in a lower one."""
    return [numerics.cast(g, p.dtype) for g, p in zip(gradients, parameters, strict=True)]
