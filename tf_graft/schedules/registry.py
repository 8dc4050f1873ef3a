"""Schedules by name, from a config."""

import inspect
import numbers
from collections.abc import Mapping
from typing import cast

import keras
from keras.optimizers.schedules import LearningRateSchedule

from tf_graft.core.arguments import keras_arguments, rates
from tf_graft.core.arguments.names import Registry, refuse_missing, refuse_unknown
from tf_graft.core.checks import shown
from tf_graft.core.types import Config
from tf_graft.schedules.composed import Composed
from tf_graft.schedules.cosine_restarts import CosineRestarts
from tf_graft.schedules.cyclical import Cyclical
from tf_graft.schedules.cyclical_momentum import CyclicalMomentum
from tf_graft.schedules.exp_decay import ExpDecay
from tf_graft.schedules.fixed_lr import FixedLR
from tf_graft.schedules.inv_poly_decay import InvPolyDecay
from tf_graft.schedules.lr_policy import LrPolicy
from tf_graft.schedules.one_cycle import OneCycle
from tf_graft.schedules.piecewise_constant import PiecewiseConstant
from tf_graft.schedules.poly_decay import PolyDecay
from tf_graft.schedules.power_decay import PowerDecay, PowerLinearDecay
from tf_graft.schedules.sequence import Sequence
from tf_graft.schedules.step_cosine import StepCosine
from tf_graft.schedules.transformer import TransformerSchedule
from tf_graft.schedules.warmup import Warmup
from tf_graft.schedules.warmup_stable_decay import WarmupStableDecay

OURS = (
    FixedLR,
    ExpDecay,
    PolyDecay,
    InvPolyDecay,
    LrPolicy,
    PiecewiseConstant,
    TransformerSchedule,
    Warmup,
    WarmupStableDecay,
    OneCycle,
    Cyclical,
    CyclicalMomentum,
    CosineRestarts,
    PowerDecay,
    PowerLinearDecay,
    StepCosine,
    Sequence,
)
KERAS = tuple(
    schedule
    for schedule in vars(keras.optimizers.schedules).values()
    if inspect.isclass(schedule) and schedule is not LearningRateSchedule
)
SCHEDULES: Registry[LearningRateSchedule] = Registry(
    "schedule", (*OURS, *KERAS), "tf_graft.schedules.list_schedules()"
)
SCHEDULES.add(TransformerSchedule, "noam")


def list_schedules() -> dict[str, str]:
    """Returns the name of every schedule that `get` knows, ours and Keras', with its summary.

    Example:
        >>> list_schedules()["fixed_lr"]
        'The same rate at every step.'
    """
    return SCHEDULES.summaries()


def get(identifier: object) -> LearningRateSchedule:
    """Returns the schedule for a name, a config, a number or a schedule.

    A name is that of a class here or in `keras.optimizers.schedules`; case and underscores do not
    matter. A dict is left unchanged. The `schedule` of a `Warmup` or of a `CyclicalMomentum` and
    each of the `schedules` of a `Sequence` is an identifier too.

    Args:
        identifier: A schedule (returned as it is); a number (a constant rate); a name; a flat
            config `{"name": name, **arguments}`; `{"class_name": name, "config": arguments}`; or
            the result of `keras.saving.serialize_keras_object` on a schedule.

    Returns:
        A `keras.optimizers.schedules.LearningRateSchedule`.

    Raises:
        TypeError: If `identifier` is none of these, or an argument is not of its type.
        ValueError: If the name or an argument is unknown, an argument is missing or out of range.

    Example:
        >>> schedule = get({"name": "poly_decay", "learning_rate": 1.0, "decay_steps": 4})
        >>> float(schedule(1))
        0.75
    """
    if isinstance(identifier, LearningRateSchedule):
        return identifier
    if isinstance(identifier, str):
        return _build(identifier, {})
    if isinstance(identifier, Mapping):
        return _from_dict(dict(identifier))
    if isinstance(identifier, numbers.Real):
        return FixedLR(cast(float, identifier))
    raise TypeError(
        f"schedules.get({shown(identifier)}): give a schedule, a number, a name or a dict."
    )


def _from_dict(config: Config) -> LearningRateSchedule:
    if "registered_name" in config or "module" in config:
        schedule = rates.deserialized("schedules.get", config)
        rates.refuse_schedule(f"schedules.get({type(schedule).__name__})", schedule)
        return schedule
    if "class_name" in config:
        return _build(config["class_name"], config.get("config", {}))
    if "name" not in config:
        raise ValueError(f"schedules.get({shown(config)}): the dict must have a 'name'.")
    return _build(config.pop("name"), config)


def _build(name: object, arguments: object) -> LearningRateSchedule:
    if not isinstance(name, str):
        raise TypeError(f"schedules.get: the name is {shown(name)}; it must be a string.")
    schedule_class = SCHEDULES.get(name)
    if schedule_class is None:
        raise SCHEDULES.unknown("schedules.get", name)
    if not isinstance(arguments, Mapping):
        raise TypeError(f"schedules.get: the config of {name} is {shown(arguments)}, not a dict.")
    where, parameters = f"schedules.get: {name}", inspect.signature(schedule_class).parameters
    refuse_unknown(where, parameters, arguments)
    refuse_missing(where, parameters, arguments)
    if issubclass(schedule_class, Composed):
        inner = schedule_class.inner
        arguments = {**arguments, inner: schedule_class.made(arguments[inner], get)}
    if schedule_class in KERAS:
        keras_arguments.check(name, arguments)
    schedule = schedule_class(**arguments)
    rates.refuse_schedule(where, schedule)
    return schedule
