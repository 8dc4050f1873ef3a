"""Optimizers made of optimizers: what their children must not do, and what is kept for them."""

from typing import Any, ClassVar

import keras
import tensorflow as tf

from tf_graft.core import keras_contract, state
from tf_graft.core.optimizer import Optimizer
from tf_graft.core.point import under, within
from tf_graft.core.registry import get, serialize
from tf_graft.core.slots import Slot
from tf_graft.core.wrapped import wrap

# What happens once for all variables, so that a child cannot do it: an attribute, its default.
PIPELINE = {
    "clipnorm": None,
    "clipvalue": None,
    "global_clipnorm": None,
    "use_ema": False,
    "loss_scale_factor": None,
    "gradient_accumulation_steps": None,
    "jit_compile": "auto",
    "sparse": "lazy",
    "nonfinite": "skip",
}


class Wrapper(Optimizer):
    """An optimizer that asks others for their steps, and reshapes them in `propose`.

    The children keep their rates, schedules and weight decay. Their slots stand among the
    wrapper's, under their roles, and they count by its `iterations`.

    Attributes:
        roles: the names of the arguments that are children, by role.
    """

    roles: ClassVar[dict[str, str]] = {}

    def children(self) -> dict[str, Optimizer]:
        """The optimizers that this one is made of, by role."""
        return {role: getattr(self, argument) for role, argument in self.roles.items()}

    def _adopt(self, **given: Any) -> None:
        """Takes the children in, by argument: optimizers of ours or Keras', names, configs.

        Raises:
            TypeError: one that is not an optimizer, or cannot be a child.
            ValueError: the same one twice, one that has been built, or one that would do what the
                wrapper does for all.
        """
        owner = type(self).__name__
        objects = [x for x in given.values() if isinstance(x, keras.optimizers.Optimizer)]
        for argument, child in given.items():
            if sum(child is other for other in objects) > 1:
                raise ValueError(
                    f"{owner}({argument}=...): the same object is given twice; each child needs "
                    "a state of its own."
                )
        for role, argument in self.roles.items():
            child = wrap(get(given[argument]))
            where = f"{owner}({argument}={type(child).__name__}(...))"
            if child.built:
                raise ValueError(f"{where}: it has been built; give one without state.")
            _refuse_pipeline(where, owner, child)
            setattr(self, argument, child)
            for name, variable in under(role, child.rate_variables()).items():
                keras_contract.rename(self._keep(variable), f"{self.name}/{name}")

    def slots_for(self, path: str) -> dict[str, Slot]:
        own = super().slots_for(path)
        for role, child in self.children().items():
            own |= under(role, child.slots_for(path))
        return own

    def shared_slots(self) -> dict[str, Slot]:
        own = super().shared_slots()
        for role, child in self.children().items():
            own |= under(role, child.shared_slots())
        return own

    def prepare(self, variables: dict[str, Any]) -> None:
        for child in self.children().values():
            child.join(self)
            child.prepare(variables)

    def advance(self, s: dict[str, Any], rates: dict[str, Any], t: tf.Tensor) -> dict[str, Any]:
        new: dict[str, Any] = {}
        for role, child in self.children().items():
            new |= under(role, child.advance(within(role, s), within(role, rates), t))
        return new

    def whole(self, path: str) -> bool:
        return any(child.whole(path) for child in self.children().values())

    def rates(self) -> dict[str, Any]:
        rates = super().rates()
        for role, child in self.children().items():
            rates |= under(role, child.rates())
        return rates

    def rate_variables(self) -> state.Named:
        named = super().rate_variables()
        for role, child in self.children().items():
            named |= under(role, child.rate_variables())
        return named

    def signature(self) -> str:
        children = ", ".join(child.signature() for child in self.children().values())
        return f"{super().signature()}({children})"

    def get_config(self) -> dict[str, Any]:
        config = super().get_config()
        children = zip(self.roles.values(), self.children().values(), strict=True)
        return config | {argument: serialize(child) for argument, child in children}


def _refuse_pipeline(where: str, owner: str, child: Optimizer) -> None:
    for name, default in PIPELINE.items():
        if getattr(child, name) != default:
            raise ValueError(
                f"{where}: its {name}={getattr(child, name)!r} would have to act on all variables "
                f"at once; give {name} to {owner}."
            )
