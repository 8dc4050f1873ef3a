"""AGN: local steps, then one normalized push to a center that all workers share."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Self, Unpack

import keras
import tensorflow as tf

from tf_graft.agn.center import refuse_scaling, taken
from tf_graft.agn.on_servers import OnServers
from tf_graft.agn.push import PeriodicPush
from tf_graft.agn.worker_round import SUMS
from tf_graft.compose.copies import copied, share_exclusions
from tf_graft.compose.option_table import Pair, divided, taken_over
from tf_graft.compose.wrapper import (
    OF_THE_OPTIMIZER,
    Around,
    held_by,
    inside,
    passed_on,
    refuse_built,
)
from tf_graft.core import checks, keras_contract
from tf_graft.core.arguments.checked import Checked
from tf_graft.core.arguments.declared import Count, Flag, OptionalCount
from tf_graft.core.arguments.options import Common
from tf_graft.core.arguments.registry import register, resolve
from tf_graft.core.keras_optimizer import written
from tf_graft.core.places import replicas
from tf_graft.core.spelling import plain
from tf_graft.core.state.parameters import Parameter
from tf_graft.core.state.point import Point, Step
from tf_graft.core.state.slots import Slot
from tf_graft.core.types import Config, OptimizerLike, RateLike, VariableLike
from tf_graft.scaling import MixedPrecision
from tf_graft.scaling.loss_scaling import LossScaling, ScaledOnce, refuse_factor, variables_of
from tf_graft.scaling.scaler import LossScaler

MODES = ("gradients", "updates", "difference")
PAPER = {"name": "sgd", "learning_rate": 1.0}  # subtracts what is pushed from the center


def _with_copy(agn: Any) -> list[Any]:
    """Returns the optimizers whose weight decay is set together: the local one and its copy."""
    held = vars(agn)
    copies = held.get("_copies") and "center_optimizer" in held
    return inside(agn) + ([agn.center_optimizer] if copies else [])


@register
class AGN(OnServers):
    """AGN: takes several local steps, then updates a shared center with the mean gradient.

    ```
    w <- w + step(g)                         `optimizer`, on the worker's own copy
    a <- a + g
    every `communication_period` steps:
        c <- c + step(a / n)                 `center_optimizer`, on the center
        w <- c,  a <- 0                      the worker goes on from the center
    ```

    `n` counts the gradients in `a`. The model's variables are the local copy; right after a
    communication they equal the center. When `fit` ends they hold the center; `centered()` and the
    callback `CenterWeights` put it there for evaluation and saving, and `center_values()` reads it.

    `iterations` counts local steps, and `rounds` counts updates of the center. A schedule of
    `optimizer` follows `iterations`; a schedule of `center_optimizer`, even of a copy, follows
    `rounds`. `learning_rate` is that of `optimizer`; setting it to a number sets a copy's as well.

    Under a strategy, each replica takes local steps with its own share of the gradient, times the
    number of replicas, as its estimate of the whole gradient. Replicas sum their shares of `a / n`
    once a period and wait for each other only then. A period of 1 is therefore plain synchronous
    training. A checkpoint under a strategy holds the center and the first replica's local state.

    Differences from `tf.contrib.opt.AGNOptimizer`: the center counts its own steps, so that Adam's
    bias correction is right; `a` starts at zero; row-sparse gradients are pushed by their rows; a
    non-finite gradient is neither applied nor accumulated, and a non-finite mean never reaches the
    center; the center is saved, and can be exported. In contrib, `num_worker` and `use_locking` had
    no effect.

    `lookahead` and `diloco` make an `AGN` with the settings of those methods. With
    `mode="difference"`, `c - w` takes the place of `a / n`; the default center optimizer,
    `SGD(1.0)`, then makes the center the mean of the local copies (post-local SGD).

    Args:
        optimizer: makes the local steps: an optimizer of tf_graft or Keras, a name or a config. Its
            clipping and accumulation apply to the local gradients. If it is a `MixedPrecision`,
            each worker has a loss scale of its own, and the center has none; the result is then
            a `ScaledAGN`.
        num_worker: the number of workers; a strategy must have as many replicas. In one process
            `workers()` makes this many optimizers that share a center. None: not checked.
        communication_period: local steps between two communications.
        center_optimizer: updates the center, with state of its own; given like `optimizer`. It may
            clip and average (`use_ema`). None: a copy of `optimizer` with `mode="gradients"`, and
            `SGD(1.0)` with the other modes.
        use_locking: whether a push to parameter servers is atomic. Without effect elsewhere.
        mode: what is pushed to the center. `"gradients"`: the mean of the gradients, as in contrib.
            `"updates"`: the mean of the negative steps that were applied, as in the paper.
            `"difference"`: their sum, which is the center minus the local copy.
        reset_local_state: whether `optimizer` starts anew after each communication. In contrib it
            does not.
        learning_rate: sets the learning rate of `optimizer`, if not None.
        **common: see `tf_graft.algorithm.Common`; those given to `optimizer` are taken over.
            `weight_decay` and `use_ema` are refused, as they belong to the two optimizers.

    Raises:
        TypeError: an argument of the wrong type; an optimizer that cannot be wrapped.
        ValueError: an argument out of range; an option that belongs to one of the two optimizers.

    Row-sparse gradients: the local step, the push and the pull act on the touched rows.

    Example:
        >>> from tf_graft.optimizers import SGD
        >>> w, optimizer = tf.Variable([1.0]), AGN(SGD(0.5), communication_period=2)
        >>> optimizer.apply([tf.constant([1.0])], [w])
        >>> w.numpy().tolist(), optimizer.center_values()["Variable"].tolist()
        ([0.5], [1.0])
        >>> optimizer.apply([tf.constant([3.0])], [w])  # the center: 1 - 0.5 * (1 + 3) / 2
        >>> w.numpy().tolist(), optimizer.center_values()["Variable"].tolist()
        ([0.0], [0.0])

    Reference:
        Hermans, Spanakis and Moeckel, 2017, "Accumulated gradient normalization" (arXiv
        1710.02368); tf.contrib.opt.AGNOptimizer.
    """

    column = "local"
    local_step: keras.Variable
    accumulated_steps: keras.Variable

    loss_scale_factor: Any = ScaledOnce()

    def __new__(cls, optimizer: Any = None, *args: Any, **kwargs: Any) -> Self:
        mixed, scales = _is_mixed(optimizer), issubclass(cls, ScaledAGN)
        if scales and not mixed:
            raise TypeError(f"{cls.__name__}: its optimizer must be a MixedPrecision.")
        if mixed and not scales and cls is not AGN:
            raise TypeError(
                f"{cls.__name__}(optimizer=MixedPrecision(...)): derive the class from "
                "tf_graft.agn.ScaledAGN."
            )
        return super().__new__(ScaledAGN if mixed and not scales else cls)

    def __init__(
        self,
        optimizer: OptimizerLike | str | Config,
        num_worker: OptionalCount = None,
        communication_period: Count = 10,
        center_optimizer: OptimizerLike | str | Config | None = None,
        use_locking: Flag = True,
        mode: Annotated[str, Checked(checks.choice, MODES)] = "gradients",
        reset_local_state: Flag = False,
        learning_rate: RateLike | None = None,
        **common: Unpack[Common],
    ):
        given, scaler, lifted = _unpacked(resolve(optimizer))
        pair = Pair("local", "AGN", "optimizer", "MixedPrecision")
        everything, _ = divided(pair, common, lifted)
        super().__init__(given, learning_rate=learning_rate, **everything)
        if scaler is not None:
            refuse_factor("AGN", self.loss_scale_factor)
        self.scaler = scaler
        if scaler is not None:
            held = variables_of(scaler, self.state.add_scalar)
            self.engine.scaling = LossScaling(scaler, held)
        self.engine.exchange = PeriodicPush(self)
        self._copies = center_optimizer is None and mode == "gradients"
        usual = copied(self.optimizer) if self._copies else PAPER
        of_center = usual if center_optimizer is None else center_optimizer
        self.center_optimizer = taken("AGN", of_center, like=self)
        if self._copies:
            self.center_optimizer.learning_rate_multipliers = self.learning_rate_multipliers
        self.idle = False
        self.rowwise = self.optimizer.rowwise and self.center_optimizer.rowwise
        self.local_step = self.state.add_scalar("local_step")
        self.accumulated_steps = self.state.add_scalar("accumulated_steps")

    @property
    def learning_rate(self) -> Any:
        """The learning rate of `optimizer`; setting it also sets that of the center's copy."""
        return self.optimizer.learning_rate

    @learning_rate.setter
    def learning_rate(self, value: Any) -> None:
        Around.learning_rate.fset(self, value)  # type: ignore[attr-defined]
        if self._copies:
            self.center_optimizer.learning_rate = value

    weight_decay = passed_on(
        "weight_decay", "The weight decay of `optimizer`, and of the center's copy.", _with_copy
    )
    weight_decay_mode = passed_on(
        "weight_decay_mode", "Its mode of weight decay, and that of the center's copy.", _with_copy
    )

    def slots(self) -> dict[str, Slot]:
        return super().slots() | SUMS

    def outer(self, p: Point, d: tf.Tensor) -> Step:
        pushed = p.g if self.mode == "gradients" else -d
        touched = tf.ones_like(p.s["touched_rows"])
        return d, {"gradient_sum": p.s["gradient_sum"] + pushed, "touched_rows": touched}

    def __repr__(self) -> str:
        scaled = {"loss_scale_factor": None, "loss_scale": self.scaler}
        return written(self, OF_THE_OPTIMIZER | ({} if self.scaler is None else scaled))

    def get_config(self) -> Config:
        config = super().get_config() | dict.fromkeys(("weight_decay", "weight_decay_mode"))
        config |= {"center_optimizer": None} if self._copies else {}
        if self.scaler is None:
            return config
        scaler = keras.saving.serialize_keras_object(self.scaler)
        mixed = {"name": "mixed_precision", "optimizer": config["optimizer"], "loss_scale": scaler}
        return config | {"optimizer": mixed, "loss_scale_factor": None}

    def prepare_center(self, variables: Mapping[str, VariableLike]) -> None:
        count = replicas.count()
        if count > 1 and self.num_worker not in (None, count):
            raise ValueError(
                f"AGN(num_worker={self.num_worker}): the strategy has {count} replicas, which are "
                "the workers; leave num_worker out."
            )
        if self._copies:
            share_exclusions(self.optimizer, self.center_optimizer)
        super().prepare_center(variables)

    def make_center(self, parameters: Sequence[Parameter]) -> None:
        if self.reset_local_state:
            self.state.done = "accumulated_steps"
        super().make_center(parameters)


