"""MultiOptimizer: an optimizer for each group of variables."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, ClassVar, Unpack

import keras

from tf_graft.compose.wrapper import Wrapper, child_of, divide, held_by, passed_on
from tf_graft.core import checks, patterns
from tf_graft.core.arguments.checked import refuse_idle_patterns
from tf_graft.core.arguments.options import Common
from tf_graft.core.arguments.registry import register, serialize
from tf_graft.core.checks import shown
from tf_graft.core.keras_optimizer import config_of, written
from tf_graft.core.optimizer import Optimizer
from tf_graft.core.pipeline.clipping import clipped_alone
from tf_graft.core.state.point import Point, Step, grouped, multiplied, under, within
from tf_graft.core.types import Config, RateLike, Rates, VariableLike


def _parts(wrapper: Any) -> Iterable[Optimizer]:
    return wrapper.children().values()  # none while Keras' constructor sets attributes


@register
class MultiOptimizer(Wrapper):
    """Updates each group of variables with its own optimizer.

    ```
    w <- w + learning_rate * d           d: the step of the first optimizer whose pattern matches
    ```

    Each group has its own learning rate, weight decay, momentum and other arguments, and may have a
    different optimizer. Give the arguments that act on all variables together to `MultiOptimizer`
    itself: `global_clipnorm`, averages, accumulation and loss scaling. Differences from Keras'
    `MultiOptimizer`: Keras clips each group by its own norm, and has no common learning rate.

    Args:
        optimizers: optimizers of tf_graft or Keras, names or configs, by regular expression. The
            first expression that matches somewhere in a variable's path counts, so end with `".*"`
            for all other variables. Each expression must be the first for some variable.
        learning_rate: number, at least 0, or schedule: a factor on all learning rates. Default 1.
        **common: see `tf_graft.algorithm.Common`. A `weight_decay` or
            `weight_decay_mode` replaces that of all optimizers.
            They can also have a `clipnorm` or `clipvalue` of their own.

    Raises:
        TypeError: an argument of the wrong type; an optimizer that cannot be wrapped.
        ValueError: an argument out of range; the same optimizer twice; or, when it is built, a
            variable that no expression matches, or an expression that is the first for none.

    Row-sparse gradients: each group acts as its optimizer does alone.

    Example:
        >>> import tensorflow as tf
        >>> from tf_graft.optimizers import SGD
        >>> kernel, bias = tf.Variable([1.0], name="kernel"), tf.Variable([1.0], name="bias")
        >>> optimizer = MultiOptimizer({"bias": SGD(0.5), ".*": SGD(0.25, weight_decay=1.0)})
        >>> optimizer.apply([tf.constant([1.0]), tf.constant([1.0])], [kernel, bias])
        >>> kernel.numpy().tolist(), bias.numpy().tolist()
        ([0.5], [0.5])
    """

    column: ClassVar[str] = "parts"

    def __init__(
        self,
        optimizers: Mapping[str, Any],
        learning_rate: RateLike = 1.0,
        **common: Unpack[Common],
    ):
        decay = {
            "weight_decay": common.pop("weight_decay", None),
            "weight_decay_mode": common.pop("weight_decay_mode", None),
        }
        super().__init__(learning_rate, **common)
        owner = type(self).__name__
        _refuse_wrong(owner, optimizers)
        self._patterns = tuple(optimizers)
        roles = {f"group{i + 1}": f"optimizers[{shown(p)}]" for i, p in enumerate(optimizers)}
        for (role, argument), given in zip(roles.items(), optimizers.values(), strict=True):
            child = child_of(owner, argument, given)
            divide(self.column, owner, argument, child, held_by(self) | decay)
            self.take(role, role, child)  # a dict of optimizers would be saved otherwise
        self.roles = roles  # type: ignore[misc]  # of this object, as it has as many as it is given
        self.state.settle(self.mesh)
        self.idle = all(child.idle for child in self.children().values())
        self.rowwise = all(child.rowwise for child in self.children().values())

    @property
    def groups(self) -> dict[str, Optimizer]:
        """The optimizers by regular expression."""
        return dict(zip(self._patterns, self.children().values(), strict=True))

    weight_decay = passed_on(
        "weight_decay", "The weight decay of all optimizers; None if they differ.", _parts
    )
    weight_decay_mode = passed_on(
        "weight_decay_mode", "The mode of weight decay of all; None if they differ.", _parts
    )

    def children(self) -> dict[str, Optimizer]:
        return {role: getattr(self, role) for role in self.roles}

    def prepare(self, variables: Mapping[str, VariableLike]) -> None:
        owner, keys = type(self).__name__, self._patterns
        refuse_idle_patterns(f"{owner}(optimizers={{{{}}: ...}})", keys, list(variables))
        for path in variables:
            if patterns.first(keys, path) is None:
                raise ValueError(
                    f"{owner}(optimizers=...): none of the {len(keys)} patterns matches "
                    f"{shown(path)}; end with '.*' for all other variables."
                )

    def serves(self, role: str, path: str) -> bool:
        return role == self.leader(path)

    def leader(self, path: str) -> str:
        """Returns the role of the optimizer that updates the variable of a path; "" for none."""
        key = patterns.first(self._patterns, path)
        return "" if key is None else list(self.roles)[self._patterns.index(key)]

    def passes_on(self, path: str) -> bool:
        """Returns whether the optimizer of the variable does not clip the gradient."""
        child = self.children()[self.leader(path)]
        return child.clipvalue is None and child.clipnorm is None

    def rates_within(self, role: str, rates: Rates) -> dict[str, Any]:
        return multiplied(within(role, rates), rates["learning_rate"])

    def point_within(self, role: str, p: Point) -> Point:
        """Returns the point for an optimizer, whose own clipping it contains."""
        child = self.children()[role]
        g = clipped_alone(p.g, child.clipvalue, child.clipnorm)
        return super().point_within(role, p)._replace(g=g)

    def propose(self, points: Iterable[Point]) -> Iterator[Step]:
        return grouped(points, lambda p: self.leader(p.path), self._steps)

    def _steps(self, role: str, points: Iterable[Point]) -> Iterator[Step]:
        """Yields the steps of one optimizer."""
        given = (self.point_within(role, p) for p in points)
        for d, slots in self.rule.inner[role].proposals(given):
            yield d, under(role, slots)

    def get_config(self) -> Config:
        # Keras' callbacks would set and read the rates of each entry of an attribute `optimizers`
        config = config_of(self, own=["learning_rate"])
        return config | {"optimizers": {p: serialize(child) for p, child in self.groups.items()}}

    def __repr__(self) -> str:
        return written(self, {"optimizers": self.groups})


def _refuse_wrong(owner: str, optimizers: object) -> None:
    """Refuses anything but optimizers by regular expression, each optimizer once."""
    if not isinstance(optimizers, Mapping) or not optimizers:
        raise TypeError(
            f"{owner}(optimizers={shown(optimizers)}): optimizers must be a dict of optimizers by "
            "regular expression."
        )
    checks.patterns(owner, "optimizers", list(optimizers))
    objects = [x for x in optimizers.values() if isinstance(x, keras.optimizers.Optimizer)]
    for key, given in optimizers.items():
        if sum(given is other for other in objects) > 1:
            raise ValueError(
                f"{owner}(optimizers={{{shown(key)}: ...}}): the same object is given twice; each "
                "group needs an optimizer of its own."
            )
