"""OpenSeq2Seq's optimizers by their names and arguments there, which are those of TensorFlow 1."""

import inspect
import numbers
from collections.abc import Callable, Mapping
from typing import NamedTuple, TypeAlias

import keras
import tensorflow as tf

from tf_graft.compose.of_keras import wrap
from tf_graft.core.arguments import registry
from tf_graft.core.checks import shown
from tf_graft.core.optimizer import Optimizer
from tf_graft.core.spelling import meant
from tf_graft.core.types import Config, RateLike, TensorLike
from tf_graft.optimizers import SGD, Adagrad, Adam, AdamW, Ftrl, Momentum, NovoGrad, RMSprop

# An optimizer, its class or its name.
Identifier: TypeAlias = str | type[keras.optimizers.Optimizer] | keras.optimizers.Optimizer

_ADAM_NAMES = {"beta1": "beta_1", "beta2": "beta_2"}
# As in TensorFlow 1, whose Adam moves all rows of a table.
_ADAM_DEFAULTS: Config = {"epsilon": 1e-8, "sparse": "exact"}


class Named(NamedTuple):
    """The optimizer that a name of OpenSeq2Seq's stands for.

    Args:
        make: its class here.
        names: the argument here for each argument of TensorFlow 1 that has another name.
        defaults: the defaults of TensorFlow 1 that differ from those here.
        required: the arguments without a default.
    """

    make: type[keras.optimizers.Optimizer]
    names: dict[str, str] = {}  # noqa: RUF012  (a named tuple's default, never changed)
    defaults: Config = {}  # noqa: RUF012
    required: tuple[str, ...] = ()

    def arguments(self, params: Mapping[str, object]) -> Config:
        """Returns the arguments here, with TensorFlow 1's defaults.

        Raises:
            ValueError: one is missing, or given under both of its names; the message is a clause
                that follows the optimizer's name.
        """
        for name in self.required:
            if name not in params:
                raise ValueError(f"needs '{name}'.")
        for name, here in self.names.items():
            if name in params and here in params:
                raise ValueError(f"takes '{name}' or '{here}', which are one argument, not both.")
        return {**self.defaults, **{self.names.get(k, k): value for k, value in params.items()}}


NAMES = {
    "Adagrad": Named(Adagrad, defaults={"epsilon": 1e-30}),  # TensorFlow 1 has none
    "Adam": Named(Adam, _ADAM_NAMES, _ADAM_DEFAULTS),
    "AdamW": Named(AdamW, _ADAM_NAMES, _ADAM_DEFAULTS, ("weight_decay",)),
    "Ftrl": Named(Ftrl),
    "Momentum": Named(Momentum, required=("momentum",)),
    "NovoGrad": Named(NovoGrad),
    "RMSProp": Named(RMSprop, {"decay": "rho"}, {"epsilon": 1e-10, "initial_velocity": 1.0}),
    "SGD": Named(SGD),
}


class OfStep(keras.optimizers.schedules.LearningRateSchedule):
    """A learning rate that a function of the step computes.

    Args:
        function: takes the number of updates made so far, an int64 scalar.
    """

    def __init__(self, function: Callable[[tf.Tensor], TensorLike]):
        self.function = function

    def __call__(self, step: TensorLike) -> tf.Tensor:
        """Computes the rate at a step, a float32 scalar.

        Raises:
            TypeError: the function returns something else.
        """
        rate = self.function(tf.cast(step, tf.int64))
        try:
            return tf.reshape(tf.cast(rate, tf.float32), [])
        except (TypeError, ValueError, tf.errors.OpError):
            raise TypeError(
                f"optimize_loss: learning_rate_decay_fn returned {shown(rate)}; it must return one "
                "number."
            ) from None

    def get_config(self) -> Config:
        """Raises an error: a function cannot be serialized.

        Raises:
            NotImplementedError: always.
        """
        raise NotImplementedError(
            "optimize_loss: a learning_rate_decay_fn that is a Python function cannot be saved "
            "with the optimizer; give one of tf_graft.schedules."
        )


