"""LayerwiseRates: multiplies an optimizer's step by a factor for each layer."""

import functools
import itertools
import os
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, ClassVar, Unpack

import tensorflow as tf
from tensorflow.experimental import dtensor

from tf_graft.compose.wrapper import Wrapper
from tf_graft.core.arguments.options import Common
from tf_graft.core.arguments.registry import register
from tf_graft.core.state.point import Point, Step, under
from tf_graft.core.tensors import numerics
from tf_graft.core.tensors.memo import memoized
from tf_graft.grafting.measured_rates import MeasuredRates
from tf_graft.grafting.rate_checks import FORMAT


@register
class LayerwiseRates(Wrapper):
    """Multiplies each variable's step by a factor that a graft measured.

    ```
    w <- w + learning_rate * rates(path, t) * d
    ```

    `d` is the step that the optimizer proposes, including its own learning rate and weight decay.
    Give this optimizer the rates that `tf-graft report --export` writes for a graft (a
    `tf_graft.AdaGraft`), and the graft's direction optimizer with the same arguments. Then it takes
    the graft's average step, and saves the memory and time of the magnitude optimizer. The rates
    contain the graft's learning rate. They do not contain its `weight_decay` and
    `learning_rate_multipliers`; give these to this optimizer, too.

    Args:
        optimizer: proposes the step: an optimizer of tf_graft or Keras, a name or a config.
        rates: a `tf_graft.report.MeasuredRates`, the path of a rates file, the content of one, or
            plain factors by the variables' paths. There may be rates of frozen variables.
        learning_rate: number, at least 0, or schedule: a factor on all steps. Default 1.
        **common: see `tf_graft.algorithm.Common`. Weight decay adds to that of the optimizer; a
            variable that is excluded from it does not decay there either.

    Raises:
        TypeError: an argument of the wrong type; an optimizer that cannot be wrapped.
        ValueError: an argument out of range; rates that cannot be read, or, when it is built, are
            for other variables; an optimizer that clips, averages, accumulates or scales on its
            own.

    Row-sparse gradients: the touched rows' steps are multiplied, at the cost of these rows.

    Example:
        >>> from tf_graft.optimizers import SGD
        >>> w = tf.Variable([1.0], name="w")
        >>> rates = MeasuredRates("constant", {"w": 0.5})
        >>> LayerwiseRates(SGD(0.25), rates).apply([tf.constant([2.0])], [w])
        >>> w.numpy().tolist()
        [0.75]
    """

    roles: ClassVar = {"direction": "optimizer"}

    def __init__(
        self, optimizer: Any, rates: Any, learning_rate: Any = 1.0, **common: Unpack[Common]
    ):
        super().__init__(learning_rate, **common)
        self.rates = _read(rates)
        self.adopt(optimizer=optimizer)
        self.rowwise = self.optimizer.rowwise

    def prepare(self, variables: Mapping[str, Any]) -> None:
        self.rates = self.rates.matched(list(variables), "LayerwiseRates(rates=...)")

    def propose(self, points: Iterable[Point]) -> Iterator[Step]:
        points, of_direction = itertools.tee(points)
        steps = self.optimizer.rule.proposals(map(self._inner, of_direction))
        for p, (d, slots) in zip(points, steps, strict=True):
            yield self._factor(p) * d, under("direction", slots)

    def _inner(self, p: Point) -> Point:
        return p.within("direction")._replace(bare=p.bare)

    def with_decay(self, p: Point, d: tf.Tensor) -> tf.Tensor:
        factor = self._factor(p)
        inner = self.optimizer.rule.with_decay(self._inner(p), numerics.quotient(d, factor))
        return self.decayed(p, factor * inner)

    def step_rate(self, p: Point) -> tf.Tensor:
        factor = self._factor(p)
        return factor * self.optimizer.rule.step_rate(self._inner(p))

    def _factor(self, p: Point) -> tf.Tensor:
        course = _course(self, p.t)
        return self.rates.factor(p.path) * (p.lr if course is None else p.lr * course)

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "rates": self.rates.to_dict()}


@memoized
def _course(owner: LayerwiseRates, t: tf.Tensor) -> tf.Tensor | None:
    return owner.rates.course(t, functools.partial(_constant, owner.mesh))


def _constant(mesh: dtensor.Mesh | None, numbers: Any, dtype: tf.DType) -> tf.Tensor:
    tensor = tf.constant(numbers, dtype)
    if mesh is None:
        return tensor
    return dtensor.copy_to_mesh(tensor, dtensor.Layout.replicated(mesh, tensor.shape.rank))


def _read(given: Any) -> MeasuredRates:
    if isinstance(given, MeasuredRates):
        given = given.to_dict()  # checked below like the other forms
    if isinstance(given, str | os.PathLike):
        return MeasuredRates.load(os.fspath(given))
    if isinstance(given, dict) and given and "format" not in given:
        given = {"format": FORMAT, "kind": "constant", "rates": given}  # plain factors
    if isinstance(given, dict):
        return MeasuredRates.from_dict(given, "LayerwiseRates(rates=...)")
    raise TypeError(
        f"LayerwiseRates(rates={given!r:.200}): rates must be a tf_graft.report.MeasuredRates, the "
        "path of a rates file, or what one holds."
    )