def _unpacked(given: OptimizerLike) -> tuple[OptimizerLike, LossScaler | None, Config]:
    """Returns the optimizer of the local steps, its loss scaler, and options of `MixedPrecision`.

    Raises:
        TypeError: Keras' own optimizer scales the loss.
        ValueError: the optimizer has been built.
    """
    if type(given) is not MixedPrecision:
        refuse_scaling("AGN", "optimizer", given)
        return given, None, {}
    refuse_built("AGN", "optimizer", given)
    given.optimizer.exclude_from_weight_decay(var_names=given.decay_exclusions)
    held = held_by(given)
    return given.optimizer, given.scaler, {name: held[name] for name in taken_over("mixed")}


def _is_mixed(identifier: Any) -> bool:
    """Returns whether an optimizer, a name or a config is that of a `MixedPrecision`."""
    if isinstance(identifier, Mapping):
        identifier = identifier.get("name", identifier.get("class_name"))
    named = isinstance(identifier, str) and plain(identifier) == plain(MixedPrecision.__name__)
    return named or type(identifier) is MixedPrecision


@keras.saving.register_keras_serializable(package="tf_graft")
class ScaledAGN(AGN, keras_contract.ScalesLoss):
    """What `AGN(MixedPrecision(...))` makes: `compile` sees in its class that it scales the loss.

    Derive from it if your own `AGN` is to hold a `MixedPrecision`.
    """
