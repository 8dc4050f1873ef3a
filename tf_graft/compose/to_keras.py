"""The way back: the optimizer of Keras' own class that takes the same steps."""

import functools
import inspect
from typing import Any, NamedTuple

import keras
import tensorflow as tf

from tf_graft.compose.of_keras import Wrapped
from tf_graft.core import keras_contract
from tf_graft.core.arguments import options, signatures
from tf_graft.core.arguments.averages import EMA, Averages
from tf_graft.core.arguments.description import described
from tf_graft.core.arguments.options import OPTIONS
from tf_graft.core.arguments.rates import LearningRateSchedule
from tf_graft.core.arguments.registry import KERAS, OURS, resolve
from tf_graft.core.checks import shown
from tf_graft.core.files import checked_state, keras_state
from tf_graft.core.optimizer import Optimizer
from tf_graft.core.places import replicas
from tf_graft.core.types import Config

# Common arguments that no optimizer of Keras has.
ABSENT = {
    "learning_rate_multipliers": "Keras has one learning rate for all variables",
    "count_rows": "Keras has one count of updates for all rows",
    "weight_decay_mode": "Keras decays all entries, at the learning rate",
    "clip_rows": "Keras does not clip rows",
    "state_dtype": "Keras keeps state in the precision of the variables",
    "mesh": "Keras' optimizers cannot update variables on a mesh",
}
PLAIN = (bool, int, float, str, type(None))


class Parts(NamedTuple):
    """What Keras has in one optimizer.

    Args:
        outer: the optimizer that is called, which has the common options.
        inner: the optimizer that takes the steps.
        role: the role of `inner` in `outer`; "" where they are the same.
        loss_scale: the fixed loss scale; None for none.
    """

    outer: Optimizer
    inner: Optimizer
    role: str
    loss_scale: float | None


@functools.singledispatch
def parts(optimizer: Any) -> Parts:
    """Returns the parts of an optimizer; a wrapper that Keras can express registers its own.

    Raises:
        ValueError: Keras cannot express it.
    """
    return Parts(optimizer, optimizer, "", optimizer.loss_scale_factor)


def to_keras(optimizer: Any) -> keras.optimizers.Optimizer:
    """Returns an equal optimizer of Keras' own class, for code that takes only Keras' classes.

    `Adam` becomes a `keras.optimizers.Adam`, and likewise `SGD`, `AdamW`, `Adagrad`, `Adadelta`,
    `RMSprop`, `Adamax`, `NAdam`, `Lion`, `Ftrl`, `Adafactor` and `LAMB`. `wrap(optimizer)` gives a
    copy of what it wraps. `MixedPrecision` with a fixed scale becomes the optimizer inside, with
    `loss_scale_factor`. In Keras' `LossScaleOptimizer`, which `compile` puts around an optimizer
    under the policy `mixed_float16`, the optimizer inside is converted.

    Arguments that Keras has are carried over, schedules as they are. The state is, too: if the
    optimizer is built, the result is built for the same variables, and goes on from the same
    update. The given optimizer stays as it is, and shares no state with the result.

    The steps are equal on dense gradients that are finite, up to rounding: Keras rounds the
    `beta_2` of Adam and its relatives to float32. Everything else is as in Keras: repeated rows,
    sums over replicas, `sparse`, `jit_compile`, and gradients that are not finite, which
    `nonfinite="skip"` skips here and Keras applies. Keras' config does not contain exclusions from
    weight decay.

    Args:
        optimizer: an optimizer, a name or a config; any other optimizer of Keras is returned as it
            is.

    Returns:
        The optimizer, whose class is exactly Keras'.

    Raises:
        TypeError: the argument is no optimizer.
        ValueError: something would be lost, which the message names: steps that no optimizer of
            Keras takes, or an argument that it cannot express, such as `nonfinite="raise"`;
            exclusions from weight decay of an optimizer that is not built, because Keras searches
            in other names; or it is called while a step is traced.

    Example:
        >>> from tf_graft.optimizers import Adagrad
        >>> back = to_keras(Adagrad(0.5, clipnorm=1.0))
        >>> type(back) is keras.optimizers.Adagrad, back.clipnorm
        (True, 1.0)
    """
    optimizer = resolve(optimizer)
    if not isinstance(optimizer, Optimizer):
        inside = getattr(optimizer, "inner_optimizer", None)
        return _around(optimizer, inside) if isinstance(inside, Optimizer) else optimizer
    if not tf.executing_eagerly():
        raise ValueError(f"{_where(optimizer)}: call it between the steps, not in a tf.function.")
    found = parts(optimizer)
    common = _common(found)
    with replicas.creating_under(found.outer.state.strategy):
        result = _unbuilt(found, common)
        _exclude(found, result)
        if found.outer.built:
            result.build([p.variable for p in found.outer.state.parameters])
    _carry_state(found, result)
    return result


