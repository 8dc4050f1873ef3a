"""Files of whole models that were altered, and names that could be taken for one another.

What is loaded here goes by Keras: it gives the layers their weights before it asks the optimizer.
"""

import resource
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import h5py
import keras
import numpy as np
import tensorflow as tf

import tf_graft as tg
from support.file_models import compiled, fit, optimizers
from trust import Result
from trust.altered_state import flipped, values_like

Damage = Callable[[Path], None]
VARS = "optimizer/vars"
MEMORY = 3 * 10**8  # more than that a small file may not use
STOCK = {
    "Adam": partial(keras.optimizers.Adam, 0.01),
    "SGD": partial(keras.optimizers.SGD, 0.01, momentum=0.9),
    "Adagrad": partial(keras.optimizers.Adagrad, 0.01),
}
OURS = {"Adam": tg.Adam, "SGD": partial(tg.SGD, momentum=0.9), "Adagrad": tg.Adagrad}
NAMES = (
    ("w", "w", "w_1"),
    ("w_1", "w", "w"),
    ("w", "w", "w", "w_2", "w_1"),
    ("a/b", "a|b", "a%7Cb", "a%2Fb"),
    ("a.b", "a.Sb", "a/b", "a..b"),
    ("optimizer", "optimizer/momentum", "momentum"),
    ("iteration", "learning_rate", "_state", "_identity"),
)
# How Keras itself saves the same elsewhere: for half precision, and on other backends.
SHORTER = {("float32", "as float16"), ("int64", "as int32")}
ROLES = ("optimizer", "iteration", "learning_rate", "skipped_steps", "micro_steps")


def attacks(every: int, folder: Path) -> Iterator[Result]:
    """All of them, or some."""
    made = {name: (make, make) for name, make in optimizers().items() if name != "stock"}
    made |= {f"stock {n}": (make, partial(OURS[n], 0.5)) for n, make in STOCK.items()}
    for name, (saved, loaded) in list(made.items())[:: min(every, 4)]:
        yield from files(folder, name, saved, loaded, every)
    checks = [(f"names {names}", partial(mixed_up, names, folder)) for names in NAMES]
    checks += [(f"a role '{role}'", partial(clash, role)) for role in ROLES]
    yield from (Result(attack, check()) for attack, check in checks[:: min(every, 3)])


def files(folder: Path, name: str, saved: Any, loaded: Any, every: int) -> Iterator[Result]:
    """A file of weights damaged in many ways; one in four is for an optimizer that is not built."""
    file, other = folder / "whole.weights.h5", folder / "damaged.weights.h5"
    fit(compiled(saved())).save_weights(file)
    target = fit(compiled(loaded()), 1)
    for number, (kind, damage) in enumerate(damages(file)):
        if number % every == 0:
            other.write_bytes(file.read_bytes())
            damage(other)
            model = target if number % 4 else compiled(loaded())
            before = most_memory()
            wrong = outcome(model, other)
            if not wrong and most_memory() - before > MEMORY:
                wrong = f"{most_memory():,} bytes were used"
            yield Result(f"load_weights: {name}: {kind}", wrong)


def most_memory() -> int:
    """The most bytes that the process has had in memory."""
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def outcome(model: keras.Model, file: Path) -> str | None:
    """What was wrong with loading a damaged file: it changed something though it was refused, or
    the optimizer though it was not.
    """
    optimizer = model.optimizer
    before, state, weights = list(optimizer.variables), values(optimizer), values(model)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model.load_weights(file)
            weights = values(model)  # an optimizer that is not built may refuse when it is
            optimizer.build(model.trainable_variables)
    except (ValueError, OSError) as error:
        if [v.numpy().tobytes() for v in before] != state or values(model) != weights:
            return f"refused, but changed something: {error}"
        return None if str(error) else "refused without a sentence"
    except Exception as error:
        return f"{type(error).__name__}: {str(error)[:100]}"
    # Of Keras' optimizers what does not fit is left, with a warning.
    left = [v.numpy().tobytes() for v in before] == state
    model.set_weights([np.zeros_like(w) for w in model.get_weights()])
    return None if left else "accepted"


