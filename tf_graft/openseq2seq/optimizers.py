"""OpenSeq2Seq's optimizers by its names and arguments, which are TensorFlow 1's."""

import difflib
import inspect
import numbers
from collections.abc import Mapping
from typing import Any, NamedTuple

import keras
import tensorflow as tf

from tf_graft.core import registry
from tf_graft.core.optimizer import Optimizer
from tf_graft.core.wrapped import wrap
from tf_graft.optimizers import SGD, Adagrad, Adam, AdamW, Momentum, NovoGrad, RMSprop

_ADAM_NAMES = {"beta1": "beta_1", "beta2": "beta_2"}
# As TensorFlow 1, whose Adam moved all rows of a table.
_ADAM_DEFAULTS = {"epsilon": 1e-8, "sparse": "exact"}


class Named(NamedTuple):
    """What a name of OpenSeq2Seq's stands for.

    Args:
        make: the class here.
        names: TensorFlow 1's arguments, and what they are called here.
        defaults: TensorFlow 1's, where they differ.
        required: what must be given.
    """

    make: Any
    names: dict[str, str] = {}  # noqa: RUF012  (a named tuple's default, never changed)
    defaults: dict[str, Any] = {}  # noqa: RUF012
    required: tuple[str, ...] = ()


NAMES = {
    "Adagrad": Named(Adagrad, defaults={"epsilon": 1e-30}),  # it had none
    "Adam": Named(Adam, _ADAM_NAMES, _ADAM_DEFAULTS),
    "AdamW": Named(AdamW, _ADAM_NAMES, _ADAM_DEFAULTS, ("weight_decay",)),
    "Ftrl": Named(keras.optimizers.Ftrl),
    "Momentum": Named(Momentum, required=("momentum",)),
    "NovoGrad": Named(NovoGrad),
    "RMSProp": Named(RMSprop, {"decay": "rho"}, {"epsilon": 1e-10, "initial_velocity": 1.0}),
    "SGD": Named(SGD),
}


class OfStep(keras.optimizers.schedules.LearningRateSchedule):
    """The learning rate that a function of the step computes.

    Args:
        function: takes the number of updates made so far, an int64 scalar.
    """

    def __init__(self, function: Any):
        self.function = function

    def __call__(self, step: Any) -> tf.Tensor:
        """The rate at a step, a float32 scalar."""
        return tf.cast(self.function(tf.cast(step, tf.int64)), tf.float32)

    def get_config(self) -> dict[str, Any]:
        """Refused: a function cannot be written down.

        Raises:
            NotImplementedError: always.
        """
        raise NotImplementedError(
            "optimize_loss: a learning_rate_decay_fn that is a Python function cannot be saved "
            "with the optimizer; give one of tf_graft.schedules."
        )


def rate_of(decay: Any) -> Any:
    """A learning rate from a number, a schedule or a function of the step.

    Raises:
        TypeError: something else, None included.
    """
    if isinstance(decay, keras.optimizers.schedules.LearningRateSchedule):
        return decay
    if isinstance(decay, numbers.Real) and not isinstance(decay, bool):
        return decay
    if not callable(decay):
        raise TypeError(
            f"optimize_loss(learning_rate_decay_fn={decay!r}): a function of the step, a schedule "
            "or a number is wanted."
        )
    return OfStep(decay)


def build(
    optimizer: Any, params: Mapping[str, Any] | None, decay: Any, common: Mapping[str, Any]
) -> Optimizer:
    """The optimizer of a name, a class or an instance, with its learning rate.

    Args:
        optimizer: one of `NAMES`, the name of another class of tf_graft or Keras as it is written
            there, a class, or an optimizer that has not been built.
        params: its arguments, under TensorFlow 1's names or Keras'. Left as they are.
        decay: see `rate_of`; for an instance None leaves its own.
        common: arguments of the pipeline.

    Raises:
        TypeError: no optimizer; no rate.
        ValueError: an unknown name; a bad argument; arguments for an instance.
    """
    if isinstance(optimizer, keras.optimizers.Optimizer):
        return _instance(optimizer, params, decay)
    given = dict(params or {})
    if isinstance(optimizer, str):
        named = NAMES.get(optimizer) or _other(optimizer)
        for name in named.required:
            if name not in given:
                raise ValueError(f"optimize_loss(optimizer='{optimizer}'): it needs '{name}'.")
        given = named.defaults | {named.names.get(k, k): value for k, value in given.items()}
        optimizer = named.make
    if not inspect.isclass(optimizer) or not issubclass(optimizer, keras.optimizers.Optimizer):
        raise TypeError(
            f"optimize_loss(optimizer={optimizer!r}): a name, a class or an optimizer is wanted."
        )
    cls: Any = optimizer
    return wrap(cls(learning_rate=rate_of(decay), **given, **common))


def _instance(optimizer: Any, params: Mapping[str, Any] | None, decay: Any) -> Optimizer:
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
    """The class of that very name, ours or Keras'."""
    try:
        cls = registry.find(name)
    except ValueError:
        cls = None
    if cls is None or cls.__name__ != name:
        near = [cls.__name__] if cls else difflib.get_close_matches(name, NAMES, 1)
        hint = (
            f"did you mean '{near[0]}'?" if near else "tf_graft.list_optimizers() has the others."
        )
        raise ValueError(
            f"optimize_loss: Optimizer name should be one of [{', '.join(NAMES)}] or of a class of "
            f"tf_graft or Keras, you provided {name}; {hint}"
        )
    return Named(cls)
