"""The class that users subclass and call: an algorithm with the engine that runs it."""

from collections.abc import Iterable
from typing import Any

import keras
import tensorflow as tf

from tf_graft.core import building, checks, contract, variable_table
from tf_graft.core.arguments import declared, rates, signatures
from tf_graft.core.keras_optimizer import KerasOptimizer
from tf_graft.core.pipeline import matching, row_decay, skips
from tf_graft.core.places import replicas
from tf_graft.core.state.parameters import Parameter
from tf_graft.core.tensors import rows as row_numbers
from tf_graft.core.types import Gradient, Scalar, TensorLike, VariableLike


@signatures.complete
class Optimizer(KerasOptimizer):
    """A Keras optimizer made of two pure functions, `slots` and `step`.

    A subclass declares its state and proposes steps; the engine writes them into variables. `apply`
    runs these stages in this order: check, aggregate over replicas, coalesce repeated rows, judge
    finiteness, unscale, accumulate, clip, propose, write (with decay and constraint), average,
    count.

    Attributes:
        rule: the steps, learning rates and weight decay of each variable.
        engine: the pipeline of `apply`.
        state: the optimizer's variables; `state.parameters` are the model's, with their slots.
        saved: writes the state to files, and reads it back.
        skipped_steps: the number of updates that `nonfinite="skip"` skipped.

    Args:
        learning_rate: a number, at least 0; a `LearningRateSchedule`; or a callable without
            arguments.
        **common: see `tf_graft.algorithm.Common`.

    Raises:
        TypeError: an argument of the wrong type.
        ValueError: an argument out of its range; the message names it.
    """

    def __init_subclass__(cls, **options: Any):
        super().__init_subclass__(**options)
        contract.check_class(cls)
        declared.declare(cls)
        signatures.complete(cls)

    def scale_loss(self, loss: tf.Tensor) -> tf.Tensor:
        """Returns the loss times the loss scale; Keras' `fit` calls this method."""
        return self.engine.scaling.scaled(loss)

    def loss_scale(self) -> Scalar | None:
        """Returns the factor of `scale_loss`; None for no factor."""
        return self.engine.scaling.scale()

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
                given twice; all gradients are None.
            tf.errors.InvalidArgumentError: a row is out of range; with `nonfinite="raise"`, a
                gradient is not finite or too large, or the learning rate is negative or not finite.
                Whatever is raised, nothing has changed.

        Threads that call `apply` eagerly wait for each other. Steps of a `tf.function` do not wait:
        call such a function from one thread at a time.
        """
        apply(self, grads, trainable_variables)

    @tf.autograph.experimental.do_not_convert
    def update_step(
        self, gradient: Gradient, variable: VariableLike, learning_rate: Scalar
    ) -> None:
        """Updates one variable without aggregation, checks, clipping, averaging or counting."""
        owner = f"{type(self).__name__}.update_step"
        rate = rates.number_or_tensor(owner, learning_rate)
        variables = matching.variables(owner, [variable])
        parameters = building.parameters_for(self, "update_step", variables)
        both = _unfrozen(self, *matching.pairs(owner, [gradient], parameters))
        self.state.everywhere(self.engine.update_alone, *both, rate)

    def finalize_variable_values(self, var_list: Iterable[VariableLike]) -> None:
        """With `use_ema`, assigns the averages to the variables; `fit` calls it when it ends.

        With `sparse="lazy_decay"`, the rows of tables catch up their weight decay. The method also
        warns if ten updates in a row were skipped: compiled steps cannot.
        """
        self.warn_of_skips()
        if self.use_ema or self.sparse == row_decay.CHOICE:
            owner = f"{type(self).__name__}.finalize_variable_values"
            variables = matching.variables(owner, var_list)
            wanted = building.parameters_for(self, "finalize_variable_values", variables)
            finish = self.engine.overwrite if self.use_ema else self.engine.catch_up_decay
            self.state.everywhere(finish, wanted, traced=True)

    def warn_of_skips(self) -> None:
        """Warns once if ten updates in a row were skipped; again only after another update.

        Steps that are not compiled warn by themselves, and `finalize_variable_values`, with which
        `fit` ends, calls this method. Call it now and then in a compiled loop of your own, such as
        once an epoch; it only reads two counters. If `n` updates were made since the last call, it
        warns if at least `10 * (n + 1)` were skipped, because then ten of these were in a row.
        """
        skipped = self.engine.skips
        if tf.executing_eagerly() and skipped.found(self.state.counters):
            skips.warn(type(self).__name__)

    def table(self) -> str:
        """Returns a table, as text: the present learning rate of each variable, and its decay.

        Raises:
            ValueError: the optimizer is not built.
        """
        building.parameters_for(self, "table", None)
        return variable_table.table(self)

    def reset_rows(
        self, table: VariableLike, rows: TensorLike, weights: TensorLike | None = None
    ) -> None:
        """Resets the state of rows of a table, for example after another id has taken a row.

        In these rows every slot with an entry for each row (momenta, squares, counts) gets its
        first value. Accumulated gradients of these rows are dropped, and averages of weights begin
        with the rows' weights. Other rows, slots of a whole variable and counters stay.

        Args:
            table: a variable that the optimizer updates, of shape [number of rows, ...].
            rows: row numbers, integers in any shape; repeated ones count once.
            weights: the weights that the rows get, of shape `rows.shape + table.shape[1:]`; for a
                repeated row the first ones count. None keeps the present weights.

        Raises:
            TypeError: `rows` are not integers, or `weights` are not numbers.
            ValueError: a row is not in the table; the weights have another shape, or a NaN or an
                infinity; the variable is a scalar, or not the optimizer's; the optimizer is not
                built; or it is called while a step is traced.

        Example:
            >>> from tf_graft.optimizers import Adagrad
            >>> table, optimizer = tf.Variable(tf.zeros([3, 1])), Adagrad()
            >>> optimizer.apply([tf.ones([3, 1])], [table])
            >>> optimizer.reset_rows(table, [1])
            >>> (optimizer.variables[-1].numpy() > 1).tolist()  # sums of squares, from 0.1 on
            [[True], [False], [True]]
        """
        owner = f"{type(self).__name__}.reset_rows"
        if not tf.executing_eagerly():
            raise ValueError(f"{owner}: call it between the steps, not in a tf.function.")
        with self.state.alone():
            wanted = self.state.parameters_of(owner, matching.variables(owner, [table]))
            indices = row_numbers.numbers(owner, rows, wanted[0].rows)
            if weights is not None:
                weights = row_numbers.weights(owner, rows, weights, wanted[0].variable)
            self.state.everywhere(self.engine.reset_rows, wanted, indices, weights)

    def synchronized_averages(self) -> list[keras.Variable]:
        """Returns the averages of all variables as of the last update, in the variables' order."""
        self.state.everywhere(self.engine.synchronize, list(self.state.parameters), traced=True)
        return [parameter.state["average"] for parameter in self.state.parameters]

    def build(self, variables: Iterable[VariableLike | keras.Model] | keras.Model) -> None:
        """Creates all state for the variables. Building again for the same ones does nothing.

        Optimizers of matrices, such as `Muon`, also ask the model's layers what is a matrix. They
        know the model in `fit` and in the model's other methods. In a loop of your own, give
        `build` the model before the first step.

        If some of the variables are new, because a layer was unfrozen or a head was replaced, the
        optimizer adds state for them. The other state stays, even that of variables that are not
        among the given ones: it waits for their return.

        Args:
            variables: a list of variables; or a built model, or a list of models that are trained
                together, for their trainable variables.

        Raises:
            TypeError: an entry is no variable, or a variable is not floating point.
            ValueError: a variable is given twice, or is not on the mesh of the others, or of the
                optimizer; a model is not built; the optimizer was built for other variables only; a
                new variable has the name of one that it was built for; or the optimizer is an `AGN`
                or a wrapped Keras optimizer, which cannot add variables.
        """
        owner = f"{type(self).__name__}.build"
        with self.state.alone():
            building.build(self, *matching.variables_and_models(owner, variables))


