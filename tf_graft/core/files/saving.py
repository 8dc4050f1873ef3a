"""Saves an optimizer's state, and loads it only after checking all of it: everything or nothing."""

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from tf_graft.core import keras_contract
from tf_graft.core.errors import CheckpointError
from tf_graft.core.files import checked_state, weights_store
from tf_graft.core.files.checkpoint_part import CheckpointPart, missing, readable
from tf_graft.core.files.identity import Identity, Named, damaged, unfit
from tf_graft.core.files.keras_state import KerasState
from tf_graft.core.files.row_map import RowMap, as_present
from tf_graft.core.files.stateful import Stateful
from tf_graft.core.pipeline import judge
from tf_graft.core.state import write
from tf_graft.core.types import Store


class Awaited(NamedTuple):
    """State that was read before the optimizer was built.

    Args:
        take: loads the state once the optimizer is built, and returns whether it did.
        before: the earlier values of the variables, by name.
        store: the state's entries in a Keras weights store; None if it was read from elsewhere.
    """

    take: Callable[[], bool]
    before: checked_state.Saved
    store: checked_state.Values | None


class SavedState:
    """Writes an optimizer's state to files, and reads it back.

    State that is read before the optimizer is built waits until it is.

    Args:
        owner: the optimizer.
    """

    def __init__(self, owner: Stateful):
        self._owner = owner
        self._awaited: Awaited | None = None
        self._ready_to_take: Callable[[], None] | None = None  # loads a checkpoint's state
        self._maps: Mapping[str, RowMap] | None = None
        self.identity = Identity(lambda: owner.rule.signature, self._to_checkpoint, self._restore)

    def _to_save(self) -> Named:
        """Returns the variables to save.

        Raises:
            CheckpointError: state waits for the optimizer to be built, and would be left out.
        """
        if self._awaited is not None:
            raise CheckpointError(
                f"{self._name}: state that was loaded waits for the optimizer to be built, and "
                "would be lost in what is saved now; call optimizer.build(model) first."
            )
        return self._owner.state.named()

    def _to_checkpoint(self) -> Named:
        """Returns the variables for a checkpoint of TensorFlow.

        Raises:
            CheckpointError: as `_to_save`; or the checkpoint could not be restored, because no
                attribute leads TensorFlow to one of the variables.
        """
        named = self._to_save()
        if lost := missing(self._owner, named):
            raise CheckpointError(
                f"{self._owner.rule.signature}: a checkpoint of TensorFlow would lack {len(lost)} "
                f"of its {len(named)} variables, such as '{lost[0]}', because no attribute leads "
                "to them; assign each optimizer or variable that the optimizer contains to an "
                "attribute of it, or use model.save_weights."
            )
        return named

    @property
    def waits(self) -> bool:
        """Whether state that was loaded waits for the optimizer to be built."""
        return self._awaited is not None

    @property
    def _name(self) -> str:
        return type(self._owner).__name__

    @property
    def _loose(self) -> bool:
        """Whether the state may contain infinities and NaN."""
        return judge.applies(self._owner.nonfinite)

    def save(self, store: Store) -> None:
        """See `Optimizer.save_own_variables`."""
        if self._awaited is None or self._awaited.store is None:
            weights_store.save(self.identity, self._to_save(), store)
            return
        for key, value in self._awaited.store.items():
            store[key] = value

    def load(self, store: Store) -> None:
        """See `Optimizer.load_own_variables`."""
        saved = {key: keras_contract.entry(store, key) for key in store.keys()}  # noqa: SIM118 - no dict
        if checked_state.IDENTITY in saved and not self._owner.built:
            keras_contract.build_for_loading()  # the state is judged before the weights are kept
        if not self._owner.built:  # the file will be closed by then
            saved = {key: np.asarray(entry) for key, entry in saved.items()}
        if checked_state.IDENTITY in saved:
            self._looked_at(weights_store.found(self.identity, saved))()
        elif not all(key.isdecimal() for key in saved):
            raise CheckpointError(
                f"{self._name}: what was saved is the state neither of a tf_graft optimizer nor of "
                "one of Keras' own; nothing was loaded."
            )
        elif saved or self._owner.built:
            self._refuse_to_map(saved)
            self._of_keras.take(keras_contract.author_of(store), saved)

    @contextlib.contextmanager
    def mapping(self, maps: Mapping[str, RowMap]) -> Iterator[None]:
        """A context in which rows of state are loaded as maps say, by the names of the state.

        State that Keras' own optimizers saved has no names, and is refused.
        """
        self._maps = maps
        try:
            yield
        finally:
            self._maps = None

    def set(self, weights: Iterable[Any]) -> None:
        """See `Optimizer.set_weights`."""
        given = [np.asarray(value) for value in weights]  # of a file, which may be closed later
        if self._owner.built:
            self._set(given)
            return
        where, known = f"{self._name}.set_weights", self._owner.variables
        if len(given) < len(known):
            raise ValueError(
                f"{where}: {len(given)} values were given, and even before it is built the "
                f"optimizer has {len(known)} variables."
            )
        by_id = {id(v): value for v, value in zip(known, given, strict=False)}
        early = {
            n: checked_state.checked(where, n, v, by_id[id(v)])
            for n, v in self._owner.state.early().items()
        }

        def take() -> bool:
            self._set(given)
            return True

        self.await_build(take, early, None)

    def _set(self, given: Sequence[np.ndarray]) -> None:
        where, variables = f"{self._name}.set_weights", self._owner.variables
        if len(given) != len(variables):
            raise ValueError(
                f"{where}: {len(given)} values were given for {len(variables)} variables."
            )
        named = {f"{i}: {variable.path}": variable for i, variable in enumerate(variables)}
        both = zip(named.items(), given, strict=True)
        values = {
            n: checked_state.checked(where, n, v, value, self._loose) for (n, v), value in both
        }
        checked_state.assign(named, values)

    def snapshot(self) -> Callable[[], None]:
        """Returns a function that restores the current state."""
        awaited, variables_back = self._awaited, write.snapshot(self._owner.variables)

        def put_back() -> None:
            self._awaited = awaited
            variables_back()

        return put_back

    def examine(self) -> None:
        """Checks the contents of a checkpoint that is being restored; changes nothing yet."""
        position = keras_contract.deferred(self._owner)
        if position is None:
            return
        with readable(self._owner.rule.signature):
            self._look_through(CheckpointPart(self._owner, position))

    def _look_through(self, part: CheckpointPart) -> None:
        said, of_keras = part.identity(), part.of_keras()
        if said is not None:
            shapes = self.identity.described(said)["shapes"]
            self._ready_to_take = self._looked_at(
                checked_state.Found(
                    shapes, lambda named, names: part.values(named, self._paths(names))
                )
            )
        elif of_keras is not None:
            self._refuse_to_map(of_keras)
            part.settle_listed(taken=self._of_keras.take(*of_keras))
        elif part.holds("_state", "_scalars"):
            raise damaged(self._owner.rule.signature, "it does not say whose it is")
        else:
            self._of_keras.leave({}, "of something else")

    def leave(self) -> None:
        """Warns that a file has no state of an optimizer."""
        self._of_keras.leave({}, "")

    def _refuse_to_map(self, saved: Any) -> None:
        if saved and self._maps is not None:
            what = "only state that an optimizer of tf_graft saved has rows that can be mapped"
            raise unfit(self._owner.rule.signature, what)

    def _restore(self) -> None:
        """Loads the state; TensorFlow calls it when all that it will restore has been checked."""
        self.examine()
        keras_contract.deferred(self._owner)
        take, self._ready_to_take = self._ready_to_take, None
        if take is not None:
            take()

    def _paths(self, names: Mapping[str, str]) -> dict[str, str]:
        """Maps the path of each model variable to the one under which its state was saved."""
        return {
            p.path: names[f"{p.path}/{role}"].removesuffix(f"/{role}")
            for p in self._owner.state.parameters
            for role in (*p.slots, *p.state)
            if f"{p.path}/{role}" in names
        }

    def _looked_at(self, found: checked_state.Found) -> Callable[[], None]:
        """Checks the state that was found and returns a function that loads it.

        Raises:
            CheckpointError: the state does not fit.
        """
        owner, early = self._owner, self._owner.state.early()
        given = found.values(early, {name: name for name in early})
        present = {
            n: checked_state.checked(owner.rule.signature, n, v, given[n])
            for n, v in early.items()
            if n in given
        }
        if owner.built:
            # state that was saved before the optimizer was built has no values
            values = self._fitting(found) if found.shapes else {}
            return lambda: checked_state.assign(owner.state.named(), values)
        if not found.shapes:
            return lambda: checked_state.assign(early, present)

        def take() -> bool:
            checked_state.assign(owner.state.named(), self._fitting(found))
            return True

        return lambda: self.await_build(take, present, found.store)

    def _fitting(self, found: checked_state.Found) -> dict[str, Any]:
        owner, maps = self._owner, self._maps
        with readable(owner.rule.signature):
            if maps is not None:
                found = as_present(found, maps, owner.state.named())
            return checked_state.fitting(
                owner.rule.signature,
                found,
                owner.state.named(),
                self._own() if owner.rule.extends else {},
                self._loose,
            )

    def _own(self) -> dict[str, list[str]]:
        """Returns the names of each model variable's state, by the variable's path."""
        return {
            p.path: [f"{p.path}/{role}" for role in (*p.slots, *p.state)]
            for p in self._owner.state.parameters
        }

    def await_build(
        self,
        take: Callable[[], bool],
        early: checked_state.Saved,
        store: checked_state.Values | None,
    ) -> None:
        """Keeps state until the optimizer is built; sets counters and rates at once."""
        present = self._owner.state.early()
        before = checked_state.numpy(present) if self._awaited is None else self._awaited.before
        self._awaited = Awaited(take, before, store)
        checked_state.assign(present, early)

    def settle(self) -> None:
        """Loads the state that waited; called when the optimizer is built."""
        if self._awaited is None:
            return
        awaited, self._awaited = self._awaited, None
        with tf.init_scope():  # the optimizer may be built while a function is traced
            early = self._owner.state.early()
            since = checked_state.numpy(early)  # a rate may have been set
            checked_state.assign(early, awaited.before)
            if awaited.take():
                checked_state.assign(early, since)

    @property
    def _of_keras(self) -> KerasState:
        return KerasState(self._owner, self.await_build, self._loose)
