"""An optimizer's state in files: written by path and role, and read back whole or not at all."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from tf_graft.core import keras_contract, state
from tf_graft.core.checkpoint_part import CheckpointPart, readable
from tf_graft.core.checks import CheckpointError
from tf_graft.core.identity import Identity, Named, damaged
from tf_graft.core.loading import Loading


class Saving(Loading):
    """What `Optimizer` knows of files: what is written there, and found there."""

    _identity: Identity
    _ready_to_take: Callable[[], None] | None = None  # takes what was found in a checkpoint

    def _saved_variables(self) -> Named:
        """What a checkpoint is going to hold.

        Raises:
            CheckpointError: state waits for the optimizer to be built, and would not be in it.
        """
        if self._awaited is not None:
            raise CheckpointError(
                f"{type(self).__name__}: state that was loaded waits for the optimizer to be "
                "built, and would be lost in what is saved now; call "
                "optimizer.build(model.trainable_variables) first."
            )
        return self.named_variables()

    def save_own_variables(self, store: Any) -> None:
        """Writes the state into a Keras weights store, by path and role.

        Raises:
            CheckpointError: a checkpoint of TensorFlow was restored and the optimizer is not built.
        """
        if self._awaited is None or self._awaited.store is None:
            state.save(self._identity, self._saved_variables(), store)
            return
        for key, value in self._awaited.store.items():
            store[key] = value

    def load_own_variables(self, store: Any) -> None:
        """Reads the state back, by path and role: all of it, or nothing has changed.

        An optimizer that is not built takes its counters and rates at once, and the rest when it is
        built. Of the state of a Keras optimizer it takes what is the same here; where nothing is, a
        warning says so.

        Raises:
            CheckpointError: the state is another optimizer's, of other variables or damaged.
        """
        saved = {key: np.asarray(store[key]) for key in store.keys()}  # noqa: SIM118 - no dict
        if state.IDENTITY in saved:
            self._looked_at(state.in_store(self._identity, saved))()
        elif not all(key.isdecimal() for key in saved):
            raise CheckpointError(
                f"{type(self).__name__}: what was saved is the state neither of a tf_graft "
                "optimizer nor of one of Keras' own; nothing was loaded."
            )
        elif saved or self.built:
            self._take_stock(keras_contract.author_of(store), saved)

    def set_weights(self, weights: Any) -> None:
        """Gives all variables, in the order of `variables`, their values; or changes none.

        Raises:
            ValueError: the optimizer is not built; values that are too many or too few, or of
                another shape or dtype than the variables.
        """
        owner, given = f"{type(self).__name__}.set_weights", list(weights)
        if not self.built:
            raise ValueError(
                f"{owner}: You are calling it before the optimizer is built; call build(variables) "
                "first."
            )
        count = len(self.variables)
        if len(given) != count:
            raise ValueError(f"{owner}: {len(given)} values were given for {count} variables.")
        named = {f"{i}: {variable.path}": variable for i, variable in enumerate(self.variables)}
        both = zip(named.items(), map(np.asarray, given), strict=True)
        values = {n: state.checked(owner, n, v, value, self._loose) for (n, v), value in both}
        state.assign(named, values)

    def _examine(self) -> None:
        """Looks through what a checkpoint that is being restored holds; changes nothing yet."""
        position = self._deferred()
        if position is None:
            return
        with readable(self.signature()):
            self._look_through(CheckpointPart(self, position))

    def _look_through(self, part: CheckpointPart) -> None:
        said, of_keras = part.identity(), part.of_keras()
        if said is not None:
            shapes = self._identity.described(said)["shapes"]
            self._ready_to_take = self._looked_at(
                state.Found(shapes, lambda named, names: part.values(named, self._paths(names)))
            )
        elif of_keras is not None:
            part.settle_listed(taken=self._take_stock(*of_keras))
        elif part.holds("_state", "_scalars"):
            raise damaged(self.signature(), "it does not say whose it is")
        else:
            self._leave_stock({}, "of something else")

    def _restore(self) -> None:
        """Called by TensorFlow when all that it is going to restore has been looked through."""
        self._examine()
        self._deferred()
        take, self._ready_to_take = self._ready_to_take, None
        if take is not None:
            take()

    def _paths(self, names: Mapping[str, str]) -> dict[str, str]:
        """For the path of each variable of the model, the one under which its state was saved."""
        return {
            p.path: names[f"{p.path}/{role}"].removesuffix(f"/{role}")
            for p in self._parameters
            for role in (*p.slots, *p.state)
            if f"{p.path}/{role}" in names
        }
