"""A policy of OpenSeq2Seq as a schedule."""

import inspect
from collections.abc import Mapping

import keras
import tensorflow as tf

from tf_graft.core import checks
from tf_graft.schedules import lr_policies
from tf_graft.schedules.schedule import Schedule, as_step

POLICIES = {
    function.__name__: function
    for function in (
        *(lr_policies.fixed_lr, lr_policies.piecewise_constant, lr_policies.exp_decay),
        *(lr_policies.poly_decay, lr_policies.cosine_decay, lr_policies.transformer_policy),
        lr_policies.inv_poly_decay,
    )
}


@keras.saving.register_keras_serializable(package="tf_graft")
class LrPolicy(Schedule):
    """One of OpenSeq2Seq's policies, its values and traps, as a schedule for any optimizer.

        rate(t) = policy(t, **params)

    Args:
        policy: The name of a function of `tf_graft.schedules.lr_policies`.
        params: Its arguments, but for the step, by name. Default: None, for none.

    Raises:
        TypeError: If an argument of the policy is no number where one is wanted.
        ValueError: If there is no such policy, or it lacks an argument or has one too many, or a
            number is NaN or infinite. Ranges are not checked: the traps are there.

    Example:
        >>> schedule = LrPolicy("poly_decay", {"learning_rate": 1.0, "decay_steps": 4})
        >>> float(schedule(1))
        0.75

    Reference:
        OpenSeq2Seq, `lr_policy` and `lr_policy_params` (arXiv:1805.10387).
    """

    def __init__(self, policy, params=None):
        self.policy = checks.choice("LrPolicy", "policy", policy, list(POLICIES))
        if not isinstance(params, Mapping | None):
            raise TypeError(f"LrPolicy(params={checks.shown(params)}): params must be a dict.")
        self.params = dict(params or {})
        known = list(inspect.signature(POLICIES[policy]).parameters.values())[1:]
        for name in self.params:
            if name not in [parameter.name for parameter in known]:
                raise ValueError(
                    f"LrPolicy(policy='{policy}'): it does not take '{name}'; it takes "
                    f"{', '.join(parameter.name for parameter in known)}."
                )
        for parameter in known:
            if parameter.default is parameter.empty and parameter.name not in self.params:
                raise ValueError(f"LrPolicy(policy='{policy}'): it also needs '{parameter.name}'.")
        for name, value in self.params.items():
            _refuse_no_numbers(f"params['{name}']", value)

    def __call__(self, step):
        """The rate at `step` (number of updates done before this one): a float32 scalar."""
        return tf.cast(POLICIES[self.policy](as_step(step), **self.params), tf.float32)


def _refuse_no_numbers(name, value):
    """Refuses NaN and infinities, and what is no number or list of numbers."""
    if name == "params['use_staircase_decay']":
        checks.boolean("LrPolicy", name, value)
    elif name != "params['dtype']":
        for number in value if isinstance(value, list | tuple) else [value]:
            checks.number("LrPolicy", name, number, optional=True)
