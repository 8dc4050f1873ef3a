"""Guarantees of the config, and of files from which training continues."""

import inspect
import json
import pathlib
import tempfile
from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tf_graft.core.optimizer import Optimizer
from tf_graft.testing.trials import State, Trial, gradients, same, weights

Make = Callable[..., Optimizer]
FACTORS = (0.75, 0.5, 2.0)  # tried on an argument in turn, until one is accepted


def config(make: Make) -> str:
    """The config holds every argument of the constructor, as plain values."""
    compared = []
    for what, optimizer in changed(make):
        written = json.loads(json.dumps(optimizer.get_config()))
        again = type(optimizer).from_config(written)
        for name, value in optimizer.get_config().items():
            if again.get_config().get(name) != value:
                raise AssertionError(f"{what}: {name} is {again.get_config().get(name)} afterwards")
        here = Trial(optimizer).run(gradients()).state()
        same(f"{what}, made from its config", Trial(again).run(gradients()).state(), here, ulps=0)
        compared.append(what)
    return ", ".join(compared)


def changed(make: Make) -> Iterator[tuple[str, Optimizer]]:
    """Yields the optimizer as it is made, then with each float or boolean argument changed."""
    optimizer = make()
    yield "as given", optimizer
    for name in inspect.signature(type(optimizer).__init__).parameters:
        value = getattr(optimizer, name, None)
        if isinstance(value, bool):
            others: list[Any] = [not value]
        elif isinstance(value, float):
            others = [value * factor for factor in FACTORS] if value else [0.5]
        else:
            continue
        for other in others:
            try:
                one = make(**{name: other})
            except (TypeError, ValueError):
                continue
            yield f"{name}={other:g}", one
            break


def keras_file(make: Make) -> str:
    """A model saved by Keras continues as if it had not been saved."""
    straight, first = _model(make), _model(make)
    first.set_weights(straight.get_weights())
    ids = np.array([[0, 1], [2, 1], [4, 5], [1, 1]])
    y = np.array([[1], [0], [2], [1]], np.float32)
    straight.fit(ids, y, batch_size=2, epochs=4, shuffle=False, verbose=0)
    first.fit(ids, y, batch_size=2, epochs=2, shuffle=False, verbose=0)
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "model.keras"
        first.save(path)
        second = keras.models.load_model(path)
    second.fit(ids, y, batch_size=2, epochs=2, shuffle=False, verbose=0)
    return same("without a stop", _state(second), _state(straight), ulps=0)


def _state(model: keras.Model) -> State:
    """Returns state by number and role: Keras gives the layers of a loaded model other paths."""
    variables = (*model.trainable_variables, *model.optimizer.variables)
    return {
        f"{number} {v.path.rpartition('/')[2]}": v.numpy() for number, v in enumerate(variables)
    }


def _model(make: Make) -> keras.Model:
    layers = [
        keras.layers.Embedding(6, 3, name="table"),
        keras.layers.Flatten(name="flat"),
        keras.layers.Dense(1, name="dense"),
    ]
    model = keras.Sequential([keras.Input((2,), dtype="int32"), *layers], name="model")
    model.compile(make(), "mse", jit_compile=False)
    return model


def checkpoint(make: Make) -> str:
    """From a `tf.train.Checkpoint`, training continues as if it had not stopped."""
    steps = gradients()
    first, second = Trial(make()).run(steps[:2]), Trial(make(), values=_zeros())
    second.optimizer.build(list(second.model.values()))

    def kept(trial: Trial) -> tf.train.Checkpoint:
        return tf.train.Checkpoint(optimizer=trial.optimizer, **trial.model)

    with tempfile.TemporaryDirectory() as folder:
        path = kept(first).save(str(pathlib.Path(folder) / "checkpoint"))
        kept(second).restore(path).assert_consumed()
    straight = Trial(make()).run(steps).state()
    return same("without a stop", second.run(steps[2:]).state(), straight, ulps=0)


def _zeros() -> dict[str, np.ndarray]:
    return {path: np.zeros_like(value) for path, value in weights().items()}


GUARANTEES = (config, keras_file, checkpoint)
