"""A compiled training step: loss, gradients, update, metrics."""

from collections.abc import Callable, Sequence
from typing import TypeAlias

import keras
import tensorflow as tf

from tf_graft.core import building
from tf_graft.core.nesting import nested
from tf_graft.core.optimizer import Optimizer
from tf_graft.core.places import replicas
from tf_graft.core.state.parameters import paths
from tf_graft.core.tensors import numerics
from tf_graft.core.types import Gradient, Structure, TensorLike, VariableLike
from tf_graft.openseq2seq import summaries
from tf_graft.wrappers import LARC

# Combines the gradients of several workers; see `optimize_loss`.
Aggregate: TypeAlias = Callable[[list[Gradient | None]], list[Gradient | None]]


class TrainStep:
    """Takes one step that minimizes a loss per call. `optimize_loss` returns it.

    Attributes:
        optimizer: the optimizer, built; save it to save the state of training.
        variables: the variables that are trained.
    """

    def __init__(
        self,
        loss: Callable[..., TensorLike],
        variables: Sequence[VariableLike],
        optimizer: Optimizer,
        names: Sequence[str],
        aggregate: Aggregate | None,
        models: Sequence[keras.Model],
    ):
        self.optimizer = optimizer
        self.variables = list(variables)
        self._loss, self._aggregate = loss, aggregate
        self._strategy = replicas.strategy_of(self.variables)
        building.build(optimizer, self.variables, models)
        by_path = dict(zip(paths(self.variables), self.variables, strict=True))
        self._summaries = summaries.Summaries(names, optimizer, by_path, _larc(optimizer))
        self._compiled = tf.function(self._everywhere)

    def __call__(self, *batch: Structure) -> tuple[tf.Tensor, dict[str, tf.Tensor]]:
        """Takes a step on a batch.

        Returns:
            The loss before the update, a float32 or float64 scalar, averaged over replicas, and the
            metrics by name: scalars, and tensors for `gradients/...` and `variables/...`. Metrics
            of gradients are those of the last update.

        Raises:
            ValueError: the loss is not a scalar, or depends on none of the variables.
        """
        loss, metrics, step, made = self._compiled(*batch)
        summaries.write(loss, metrics, step, made)
        return loss, metrics

    def _everywhere(
        self, *batch: Structure
    ) -> tuple[tf.Tensor, dict[str, tf.Tensor], tf.Tensor, tf.Tensor]:
        step = tf.convert_to_tensor(replicas.local(self.optimizer.iterations))
        metrics = self._summaries.before()
        if replicas.outside(self._strategy):
            losses = self._strategy.run(self._replica_step, args=batch)
            loss = self._strategy.reduce(tf.distribute.ReduceOp.MEAN, losses, axis=None)
        else:
            loss = self._replica_step(*batch)
        every = self.optimizer.gradient_accumulation_steps or 1
        taken = tf.convert_to_tensor(replicas.local(self.optimizer.micro_steps))
        return loss, metrics | self._summaries.after(), step, tf.equal(taken % every, 0)

    # Autograph must convert the loss, so this method is not excluded from it.
    def _replica_step(self, *batch: Structure) -> tf.Tensor:
        raw = [v.value if isinstance(v, keras.Variable) else v for v in self.variables]
        with tf.GradientTape() as tape:
            loss = tf.convert_to_tensor(self._loss(*batch))
            if loss.shape.rank:
                raise ValueError(
                    f"optimize_loss: the loss has shape {tuple(loss.shape)}; it must be a scalar."
                )
            loss = tf.cast(loss, numerics.compute_dtype(loss.dtype))
            count = self._strategy.num_replicas_in_sync  # whose gradients the optimizer sums
            scaled = self.optimizer.scale_loss(loss / count if count > 1 else loss)
        self._apply(tape.gradient(scaled, raw))
        return loss

    @tf.autograph.experimental.do_not_convert
    def _apply(self, gradients: list[Gradient | None]) -> None:
        gradients = [None if g is None else _precise(g) for g in gradients]
        if self._aggregate is not None:
            gradients = self._aggregate(gradients)
        pairs = list(zip(gradients, self.variables, strict=True))
        present = [(g, v) for g, v in pairs if g is not None] or pairs
        self._summaries.of([v for _, v in present])
        self.optimizer.apply(*zip(*present, strict=True))


def _precise(gradient: Gradient) -> Gradient:
    """Casts a gradient to the precision of the update, in which replicas sum it."""
    return numerics.cast(gradient, numerics.compute_dtype(numerics.values(gradient).dtype))


def _larc(optimizer: Optimizer) -> LARC | None:
    """The first LARC among an optimizer and those nested in it."""
    return next((found for found in nested(optimizer) if isinstance(found, LARC)), None)
