"""`fit`, `evaluate` and `predict` of a model on a mesh.

Keras' own loops run, with its callbacks, metrics and data. This module replaces only the functions
that these loops call on a batch: it moves the batch to the mesh and the results back to the host.
"""

from collections.abc import Callable, Iterator
from typing import Any, NoReturn, TypeAlias

import keras
import tensorflow as tf
from tensorflow.experimental import dtensor

from tf_graft import optimizers
from tf_graft.core import keras_contract
from tf_graft.core.optimizer import Optimizer
from tf_graft.core.places.mesh_tensors import from_mesh
from tf_graft.core.types import OptimizerLike, Structure
from tf_graft.dtensor import clients, support
from tf_graft.dtensor.feed import Feed

Batches: TypeAlias = Iterator[Structure]

REPLACED = (
    *("make_train_function", "make_test_function", "make_predict_function"),
    *("export", "save", "save_weights"),
)


def install(
    model: keras.Model,
    mesh: dtensor.Mesh,
    batch_dim: str | None,
    local_batches: bool,
    follow: Callable[[], None],
) -> None:
    """Makes a model create functions for its mesh.

    Args:
        model: a model on the mesh.
        mesh: the mesh.
        batch_dim: the mesh dimension of a batch's examples.
        local_batches: whether a batch holds the examples of this client's devices only.
        follow: moves to the mesh the variables that the model has made after `distribute`.
    """
    feed = Feed(f"the model '{model.name}'", mesh, batch_dim, local_batches, shortens=True)

    def make_train_function(force: bool = False) -> Callable[[Batches], Structure]:
        check_optimizer("fit", model.optimizer)
        support.check_trainable(model)
        feed.begin(None)
        if model.train_function is None or force:
            step = Step(model, model.train_step, feed, follow)
            model.train_function = _over_iterator(model, step)
        return model.train_function

    def make_test_function(force: bool = False) -> Callable[[Batches], Structure]:
        feed.begin(None)
        if model.test_function is None or force:
            step = Step(model, model.test_step, feed, follow)
            model.test_function = _over_iterator(model, step)
        return model.test_function

    def make_predict_function(force: bool = False) -> Callable[[list[Structure]], Structure]:
        feed.begin(None)
        if model.predict_function is None or force:
            model.predict_function = _over_list(Step(model, model.predict_step, feed, None))
        return model.predict_function

    made = (
        *(make_train_function, make_test_function, make_predict_function, _refused_export(model)),
        *(clients.written_by_one(mesh, save) for save in (model.save, model.save_weights)),
    )
    for name, function in zip(REPLACED, made, strict=True):
        setattr(model, name, function)


def _refused_export(model: keras.Model) -> Callable[..., NoReturn]:
    def export(*args: object, **kwargs: object) -> NoReturn:
        raise ValueError(
            f"export: the model '{model.name}' is on a mesh, which a SavedModel cannot hold; "
            "export it after tf_graft.dtensor.collect(model)."
        )

    return export


def uninstall(model: keras.Model) -> None:
    """Restores Keras' own functions of a model."""
    for name in REPLACED:
        delattr(model, name)


def check_optimizer(owner: str, optimizer: OptimizerLike | None) -> None:
    """Refuses an optimizer of Keras, whose variables stay off the mesh, and names another."""
    if optimizer is None or isinstance(optimizer, Optimizer):
        return
    name = type(optimizer).__name__
    ours = {known.lower(): known for known in optimizers.__all__}.get(name.lower())
    instead = f"tf_graft.{ours}" if ours else f"tf_graft.wrap(keras.optimizers.{name}(...))"
    raise TypeError(
        f"{owner}: on a mesh the variables of keras.optimizers.{name} would be updated once per "
        f"device, and the results would be wrong; compile the model with {instead}."
    )


class Step:
    """Runs a model's step on the mesh, from a batch on the host to results on the host.

    Args:
        model: the model.
        step: one of its steps.
        feed: moves batches to the mesh.
        follow: moves variables that the model makes on the first batch to the mesh.
    """

    def __init__(
        self,
        model: keras.Model,
        step: Callable[[Structure], Structure],
        feed: Feed,
        follow: Callable[[], None] | None,
    ):
        self.model = model
        self.feed = feed
        self.follow = follow
        self.run: Any = step if model.run_eagerly else tf.function(_guarded(step), autograph=False)

    def __call__(self, batch: Structure) -> Structure:
        """Runs the step on a batch."""
        packed = self.packed(batch)
        try:
            with dtensor.default_mesh(self.feed.mesh):  # for tensors that a step creates
                outputs = self.run(packed)
        except (tf.errors.UnknownError, tf.errors.UnimplementedError) as error:
            error.add_note(support.ADVICE)
            raise
        return tf.nest.map_structure(from_mesh, outputs)

    def packed(self, batch: Structure) -> Structure:
        """Moves a batch to the mesh, after the variables that the model makes on the first one."""
        packed = self.feed.next(tf.nest.map_structure(_given, batch))
        if self.follow is not None:
            keras_contract.make_metrics(self.model, packed)
            self.follow()
            self.follow = None
        return packed

    def own(self, outputs: Structure) -> Structure:
        """Returns the outputs for the examples that this client gave."""
        if self.feed.shares == 1:
            return outputs
        return tf.nest.map_structure(lambda value: value[self.feed.mine], outputs)


def _guarded(step: Callable[[Structure], Structure]) -> Callable[[Structure], Structure]:
    """Returns a step whose operations are guarded at the end of its trace."""

    def guarded(batch: Structure) -> Structure:
        outputs = step(batch)
        support.guard_operations(tf.compat.v1.get_default_graph())
        return outputs

    return guarded


def _over_iterator(model: keras.Model, step: Step) -> Callable[[Batches], Structure]:
    """Makes a function that runs a step on each batch of an execution, for the last logs."""

    def function(iterator: Batches) -> Structure:
        step.feed.begin(iterator)
        logs = step(next(iterator))
        for _ in range(model.steps_per_execution - 1):
            try:
                batch = next(iterator)
            except StopIteration:
                break
            logs = step(batch)
        return logs

    return function


def _over_list(step: Step) -> Callable[[list[Structure]], Structure]:
    """Makes a function that runs a step on each batch of a list and concatenates the results."""

    def function(batches: list[Structure]) -> Structure:
        outputs = [step.own(step(batch)) for batch in batches]
        if len(outputs) == 1:
            return outputs[0]
        return tf.nest.map_structure(lambda *parts: tf.concat(parts, axis=0), *outputs)

    return function


def _given(value: tf.Tensor | tf.experimental.Optional) -> tf.Tensor | None:
    return None if isinstance(value, tf.experimental.Optional) else value