def values(holder: Any) -> list[bytes]:
    return [v.numpy().tobytes() for v in holder.variables]


def damages(file: Path) -> Iterator[tuple[str, Damage]]:
    """What is done to a file of weights."""
    with h5py.File(file) as h5:
        entries = {key: np.asarray(held) for key, held in h5[VARS].items()}
        layers = [f"layers/{name}/vars" for name in h5["layers"] if len(h5["layers"][name]["vars"])]
    whole = {key: value for key, value in entries.items() if key != "optimizer"}
    for turn, (key, value) in enumerate(whole.items()):
        kinds = list(values_like(key.replace("|", "/"), value, of_keras=True))
        for kind, altered in kinds[turn % 5 :: 5]:
            if (value.dtype.name, kind) in SHORTER and "optimizer" not in entries:
                continue
            yield f"{key} {kind}", partial(give, VARS, key, altered)
        if value.dtype != bool and "optimizer" in entries:
            yield f"{key} with a bit flipped", partial(give, VARS, key, flipped(value, turn))
    for layer in layers:
        yield f"{layer} of another shape", partial(give, layer, "0", np.ones((7, 7)))
        yield f"{layer} left out", partial(give, layer, "0", None)
        yield f"{layer} of 3 GB", partial(declare, layer, "0", (30_000, 25_000), "f4")
    for key in (next(iter(whole)), next(key for key in reversed(entries))):
        yield f"{key} of 3 GB", partial(declare, VARS, key, (30_000, 25_000), "f4")
        yield (
            f"{key} of a GB of text",
            partial(declare, VARS, key, entries[key].shape, "S1000000000"),
        )
    size = file.stat().st_size
    for length in (0, 10, size // 4, size // 2, size - 100):
        yield f"cut to {length}", partial(cut, length)


def give(group: str, key: str, value: Any, file: Path) -> None:
    """Gives an entry another value; None takes it out."""
    with h5py.File(file, "a") as h5:
        del h5[group][key]
        if value is not None:
            h5[group][key] = value


def declare(group: str, key: str, shape: tuple[int, ...], dtype: str, file: Path) -> None:
    """Has an entry declare what the file does not hold."""
    with h5py.File(file, "a") as h5:
        del h5[group][key]
        h5[group].create_dataset(key, shape, dtype)


def cut(length: int, file: Path) -> None:
    file.write_bytes(file.read_bytes()[:length])


def mixed_up(names: tuple[str, ...], folder: Path) -> str | None:
    """Whether state of variables of those names comes back as another's."""
    numbers = range(1, len(names) + 1)

    def optimizer(gradients: Any) -> tuple[Any, Any]:
        made = tg.SGD(0.5, momentum=0.9, name="mine")
        variables = [tf.Variable([0.0], name=name) for name in names]
        if gradients:
            made.apply([tf.constant([float(g)]) for g in gradients], variables)
        return made, variables

    saved, _ = optimizer(numbers)
    store: dict[str, Any] = {}
    saved.save_own_variables(store)
    path = tf.train.Checkpoint(optimizer=saved).write(str(folder / "names"))
    for gradients in ([9.0] * len(names), []):
        for way in ("file", "checkpoint"):
            loaded, variables = optimizer(gradients)
            if way == "file":
                loaded.load_own_variables(store)
            else:
                tf.train.Checkpoint(optimizer=loaded).read(path).assert_existing_objects_matched()
            loaded.build(variables)
            found = [float(v[0]) for n, v in loaded.state.named().items() if v.shape == (1,)]
            if found != [-0.5 * number for number in numbers]:
                return f"{way}: {found}"
    return None


def clash(role: str) -> str | None:
    """Whether an optimizer is built of whose state two parts go by one name."""

    class Mine(tg.SGD):
        def shared_slots(self) -> dict[str, tg.Slot]:
            return {role: tg.Slot(shape="scalar")}

    optimizer = Mine(0.5)
    try:
        optimizer.build([tf.Variable([1.0])])
    except ValueError as error:
        return None if role in str(error) and not optimizer.built else str(error)
    return "built"
