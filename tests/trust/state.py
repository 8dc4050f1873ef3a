"""Altered states of every optimizer and wrapper, loaded in each of the ways that there are.

An attack is held off where it is refused in a sentence and has changed nothing, neither state nor
weights; or where it has no effect: the state is then all that was saved.
"""

import contextlib
import gc
import itertools
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
from tensorflow.core.protobuf import trackable_object_graph_pb2

import tf_graft as tg
from support import samples
from support.file_models import optimizers
from tf_graft.compose.of_keras import Wrapped
from tf_graft.core.keras_contract import storage
from trust import Result, altered_files, altered_state
from trust.altered_state import IDENTITY

Load = Callable[[tg.Optimizer], None]
GRAPH = "_CHECKPOINTABLE_OBJECT_GRAPH"
KEPT = {"use_ema": True, "gradient_accumulation_steps": 2}  # state of the engine


def attacks(every: int) -> Iterator[Result]:
    """Of many optimizers a thinned run takes some, and of what is done to each some."""
    stride = min(every, 8)
    turns = itertools.count()
    with quiet(), tempfile.TemporaryDirectory() as folder:
        for name, make in itertools.islice(subjects().items(), 0, None, stride):
            subject = Subject(make, Path(folder))
            for attack in subject.attacks():
                if next(turns) % max(1, every // stride) == 0:
                    yield Result(f"{name}: {attack.name}", subject.outcome(attack))
        yield from altered_files.attacks(every, Path(folder))


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """TensorFlow falls over crafted graphs again when it forgets them, which nobody can catch."""
    before, sys.unraisablehook = sys.unraisablehook, lambda _: None
    try:
        yield
    finally:
        gc.collect()
        sys.unraisablehook = before


class Attack(NamedTuple):
    """An altered state.

    Args:
        name: the way in which it is loaded, what is altered, and to what.
        load: loads it into an optimizer.
        built: whether into one that is built.
        harmless: whether it is to be loaded, as nothing is altered.
    """

    name: str
    load: Load
    built: bool = True
    harmless: bool = False


def subjects() -> dict[str, Callable[[], tg.Optimizer]]:
    """Every optimizer and wrapper; one in two has averages and accumulates."""
    made: dict[str, Callable[[], tg.Optimizer]] = {
        name: optimizers()[name] for name in ("agn", "mixed", "mixed_agn")
    }
    made["logmax"] = lambda: tg.MixedPrecision(tg.Adam(0.01), "logmax")
    for number, sample in enumerate(samples.SAMPLES):
        options = KEPT if number % 2 else {}
        made[sample.name] = partial(sample.make, 0.05, name="optimizer", **options)
    return made


class Subject:
    """An optimizer that was saved, and one with other state that the altered one is loaded into."""

    def __init__(self, make: Callable[[], tg.Optimizer], folder: Path):
        self.make, self.folder = make, folder
        self.model = list(samples.variables(samples.weights()).values())
        self.saved, self.target = self.trained(3), self.trained(1)
        self.named = self.saved.state.named()
        self.store: dict[str, Any] = {}
        self.saved.save_own_variables(self.store)
        whole = tf.train.Checkpoint(optimizer=self.saved, model=self.model)
        reader = tf.train.load_checkpoint(whole.write(str(folder / "whole")))
        self.tensors = {key: reader.get_tensor(key) for key in reader.get_variable_to_shape_map()}
        self.graph = trackable_object_graph_pb2.TrackableObjectGraph.FromString(self.tensors[GRAPH])
        self.expected, self.weights = self.state_of(self.saved), [v.numpy() for v in self.model]
        self.move()

    def trained(self, steps: int) -> tg.Optimizer:
        optimizer = self.make()
        optimizer.build(self.model)
        for gradients in samples.gradients(2 * steps, seed=steps):
            optimizer.apply([tf.constant(g) for g in gradients.values()], self.model)
        return optimizer

    def move(self) -> None:
        """Gives the model other weights than were saved."""
        for variable, value in zip(self.model, self.weights, strict=True):
            variable.assign(value + 1)

    def state_of(self, optimizer: tg.Optimizer) -> dict[str, bytes]:
        return {str(i): v.numpy().tobytes() for i, v in enumerate(optimizer.variables)}

    def outcome(self, attack: Attack) -> str | None:
        """What was wrong, if anything."""
        optimizer = self.target if attack.built else self.make()
        before, weights = self.state_of(optimizer), [v.numpy().tobytes() for v in self.model]
        wrong = None
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                attack.load(optimizer)
                optimizer.build(self.model)
        except ValueError as error:
            after = self.state_of(optimizer)
            changed = [i for i, value in before.items() if after[i] != value]
            # An optimizer that is not built can refuse when it is, after the model was restored.
            if attack.built and [v.numpy().tobytes() for v in self.model] != weights:
                changed.append("the model")
            if changed or attack.harmless:
                wrong = f"refused: {error}; changed: {', '.join(changed) or 'nothing'}"
        except Exception as error:
            wrong = f"{type(error).__name__}: {str(error)[:100]}"
        else:
            if self.state_of(optimizer) != self.expected:
                wrong = "accepted"
        if attack.built and (wrong or attack.harmless):
            self.target = self.trained(1)
        self.move()
        return wrong

    def attacks(self) -> Iterator[Attack]:
        """Each alteration in one way after the other; some into an optimizer that is not built."""
        for built in (True, False):
            yield Attack("a file", self.of_store({}), built, harmless=True)
            yield Attack("a checkpoint", self.of_checkpoint({}), built, harmless=True)
        for number, (name, load) in enumerate([*self.values(), *self.identities(), *self.graphs()]):
            yield Attack(name, load)
            if number % 5 == 0 and not name.startswith("set_weights"):
                yield Attack(f"not built: {name}", load, built=False)

    def values(self) -> Iterator[tuple[str, Load]]:
        """Of each role the first variable is altered, in each kind of way."""
        crafted = altered_state.without_checksums(self.store)
        of_keras = isinstance(self.saved, Wrapped)
        roles: dict[str, str] = {}
        for name, variable in self.named.items():
            roles.setdefault(name.rpartition("/")[2] if variable.shape else name, name)
        turns = itertools.count()
        for name in roles.values():
            key, value = name.replace("/", "|"), self.named[name].numpy()
            altered = altered_state.flipped(value, next(turns))
            yield f"file: {name} with a bit flipped", self.of_store({key: altered})
            for kind, altered in altered_state.values_like(name, value, of_keras):
                ways = {
                    "file": self.of_store({key: altered}),
                    "made by hand": self.of_store({**crafted, key: altered}),
                    "set_weights": partial(self.set_weights, name, altered),
                    "checkpoint": self.of_checkpoint({self.key(name): altered}),
                }
                way = list(ways)[next(turns) % len(ways)]
                yield f"{way}: {name} {kind}", ways[way]

    def identities(self) -> Iterator[tuple[str, Load]]:
        """What it says of itself is altered."""
        key = "optimizer/_identity/.ATTRIBUTES/py_state"
        serialized = str(self.tensors[key], "utf-8")
        for kind, said in altered_state.identities(serialized):
            yield f"file: {kind}", self.of_store({IDENTITY: np.frombuffer(said, np.uint8)})
            yield f"checkpoint: {kind}", self.of_checkpoint({key: np.asarray(said, object)})
        yield "file: an entry more", self.of_store({"another": np.ones(2, np.float32)})
        yield "file: without who it is", self.of_store({IDENTITY: None})

    def graphs(self) -> Iterator[tuple[str, Load]]:
        """The graph of a checkpoint's objects is altered."""
        for kind, change in altered_state.graphs().items():
            graph = trackable_object_graph_pb2.TrackableObjectGraph()
            graph.CopyFrom(self.graph)
            (at,) = [c.node_id for c in graph.nodes[0].children if c.local_name == "optimizer"]
            try:
                change(graph, graph.nodes[at])
            except (ValueError, IndexError):
                continue  # it has too few slots for that
            altered = np.asarray(graph.SerializeToString(), object)
            yield f"checkpoint: {kind}", self.of_checkpoint({GRAPH: altered})

    def of_store(self, altered: dict[str, Any]) -> Load:
        """Altered entries of a Keras file by key, None for one that is left out."""
        store = {k: v for k, v in (self.store | altered).items() if v is not None}
        return lambda optimizer: optimizer.load_own_variables(store)

    def of_checkpoint(self, altered: dict[str, Any]) -> Load:
        """The same of a checkpoint."""

        def load(optimizer: tg.Optimizer) -> None:
            tensors = {k: v for k, v in (self.tensors | altered).items() if v is not None}
            path = str(self.folder / "altered")
            values = [tf.constant(value) for value in tensors.values()]
            tf.raw_ops.SaveV2(
                prefix=path,
                tensor_names=list(tensors),
                shape_and_slices=[""] * len(tensors),
                tensors=values,
            )
            tf.train.Checkpoint(optimizer=optimizer, model=self.model).read(path)

        return load

    def key(self, name: str) -> str:
        """A variable's in the checkpoint."""
        full_name = storage(self.named[name]).name.partition(":")[0]
        keys = [a for node in self.graph.nodes for a in node.attributes]
        return next(a.checkpoint_key for a in keys if a.full_name == full_name)

    def set_weights(self, name: str, altered: Any, optimizer: tg.Optimizer) -> None:
        given = [altered if v is self.named[name] else v.numpy() for v in self.saved.variables]
        optimizer.set_weights([value for value in given if value is not None])