def refused(optimizer: Any, name: str, value: object, why: str) -> ValueError:
    """Returns the error for an argument that would be lost."""
    given = f"{optimizer.rule.called}({name}={shown(value, described)})"
    return ValueError(f"to_keras({given}): {name} would be lost: {why}.")


def _where(optimizer: Any) -> str:
    return f"to_keras({optimizer.rule.called})"


def _around(optimizer: Any, inside: Optimizer) -> keras.optimizers.Optimizer:
    """Returns Keras' optimizer of the loss scale around the equal of the one inside."""
    with replicas.creating_under(inside.state.strategy):
        given = {name: getattr(optimizer, name) for name in ("initial_scale", "name")}
        steps = optimizer.dynamic_growth_steps
        result = type(optimizer)(to_keras(inside), dynamic_growth_steps=steps, **given)
        if optimizer.built:
            result.build([p.variable for p in inside.state.parameters])
    own = [len(x.variables) - len(x.inner_optimizer.variables) for x in (optimizer, result)]
    both = zip(optimizer.variables[: own[0]], result.variables[: own[1]], strict=True)
    for old, new in both:
        checked_state.assign({"": new}, {"": old.numpy()})
    return result


# Common arguments.


def _common(found: Parts) -> Config:
    """Returns the common arguments as Keras takes them."""
    outer, inner = found.outer, found.inner
    for name, why in ABSENT.items():
        if getattr(outer, name):
            raise refused(outer, name, getattr(outer, name), why)
    if not outer.master_weights:
        raise refused(outer, "master_weights", False, "Keras rounds weights to the nearest")
    if outer.nonfinite == "raise":
        raise refused(outer, "nonfinite", "raise", "Keras does not check gradients")
    if callable(inner.weight_decay):
        raise _in_time(inner, "weight_decay")
    _refuse_state(outer)
    common = {name: getattr(outer, name) for name in options.OF_KERAS}
    common |= {"weight_decay": inner.weight_decay, "name": inner.name}
    common["loss_scale_factor"] = found.loss_scale
    if isinstance(outer.use_ema, Averages):
        common |= {"use_ema": True, "ema_momentum": _momentum(outer)}
    if outer.gradient_accumulation_steps:
        _refuse_micro_steps(outer, inner)
    return common


def _refuse_state(outer: Optimizer) -> None:
    """Refuses state that Keras has no place for."""
    if outer.saved.waits:
        raise ValueError(
            f"{_where(outer)}: state that was loaded waits for the optimizer to be built, and "
            "would be lost; call optimizer.build(model) first."
        )
    masters = [p.path for p in outer.state.parameters if p.has_master]
    if masters:
        raise ValueError(
            f"{_where(outer)}: '{masters[0]}' is in half precision, and its float32 master would "
            "be lost; convert an optimizer that is not built."
        )


def _momentum(outer: Any) -> float:
    """Returns the momentum of averages that are like those of Keras."""
    averages = outer.use_ema
    if isinstance(averages, EMA) and averages == EMA(averages.momentum):
        return averages.momentum
    why = "Keras' averages begin with the first update and have one momentum"
    raise refused(outer, "use_ema", averages, why)


def _refuse_micro_steps(outer: Any, inner: Any) -> None:
    """Refuses what counts updates here and micro-steps in Keras."""
    if outer.use_ema:
        why = "under gradient_accumulation_steps Keras averages after each micro-step"
        raise refused(outer, "use_ema", outer.use_ema, why)
    rate = keras_contract.rate_of(inner)
    if isinstance(rate, LearningRateSchedule):
        why = "under gradient_accumulation_steps Keras' schedules count micro-steps"
        raise refused(outer, "learning_rate", rate, why)


def _in_time(optimizer: Any, name: str) -> ValueError:
    return refused(optimizer, name, getattr(optimizer, name), f"Keras takes a number for {name}")


# The optimizer.


