"""Unfreeze: a callback that trains further layers from given epochs on."""

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import keras

from tf_graft.core import checks, keras_contract
from tf_graft.core.checks import shown


class Unfreeze(keras.callbacks.Callback):
    """Freezes layers when `fit` begins, and trains each of them from its epoch on.

    A frozen layer is one with `trainable=False`: its gradients are not computed, and its batch
    normalization uses the statistics that it has. When `fit` begins, the optimizer is built for all
    layers, before any callback begins; so its arguments may name layers that are frozen at first.
    An optimizer of this package that was built for some of them adds state for the others. A Keras
    optimizer cannot add state; with one on several replicas, the layers must be trainable when
    `fit` begins.

    Set up this way, gradual unfreezing of a model with a new head trains the head first, then the
    layers below it, one after the other:

    ```python
    model.fit(data, epochs=6, callbacks=[tg.Unfreeze({2: ["block_2"], 4: ["block_1"]})])
    ```

    The epochs count as in `fit`, from 0. With `initial_epoch`, layers whose epoch has passed are
    trained from the start, so a run that is resumed goes on as it was.

    Args:
        layers: for each epoch, the layers that are trained from its beginning on: layers of the
            model, also of models within it, or their names.

    Raises:
        TypeError: `layers` is no dict of lists by epoch.
        ValueError: an epoch is below 0; or, when `fit` begins, the model has no layer of that name,
            or several, a layer is given twice, neither model nor optimizer is built, or the
            optimizer was built for fewer layers and cannot add any.

    Reference:
        Howard and Ruder, 2018, "Universal language model fine-tuning for text classification"
        (arXiv 1801.06146), section 3.3.
    """

    def __init__(self, layers: Mapping[int, Sequence[keras.Layer | str]]):
        super().__init__()
        if not isinstance(layers, Mapping):
            raise TypeError(
                f"Unfreeze(layers={shown(layers)}): layers must be a dict of lists of layers by "
                "epoch."
            )
        self._given = {
            checks.integer("Unfreeze", "epoch", epoch, 0): checks.listed(
                f"Unfreeze: for epoch {epoch} the layers are {{}}; they must be in a list.", those
            )
            for epoch, those in layers.items()
        }
        self._due: dict[int, list[keras.Layer]] = {}
        self._trained: frozenset[int] | None = None  # the epochs whose layers are trained

    def set_model(self, model: keras.Model) -> None:
        """Finds the layers in the model, and builds the optimizer for all of them."""
        super().set_model(model)
        known = keras_contract.layers_of(model)
        self._due = {e: [_found(x, known) for x in those] for e, those in self._given.items()}
        everything = [layer for those in self._due.values() for layer in those]
        for layer in everything:
            if sum(layer is other for other in everything) > 1:
                raise ValueError(f"Unfreeze: the layer '{layer.name}' is given twice.")
        if model.built and model.optimizer is not None:
            with self._all_trainable(known), model.distribute_strategy.scope():
                self._build(model)

    @contextlib.contextmanager
    def _all_trainable(self, known: Sequence[keras.Layer]) -> Iterator[None]:
        """Makes the given layers trainable within the context."""
        before = [(layer, layer.trainable) for layer in known]  # a layer before those within it
        self._set_trainable(True)
        try:
            yield
        finally:
            for layer, trainable in before:
                layer.trainable = trainable

    def _build(self, model: keras.Model) -> None:
        built = model.optimizer.built
        try:
            model.optimizer.build(model.trainable_variables)
        except ValueError as error:
            if not built:
                raise
            raise ValueError(
                f"Unfreeze: {error} Leave the layers trainable, as Unfreeze freezes them itself: "
                "with replicas, Keras builds the optimizer for what is trainable when you call fit."
            ) from error

    def on_train_begin(self, logs: Mapping[str, Any] | None = None) -> None:
        """Freezes all given layers; the first epoch trains those whose epoch has come."""
        if not self.model.optimizer.built:
            raise ValueError(
                "Unfreeze: the model has no weights yet, so the optimizer cannot be built for "
                "them; give it a keras.Input, or call it on a batch before fit."
            )
        self._set_trainable(False)
        self._trained = None

    def _set_trainable(self, trainable: bool) -> None:
        for those in self._due.values():
            for layer in those:
                layer.trainable = trainable

    def on_epoch_begin(self, epoch: int, logs: Mapping[str, Any] | None = None) -> None:
        """Trains the layers whose epoch has come."""
        due = frozenset(e for e in self._due if e <= epoch)
        if due == self._trained:
            return
        given = [(layer, e in due) for e, those in self._due.items() for layer in those]
        outer_first = [id(layer) for layer in keras_contract.layers_of(self.model)]
        for layer, trained in sorted(given, key=lambda each: outer_first.index(id(each[0]))):
            layer.trainable = trained  # and all layers within it
        self._trained = due
        self.model.make_train_function(force=True)  # the present one trains other variables


def _found(given: keras.Layer | str, known: Iterable[keras.Layer]) -> keras.Layer:
    """Returns a layer of a model, given itself or by its name."""
    found = [layer for layer in known if given is layer or given == layer.name]
    if len(found) != 1:
        number = "no layer" if not found else f"{len(found)} layers"
        raise ValueError(f"Unfreeze: the model has {number} {shown(given)}.")
    return found[0]
