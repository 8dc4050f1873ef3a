"""The center that workers share: its variables, the optimizer that updates them, and its life."""

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Self

import keras
import numpy as np
import tensorflow as tf

from tf_graft.compose.copies import copied
from tf_graft.compose.option_table import Pair, refuse_unused
from tf_graft.compose.wrapper import Around, ComposedRule, child_of, divide, held_by
from tf_graft.core import building, keras_contract
from tf_graft.core.arguments.registry import resolve, serialize
from tf_graft.core.optimizer import Optimizer
from tf_graft.core.places import replicas
from tf_graft.core.places.mesh_tensors import from_mesh
from tf_graft.core.state import write
from tf_graft.core.state.parameters import Parameter
from tf_graft.core.state.slots import Slot
from tf_graft.core.state.write import Whole
from tf_graft.core.types import Config, OptimizerLike, Store, TensorLike, VariableLike


class _CenterRule(ComposedRule):
    """The rule of the local steps, which are taken from a center."""

    optimizer: "Centered"

    def __init__(self, optimizer: "Centered"):
        super().__init__(optimizer)
        self.extends = False

    @property
    def signature(self) -> str:
        local, center = self.optimizer.optimizer, self.optimizer.center_optimizer
        return f"{type(self.optimizer).__name__}({local.rule.signature}, {center.rule.signature})"

    def prepare(self, variables: Mapping[str, VariableLike]) -> None:
        super().prepare(variables)
        if self.optimizer.leads:
            self.optimizer.prepare_center(variables)

    def complete(self, parameters: Sequence[Parameter]) -> None:
        super().complete(parameters)
        self.optimizer.make_center(parameters)


class Centered(Around, rule=_CenterRule):
    """An optimizer of local copies, with a second optimizer for the center that they start from.

    The model's variables are the local copy. The center is a copy of them in the slot `center`; its
    optimizer has its own state and its own count of updates. On parameter servers the model's
    variables are the center.

    Attributes:
        center_optimizer: updates the center.
    """

    center_optimizer: Optimizer
    num_worker: int | None
    _leader: Self | None = None
    _shown = False

    @property
    def rounds(self) -> keras.Variable:
        """The number of updates of the center."""
        return self.center_optimizer.iterations

    @property
    def on_servers(self) -> bool:
        """Whether the model's variables are on parameter servers, where they are the center."""
        return isinstance(self.state.strategy, tf.distribute.ParameterServerStrategy)

    @property
    def leads(self) -> bool:
        """Whether this optimizer owns the center, rather than another worker."""
        return self._leader is None

    def slots_for(self, path: str) -> dict[str, Slot]:
        return {} if self.on_servers else super().slots_for(path)

    def slots(self) -> dict[str, Slot]:
        return {"center": Slot(_value_of)} if self.leads else {}

    def whole(self, path: str) -> bool:
        return super().whole(path) or self.center_optimizer.whole(path)

    def prepare_center(self, variables: Mapping[str, VariableLike]) -> None:
        """Shows the variables to the center's optimizer, which updates their centers.

        Raises:
            TypeError, ValueError: an argument, or an option, does not fit them.
        """
        owner, center = type(self).__name__, self.center_optimizer
        for path, variable in variables.items():
            if self.on_servers and not isinstance(variable, keras.Variable):
                raise ValueError(
                    f"{owner}.build: '{path}' is no keras.Variable, which it must be on parameter "
                    "servers, and not a shard of one."
                )
        pair = Pair("center", owner, "center_optimizer", center.rule.called)
        refuse_unused(pair, held_by(self), held_by(center))
        center.sparse, center.jit_compile = self.sparse, self.jit_compile
        center.saved.examine()
        center.state.move_to(list(variables.values()))
        center.rule.outer_exclusions = self.rule.undecayed_paths
        building.introduce(center, variables, variables, self.rule.models)

    def make_center(self, parameters: Sequence[Parameter]) -> None:
        """Builds the center's optimizer for the centers of variables, or takes the leader's."""
        if self._leader is not None:
            for p, center in zip(parameters, self._leader.centers(), strict=True):
                p.slots["center"] = center
                p.replace(tf.convert_to_tensor(center))
            return
        for p in parameters:
            center_of(p).constraint = p.variable.constraint
        centers = {p.path: center_of(p) for p in parameters}
        center = self.center_optimizer
        with keras_contract.named(centers):  # patterns are for the model's paths
            building.make_state(center, centers)
        self.state.beside = {"center_optimizer/": center.state}
        self.state.keep(center.state.named("center_optimizer/"))

    def reset_rows(
        self, table: VariableLike, rows: TensorLike, weights: TensorLike | None = None
    ) -> None:
        """Resets rows as in `Optimizer.reset_rows`, and copies their weights into the center.

        Raises:
            ValueError: the variables are on parameter servers; or as in `Optimizer.reset_rows`.
        """
        owner = f"{type(self).__name__}.reset_rows"
        if self.on_servers:
            raise ValueError(
                f"{owner}: on parameter servers every worker has its own state, which no call "
                "reaches; assign new weights alone."
            )
        super().reset_rows(table, rows, weights)
        (parameter,) = self.state.parameters_of(owner, [table])
        self.center_optimizer.reset_rows(center_of(parameter), rows)

    def start_center(self) -> None:
        """Sets the center to the weights as long as no step has been made."""
        counts = [tf.convert_to_tensor(replicas.local(v)) for v in (self.iterations, self.rounds)]

        def start() -> None:
            for p in self.state.parameters:
                value = p.read(Whole())
                write.put(center_of(p), value)
                p.replace(_computed(value))

        write.either(tf.equal(tf.add_n(counts), 0), start)

    def workers(self) -> list[Self]:
        """Returns `num_worker` optimizers, this one first, that share a center in one process.

        Each optimizer has variables of its own, and the caller chooses the order of their steps.
        Call `workers` before you build any of them. Then build this one first: the others start
        from its center.

        Raises:
            ValueError: there is no `num_worker`, or this optimizer is built.
        """
        if self.num_worker is None or self.built:
            what = "after it was built" if self.built else "without num_worker"
            raise ValueError(f"{type(self).__name__}.workers: called {what}.")
        others = [copied(self) for _ in range(self.num_worker - 1)]
        for other in others:
            other.follow(self)
        return [self, *others]

    def follow(self, leader: Self) -> None:
        """Shares another worker's center."""
        self._leader, self.center_optimizer = leader, leader.center_optimizer

    def centers(self) -> list[VariableLike]:
        """Returns the center's variables, in the order of the model's."""
        return [center_of(p) for p in self.state.parameters]

    def center_values(self) -> dict[str, np.ndarray]:
        """Returns the center's values by the paths of the model's variables."""
        with self.centered():
            return {p.path: from_mesh(p.variable).numpy() for p in self.state.parameters}

    @contextlib.contextmanager
    def centered(self) -> Iterator[None]:
        """A context in which the model's variables hold the center, to evaluate or save it.

        Training continues from the center if you load a file that `save` or `save_weights` wrote
        there. Save a `tf.train.Checkpoint` outside of the context: a checkpoint reads the variables
        themselves, and the context exchanges the two copies.
        """
        self.show_center(True)
        try:
            yield
        finally:
            self.show_center(False)

    def show_center(self, shown: bool) -> None:
        """Puts the center into the model's variables, or puts the local copy back."""
        if shown != self._shown and self.built and not self.on_servers:
            self.state.everywhere(_swap, list(self.state.parameters), traced=True)
            self._shown = shown

    def save_own_variables(self, store: Store) -> None:
        """Saves as every optimizer does, with center and local copy in their own variables."""
        shown = self._shown
        self.show_center(False)
        try:
            super().save_own_variables(store)
        finally:
            self.show_center(shown)

    def finalize_variable_values(self, var_list: Iterable[VariableLike]) -> None:
        """Copies the center into the variables; `fit` calls this method when it ends."""
        self.warn_of_skips()
        wanted = building.parameters_for(self, "finalize_variable_values", list(var_list))
        self.show_center(False)
        self.center_optimizer.finalize_variable_values([center_of(p) for p in wanted])
        if not self.on_servers:
            self.state.everywhere(_pull, wanted, traced=True)

    def get_config(self) -> Config:
        return super().get_config() | {"center_optimizer": serialize(self.center_optimizer)}


