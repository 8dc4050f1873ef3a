"""A policy of OpenSeq2Seq as a schedule."""

import inspect
from collections.abc import Callable, Mapping
from typing import Annotated

import keras
import numpy as np
import tensorflow as tf

from tf_graft.core import checks
from tf_graft.core.arguments.checked import Checked
from tf_graft.core.arguments.names import refuse_missing, refuse_unknown
from tf_graft.core.types import Config, Scalar, TensorLike
from tf_graft.schedules import lr_policies
from tf_graft.schedules.schedule import Schedule, as_step

POLICIES: dict[str, Callable[..., Scalar]] = {
    function.__name__: function
    for function in (
        *(lr_policies.fixed_lr, lr_policies.piecewise_constant, lr_policies.exp_decay),
        *(lr_policies.poly_decay, lr_policies.cosine_decay, lr_policies.transformer_policy),
        lr_policies.inv_poly_decay,
    )
}
LISTS = ("boundaries", "decay_rates")


@keras.saving.register_keras_serializable(package="tf_graft")
class LrPolicy(Schedule):
    """Makes a schedule for any optimizer from a policy of OpenSeq2Seq, with its values and traps.

        rate(t) = policy(t, **params)

    Args:
        policy: the name of a function of `tf_graft.schedules.lr_policies`.
        params: its arguments by name, without the step; None for no arguments.

    Raises:
        TypeError: an argument of the policy is not of its kind, such as a number.
        ValueError: the policy is unknown, one of its arguments is missing or unknown, or a number
            is NaN or infinite. Ranges are not checked: the traps remain.

    Example:
        >>> schedule = LrPolicy("poly_decay", {"learning_rate": 1.0, "decay_steps": 4})
        >>> float(schedule(1))
        0.75

    Reference:
        OpenSeq2Seq, `lr_policy` and `lr_policy_params` (arXiv:1805.10387).
    """

    def __init__(
        self,
        policy: Annotated[str, Checked(checks.choice, tuple(POLICIES))],
        params: Config | None = None,
    ):
        super().__init__()
        if not isinstance(params, Mapping | None):
            raise TypeError(f"LrPolicy(params={checks.shown(params)}): params must be a dict.")
        given = dict(params or {})
        _, *known = inspect.signature(POLICIES[policy]).parameters.values()
        parameters = {parameter.name: parameter for parameter in known}
        refuse_unknown(f"LrPolicy(policy='{policy}'): it", parameters, given)
        refuse_missing(f"LrPolicy(policy='{policy}'): it", parameters, given)
        self.params = {name: _plain(value, parameters[name]) for name, value in given.items()}

    def __call__(self, step: TensorLike) -> tf.Tensor:
        """Returns the rate at `step` (number of updates done before this one), a float32 scalar."""
        return tf.cast(POLICIES[self.policy](as_step(step), **self.params), tf.float32)


def _plain(value: object, parameter: inspect.Parameter) -> object:
    """Returns an argument of a policy as a plain object; a whole number stays one.

    Raises:
        TypeError: it is not of the kind of the parameter: a number, a list of numbers, a dtype ...
        ValueError: a number is NaN or infinite.
    """
    name = f"params['{parameter.name}']"
    if parameter.name == "use_staircase_decay":
        return checks.boolean("LrPolicy", name, value)
    if parameter.name == "dtype":
        return _dtype(name, value)
    if parameter.name in LISTS:
        given = value.tolist() if isinstance(value, np.ndarray) else value
        listed = checks.listed(f"LrPolicy({name}={{}}): {name} must be a list of numbers.", given)
        return [_number(name, each) for each in listed]
    return None if value is None and parameter.default is None else _number(name, value)


def _number(name: str, value: object) -> object:
    checks.number("LrPolicy", name, value)
    return value.item() if isinstance(value, np.generic | np.ndarray) else value


def _dtype(name: str, value: object) -> str:
    try:
        dtype = tf.as_dtype(value)
    except TypeError:
        dtype = tf.string
    if not dtype.is_floating:
        raise TypeError(f"LrPolicy({name}={checks.shown(value)}): {name} must be a float dtype.")
    return str(dtype.name)