def rate_of(decay: object) -> RateLike:
    """Makes a learning rate from a number, a schedule or a function of the step.

    Raises:
        TypeError: `decay` is something else, or None.
    """
    if isinstance(decay, keras.optimizers.schedules.LearningRateSchedule):
        return decay
    if isinstance(decay, numbers.Real) and not isinstance(decay, bool):
        return decay
    if not callable(decay) or inspect.isclass(decay) or not _takes_one(decay):
        raise TypeError(
            f"optimize_loss(learning_rate_decay_fn={shown(decay)}): learning_rate_decay_fn must be "
            "a function of the step, a schedule or a number."
        )
    return OfStep(decay)


def _takes_one(function: Callable[..., object]) -> bool:
    """Returns whether a function takes one argument, as far as Python knows its signature."""
    try:
        inspect.signature(function).bind(0)
    except TypeError:
        return False
    except ValueError:  # Python does not know the signature
        pass
    return True


def build(
    optimizer: Identifier, params: Mapping[str, object] | None, decay: object, common: Config
) -> Optimizer:
    """Makes an optimizer, with its learning rate, from a name, a class or an instance.

    Args:
        optimizer: one of `NAMES`, the exact name of another class of tf_graft or Keras, a class,
            or an optimizer that is not built.
        params: its arguments, under their names in TensorFlow 1 or Keras; not modified.
        decay: see `rate_of`; None keeps the learning rate of an instance.
        common: arguments that all optimizers of tf_graft have.

    Raises:
        TypeError: `optimizer` is none of these, or there is no learning rate.
        ValueError: the name is unknown, an argument is invalid, `params` has a learning rate, or an
            instance is given arguments.
    """
    if isinstance(optimizer, keras.optimizers.Optimizer):
        return _instance(optimizer, params, decay)
    given = dict(params or {})
    if "learning_rate" in given:
        raise ValueError(
            "optimize_loss: the learning rate is in optimizer_params; give it as "
            "learning_rate_decay_fn."
        )
    if isinstance(optimizer, str):
        named = NAMES.get(optimizer) or _other(optimizer)
        try:
            given = named.arguments(given)
        except ValueError as error:
            raise ValueError(f"optimize_loss(optimizer='{optimizer}'): it {error}") from None
        optimizer = named.make
    if not inspect.isclass(optimizer) or not issubclass(optimizer, keras.optimizers.Optimizer):
        raise TypeError(
            f"optimize_loss(optimizer={shown(optimizer)}): optimizer must be a name, a class or an "
            "optimizer."
        )
    cls: type[keras.optimizers.Optimizer] = optimizer
    return wrap(cls(learning_rate=rate_of(decay), **given, **common))


def _instance(
    optimizer: keras.optimizers.Optimizer, params: Mapping[str, object] | None, decay: object
) -> Optimizer:
    if params:
        raise ValueError(
            f"optimize_loss(optimizer={type(optimizer).__name__}(...), optimizer_params={params}): "
            "it has its arguments already."
        )
    optimizer = wrap(optimizer)
    if decay is not None:
        optimizer.learning_rate = rate_of(decay)
    return optimizer


def _other(name: str) -> Named:
    """Returns the class of exactly this name in tf_graft or Keras."""
    try:
        cls = registry.find(name)
    except ValueError:
        cls = None
    if cls is None or cls.__name__ != name:
        near = cls.__name__ if cls else meant(name, NAMES)
        hint = f"did you mean '{near}'?" if near else "tf_graft.list_optimizers() has the others."
        raise ValueError(
            f"optimize_loss: Optimizer name should be one of [{', '.join(NAMES)}] or of a class of "
            f"tf_graft or Keras, you provided {shown(name, str)}; {hint}"
        )
    return Named(cls)