def divisor(mode: str, steps: tf.Tensor) -> tf.Tensor:
    """Returns what divides the sums of a number of local steps before they are pushed."""
    return tf.ones_like(steps) if mode == "difference" else steps


def center_of(parameter: Parameter) -> VariableLike:
    """Returns a parameter's center: on servers, its variable itself."""
    center: VariableLike = parameter.slots.get("center", parameter.variable)
    return center


def _swap(parameters: Sequence[Parameter]) -> None:
    """Exchanges the model's variables with the center."""
    for p in parameters:
        local, center = p.read(Whole()), replicas.local(center_of(p))
        p.replace(tf.convert_to_tensor(center))
        write.put(center, local)


def _pull(parameters: Sequence[Parameter]) -> None:
    """Copies the center into the model's variables."""
    for p in parameters:
        p.replace(tf.convert_to_tensor(replicas.local(center_of(p))))


def _computed(weights: tf.Tensor) -> tf.Tensor:
    """Returns weights as a result of a branch's own.

    If a branch returns the weights themselves, or does not assign them, XLA copies them each step.
    """
    return tf.where(tf.equal(weights, weights), weights, weights - weights)  # NaN stays NaN


def _value_of(variable: VariableLike) -> tf.Tensor:
    """Returns a variable's value; zeros if it has none yet.

    `fit` may create a model's variables in the function of its first step; they get their values
    when that function runs.
    """
    value = tf.convert_to_tensor(variable)
    return value if value.shape == variable.shape else tf.zeros(variable.shape, value.dtype)


def taken(owner: str, given: OptimizerLike | str | Config, like: Optimizer) -> Optimizer:
    """Returns the center's optimizer from an argument.

    Args:
        owner: the class that has the argument.
        given: an optimizer, a name or a config.
        like: the optimizer whose options of execution the center's optimizer takes over.

    Raises:
        TypeError: `given` is no optimizer, or scales the loss.
        ValueError: `given` has an option that is for gradients of the loss.
    """
    found = resolve(given)
    refuse_scaling(owner, "center_optimizer", found)
    center = child_of(owner, "center_optimizer", found)
    divide("center", owner, "center_optimizer", center, held_by(like))
    center.state.settle(like.mesh)
    return center


def refuse_scaling(owner: str, argument: str, given: object) -> None:
    """Refuses an optimizer of Keras that scales the loss."""
    if isinstance(given, keras.optimizers.LossScaleOptimizer):
        raise TypeError(
            f"{owner}({argument}={type(given).__name__}(...)): of what scales the loss {owner} "
            "takes MixedPrecision alone, as optimizer; no scaled gradient comes to the center."
        )
