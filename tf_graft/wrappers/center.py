"""The centre that workers share: its variables, the optimizer that updates them, and its life."""

import contextlib
from collections.abc import Iterable, Iterator
from typing import Any, Self

import keras
import numpy as np
import tensorflow as tf

from tf_graft.core import keras_contract, replicas, write
from tf_graft.core.optimizer import Optimizer
from tf_graft.core.parameters import Parameter
from tf_graft.core.registry import resolve, serialize
from tf_graft.core.slots import Slot
from tf_graft.core.wrapper import Around, child_of
from tf_graft.core.write import Whole


class Centered(Around):
    """An optimizer of local copies, and another of the centre that they begin from.

    The model's variables are the local copy. The centre is a copy that `center_optimizer` was built
    for, with state and a count of its own.

    Attributes:
        center_optimizer: updates the centre.
    """

    center_optimizer: Optimizer
    num_worker: int | None
    _leader: Self | None = None
    _shown = False

    def take_center(self, given: Any) -> Optimizer:
        """The centre's optimizer, for what was given.

        Raises:
            TypeError: no optimizer, or one that scales the loss.
            ValueError: one with an option that is for gradients of the loss.
        """
        owner = type(self).__name__
        given = resolve(given)
        refuse_scaling(owner, "center_optimizer", given)
        center = child_of(owner, "center_optimizer", given)
        for option in ("gradient_accumulation_steps", "loss_scale_factor"):
            if getattr(center, option) is not None:
                raise ValueError(
                    f"{owner}(center_optimizer={type(center).__name__}(...)): its "
                    f"{option}={getattr(center, option)!r} is for gradients of the loss; give it "
                    "to optimizer."
                )
        center.sparse, center.jit_compile = self.sparse, self.jit_compile
        center.settle(self.mesh)
        return center

    @property
    def rounds(self) -> Any:
        """How many updates the centre has had: a variable."""
        return self.center_optimizer.iterations

    @property
    def on_servers(self) -> bool:
        """Whether the model's variables are the centre, on parameter servers."""
        return isinstance(self._strategy, tf.distribute.ParameterServerStrategy)

    def slots_for(self, path: str) -> dict[str, Slot]:
        return {} if self.on_servers else super().slots_for(path)

    def slots(self) -> dict[str, Slot]:
        """The centre, where it is not another worker's."""
        if self._leader is not None:
            return {}
        return {"center": Slot(_value_of)}

    def _receive(self, gradients: list[Any], parameters: list[Parameter], summed: bool) -> None:
        if self._leader is None:
            self._start_center()
        super()._receive(gradients, parameters, summed)

    def _start_center(self) -> None:
        """As long as no step is made, the centre is the weights, whenever they got their values."""
        counts = [tf.convert_to_tensor(replicas.local(v)) for v in (self.iterations, self.rounds)]

        def start() -> None:
            for p in self._parameters:
                write.put(_center_of(p), p.read(Whole()))

        tf.cond(tf.add_n(counts) > 0, lambda: None, start)

    def whole(self, path: str) -> bool:
        return super().whole(path) or self.center_optimizer.whole(path)

    def complete(self, parameters: list[Parameter]) -> None:
        super().complete(parameters)
        if self._leader is not None:
            for p, center in zip(parameters, self._leader.centers(), strict=True):
                p.slots["center"] = center
                p.replace(tf.convert_to_tensor(center))
            return
        for p in parameters:
            if self.on_servers and not isinstance(p.variable, keras.Variable):
                raise ValueError(
                    f"{type(self).__name__}.build: '{p.path}' is no keras.Variable, which it must "
                    "be on parameter servers, and not a shard of one."
                )
            _center_of(p).constraint = p.variable.constraint
        centers = {p.path: _center_of(p) for p in parameters}
        self.center_optimizer.settle(self.mesh)
        with keras_contract.named(centers):  # patterns are for the model's paths
            self.center_optimizer.build(centers.values())
        for name, variable in self._center_state().items():
            keras_contract.rename(self._keep(variable), f"{self.name}/{name}")

    def _center_state(self) -> dict[str, Any]:
        return self.center_optimizer.named_variables("center_optimizer/")

    def named_variables(self, place: str = "") -> dict[str, Any]:
        named = super().named_variables(place)
        return named | self._center_state() if named and self._leader is None else named

    def signature(self) -> str:
        children = (self.optimizer.signature(), self.center_optimizer.signature())
        return f"{type(self).__name__}({', '.join(children)})"

    def workers(self) -> list[Self]:
        """`num_worker` optimizers, this one the first, each for variables of its own: a centre is
        shared in one process, and the order of their steps is the caller's.

        To be called before anything is built. The others begin from the centre of this one, which
        has to be built first.

        Raises:
            ValueError: there is no `num_worker`, or this one is built.
        """
        if self.num_worker is None or self.built:
            what = "after it was built" if self.built else "without num_worker"
            raise ValueError(f"{type(self).__name__}.workers: called {what}.")
        others = [type(self).from_config(self.get_config()) for _ in range(self.num_worker - 1)]
        for other in others:
            other.follow(self)
        return [self, *others]

    def follow(self, leader: Self) -> None:
        """Shares another worker's centre."""
        self._leader, self.center_optimizer = leader, leader.center_optimizer

    def centers(self) -> list[Any]:
        """The centre's variables, in the order of the model's."""
        return [_center_of(p) for p in self._parameters]

    def center_values(self) -> dict[str, np.ndarray]:
        """The centre by the paths of the model's variables."""
        with self.centered():
            return {p.path: tf.convert_to_tensor(p.variable).numpy() for p in self._parameters}

    @contextlib.contextmanager
    def centered(self) -> Iterator[None]:
        """The context in which the model's variables hold the centre, to evaluate or save it."""
        self.show_center(True)
        try:
            yield
        finally:
            self.show_center(False)

    def show_center(self, shown: bool) -> None:
        """Puts the centre into the model's variables, or the local copy back."""
        if shown != self._shown and self.built and not self.on_servers:
            self._everywhere(self._strategy, self._exchange, traced=True)
            self._shown = shown

    def _exchange(self) -> None:
        for p in self._parameters:
            local, center = p.read(Whole()), replicas.local(_center_of(p))
            p.replace(tf.convert_to_tensor(center))
            write.put(center, local)

    def finalize_variable_values(self, var_list: Iterable[Any]) -> None:
        """Gives the variables the centre; `fit` calls it when it ends."""
        wanted = self._parameters_for("finalize_variable_values", list(var_list))
        self.show_center(False)
        self.center_optimizer.finalize_variable_values([_center_of(p) for p in wanted])
        if not self.on_servers:
            self._everywhere(self._strategy, self._pull, wanted, traced=True)

    def _pull(self, parameters: list[Parameter]) -> None:
        for p in parameters:
            p.replace(tf.convert_to_tensor(replicas.local(_center_of(p))))

    def get_config(self) -> dict[str, Any]:
        return super().get_config() | {"center_optimizer": serialize(self.center_optimizer)}


def _center_of(parameter: Parameter) -> Any:
    """A parameter's centre: on servers, its variable itself."""
    return parameter.slots.get("center", parameter.variable)


def _value_of(variable: Any) -> tf.Tensor:
    """A variable's value; zeros where it has none yet: `fit` may make the variables of a model in
    the function of its first step, which gives them their values when it runs.
    """
    value = tf.convert_to_tensor(variable)
    return value if value.shape == variable.shape else tf.zeros(variable.shape, value.dtype)


def refuse_scaling(owner: str, argument: str, given: Any) -> None:
    """Refuses what scales the loss."""
    if isinstance(given, keras.optimizers.LossScaleOptimizer):
        raise TypeError(
            f"{owner}({argument}={type(given).__name__}(...)): of what scales the loss {owner} "
            "takes MixedPrecision alone, as optimizer; no scaled gradient comes to the centre."
        )