@tf.autograph.experimental.do_not_convert
def apply(
    optimizer: Optimizer,
    gradients: Iterable[Gradient | None],
    variables: Iterable[VariableLike] | None,
    summed: bool = False,
) -> None:
    """Updates variables; see `Optimizer.apply`.

    Args:
        optimizer: the optimizer.
        gradients: one gradient per variable.
        variables: the variables; None for all that the optimizer was built for.
        summed: whether the gradients are already summed over the replicas.
    """
    owner, state = f"{type(optimizer).__name__}.apply", optimizer.state
    with state.alone():
        given = checks.listed(
            f"{owner}: the gradients are {{}}; they must be in a list.", gradients
        )
        listed = None if variables is None else matching.variables(owner, variables)
        if not given and not listed:
            return
        parameters = building.parameters_for(optimizer, "apply", listed)
        both = _unfrozen(optimizer, *matching.pairs(owner, given, parameters))
        if not both[1]:
            return
        # Plain tensors given from outside the replicas are already sums over the replicas.
        summed |= replicas.outside(state.strategy) and not any(
            isinstance(g, tf.distribute.DistributedValues) for g in both[0]
        )
        with tf.name_scope(optimizer.name.lstrip("_")):  # a scope must not begin with "_"
            state.everywhere(optimizer.engine.receive, *both, summed)


def apply_coalesced(
    optimizer: Optimizer, gradients: list[Gradient], variables: Iterable[VariableLike]
) -> None:
    """Applies gradients as the pipeline has them, summed and each row once, in a replica."""
    owner = f"{type(optimizer).__name__}.apply_coalesced"
    parameters = optimizer.state.parameters_of(owner, variables)
    optimizer.engine.receive(*_unfrozen(optimizer, gradients, parameters), summed=True)


def _unfrozen(
    optimizer: Optimizer, gradients: list[Gradient], parameters: list[Parameter]
) -> tuple[list[Gradient], list[Parameter]]:
    """Returns the gradients and parameters whose multiplier is not 0."""
    both = zip(gradients, parameters, strict=True)
    kept = [(g, p) for g, p in both if not optimizer.rule.freezes(p.path)]
    return [g for g, _ in kept], [p for _, p in kept]