def _unbuilt(found: Parts, common: Config) -> keras.optimizers.Optimizer:
    """Returns Keras' optimizer, without state."""
    rate = keras_contract.rate_of(found.inner)
    if isinstance(found.inner, Wrapped):
        return _copied(found.inner, rate, common)
    cls = _class_of(found.inner)
    return cls(learning_rate=rate, **_own(found.inner, cls), **common)


def _copied(inner: Wrapped, rate: Any, common: Config) -> keras.optimizers.Optimizer:
    """Returns a copy of a wrapped optimizer with other common arguments, but its own decay."""
    if inner.weight_decay:
        why = "it does not act before the step, as Keras' does; give it to the Keras optimizer"
        raise refused(inner, "weight_decay", inner.weight_decay, why)
    given = inner.optimizer
    result = type(given).from_config(given.get_config())
    for name, value in vars(given).items():
        if isinstance(value, PLAIN) and vars(result).get(name, ...) != value:
            raise ValueError(
                f"{_where(inner)}: its get_config leaves out {name}, which would be lost."
            )
    keras_contract.share_exclusions(given, result)
    if callable(keras_contract.rate_of(result)) and not callable(rate):
        raise refused(inner, "learning_rate", rate, "the Keras optimizer has a schedule")
    result.learning_rate = rate
    for name in common.keys() - {"weight_decay"}:
        setattr(result, name, common[name])
    return result


def _class_of(inner: Any) -> type[keras.optimizers.Optimizer]:
    """Returns the class of Keras that takes the steps of an optimizer."""
    name, namesake = type(inner).__name__, inner.namesake
    cls = KERAS.get(name if namesake is None else namesake.name(inner))
    if cls is None or OURS.get(name) is not type(inner):
        raise ValueError(f"{_where(inner)}: Keras has no optimizer that takes its steps.")
    if namesake is None:
        raise ValueError(f"{_where(inner)}: Keras' {cls.__name__} takes other steps.")
    return cls


def _own(inner: Any, cls: type[keras.optimizers.Optimizer]) -> Config:
    """Returns the arguments of the class of an optimizer, as the class of Keras takes them."""
    for name, why in inner.namesake.unlike(inner).items():
        kept_as = OPTIONS[name].kept_as if name in OPTIONS else name
        raise refused(inner, name, getattr(inner, kept_as), why)
    ours, theirs = (inspect.signature(c).parameters for c in (type(inner), cls))
    own = {}
    for name in signatures.own_arguments(type(inner)):
        if name == "learning_rate" or name in OPTIONS:
            continue
        value = own[name] = getattr(inner, name)
        if callable(value):
            raise _in_time(inner, name)
        if name not in theirs and own.pop(name) != ours[name].default:
            raise refused(inner, name, value, f"Keras' {cls.__name__} has no such argument")
    return own


# Exclusions from weight decay, and state.


def _exclude(found: Parts, result: keras.optimizers.Optimizer) -> None:
    """Excludes the same variables from weight decay."""
    patterns = [*dict.fromkeys([*found.inner.rule.undecayed_paths, *found.outer.decay_exclusions])]
    decays = result.weight_decay or isinstance(found.inner, Wrapped)
    if not patterns or not decays:
        return
    if not found.outer.built:
        excluded, _ = keras_contract.decay_exclusions(result)
        if patterns == excluded:  # those of a wrapped optimizer
            return
        raise ValueError(
            f"{_where(found.inner)}: exclude_from_weight_decay={shown(patterns)} would be lost: "
            "Keras searches in other names; call optimizer.build(model) first, which makes "
            "exclusions of variables."
        )
    parameters = found.outer.state.parameters
    result.exclude_from_weight_decay(
        var_list=[p.variable for p in parameters if found.inner.rule.undecayed(p.path)]
    )


def _carry_state(found: Parts, result: keras.optimizers.Optimizer) -> None:
    """Gives Keras' optimizer the values of the counters, rates, averages and slots."""
    if found.outer.built and found.outer.use_ema:
        found.outer.synchronized_averages()
    values = keras_state.given_back(found.outer, found.inner, found.role)
    named, given = {}, {}
    for number, (variable, value) in enumerate(zip(result.variables, values, strict=True)):
        if value is not None:
            named[str(number)] = variable
            given[str(number)] = value.astype(tf.as_dtype(variable.dtype).as_numpy_dtype)
    checked_state.assign(named, given)
