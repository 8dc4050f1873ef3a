"""Schedules by name, from a config."""

import difflib
import inspect
import numbers
import re
from collections.abc import Mapping

import keras

from tf_graft.core import keras_arguments, rates
from tf_graft.core.checks import shown
from tf_graft.schedules.exp_decay import ExpDecay
from tf_graft.schedules.fixed_lr import FixedLR
from tf_graft.schedules.inv_poly_decay import InvPolyDecay
from tf_graft.schedules.lr_policy import LrPolicy
from tf_graft.schedules.piecewise_constant import PiecewiseConstant
from tf_graft.schedules.poly_decay import PolyDecay
from tf_graft.schedules.transformer import TransformerSchedule
from tf_graft.schedules.warmup import Warmup

LearningRateSchedule = keras.optimizers.schedules.LearningRateSchedule


def _snake_case(name):
    return re.sub("(?<=[a-z])(?=[A-Z])", "_", name).lower()


_OURS = (
    FixedLR,
    ExpDecay,
    PolyDecay,
    InvPolyDecay,
    LrPolicy,
    PiecewiseConstant,
    TransformerSchedule,
    Warmup,
)
_KERAS = tuple(
    schedule
    for schedule in vars(keras.optimizers.schedules).values()
    if inspect.isclass(schedule) and schedule is not LearningRateSchedule
)
_CAMEL_CASE = {cls.__name__: cls for cls in (*_OURS, *_KERAS)} | {"Noam": TransformerSchedule}
_SNAKE_CASE = {_snake_case(name): cls for name, cls in _CAMEL_CASE.items()}


def list_schedules():
    """Every schedule `get` knows, ours and Keras' own: name to first line of its docstring.

    Example:
        >>> list_schedules()["fixed_lr"]
        'The same rate at every step.'
    """
    return {name: inspect.getdoc(cls).splitlines()[0] for name, cls in _SNAKE_CASE.items()}


def get(identifier):
    """The schedule that `identifier` stands for.

    Names are those of the classes here and in `keras.optimizers.schedules`, in CamelCase or
    snake_case. Dicts are left as they are. The `schedule` of a `Warmup` is an identifier too.

    Args:
        identifier: A schedule (returned as it is); a number (a constant rate); a name; a flat
            config `{"name": name, **arguments}`; `{"class_name": name, "config": arguments}`; or
            what `keras.saving.serialize_keras_object` made of a schedule.

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
        return FixedLR(identifier)
    raise TypeError(
        f"schedules.get({shown(identifier)}): give a schedule, a number, a name or a dict."
    )


def _from_dict(config):
    if "registered_name" in config or "module" in config:
        schedule = rates.deserialized("schedules.get", config)
        rates.refuse_schedule(f"schedules.get({type(schedule).__name__})", schedule)
        return schedule
    if "class_name" in config:
        return _build(config["class_name"], config.get("config", {}))
    if "name" not in config:
        raise ValueError(f"schedules.get({shown(config)}): the dict must have a 'name'.")
    return _build(config.pop("name"), config)


def _build(name, arguments):
    schedule_class = _find(name)
    if not isinstance(arguments, Mapping):
        raise TypeError(f"schedules.get: the config of {name} is {shown(arguments)}, not a dict.")
    parameters = inspect.signature(schedule_class).parameters
    unknown = [repr(key) for key in arguments if key not in parameters]
    if unknown:
        raise ValueError(
            f"schedules.get: {name} does not take {', '.join(unknown)}; "
            f"it takes {', '.join(parameters)}."
        )
    missing = [
        repr(key)
        for key, parameter in parameters.items()
        if parameter.default is parameter.empty and key not in arguments
    ]
    if missing:
        raise ValueError(f"schedules.get: {name} also needs {', '.join(missing)}.")
    if schedule_class is Warmup:
        arguments = {**arguments, "schedule": get(arguments["schedule"])}
    if schedule_class in _KERAS:
        keras_arguments.check(name, arguments)
    schedule = schedule_class(**arguments)
    rates.refuse_schedule(f"schedules.get: {name}", schedule)
    return schedule


def _find(name):
    if not isinstance(name, str):
        raise TypeError(f"schedules.get: the name is {name!r}; it must be a string.")
    found = _CAMEL_CASE.get(name) or _SNAKE_CASE.get(name)
    if found is None:
        near = difflib.get_close_matches(_snake_case(name), _SNAKE_CASE, n=1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise ValueError(
            f"schedules.get: no schedule is called {name!r}; {hint}"
            f"There are {', '.join(_SNAKE_CASE)}."
        )
    return found
