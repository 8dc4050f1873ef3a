"""The model, the data and the optimizers of the tests of files, and what a fresh process does.

`python -m support.file_models FOLDER` loads what `test_files.py` wrote there, and prints what came
of it.
"""

import json
import sys
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

_RANDOM = np.random.default_rng(0)
X = _RANDOM.normal(size=(8, 3)).astype(np.float32)
Y = _RANDOM.normal(size=(8, 1)).astype(np.float32)


def net(dtype=None) -> keras.Model:
    """Two layers without names: Keras numbers them anew for each model of a process."""
    layers = [keras.layers.Dense(4, "tanh", dtype=dtype), keras.layers.Dense(1, dtype=dtype)]
    return keras.Sequential([keras.Input([3]), *layers], name="net")


def compiled(optimizer, **kwargs) -> keras.Model:
    model = net(**kwargs)
    model.compile(optimizer=optimizer, loss="mse", run_eagerly=True)
    return model


def fit(model: keras.Model, epochs: int = 2) -> keras.Model:
    """Two steps an epoch."""
    model.fit(X, Y, epochs=epochs, batch_size=4, shuffle=False, verbose=0)
    return model


def weights(model: keras.Model) -> np.ndarray:
    return np.concatenate([np.ravel(w).astype(np.float32) for w in model.get_weights()])


def optimizers():
    """Optimizers whose state is of every kind; imported late, for a process without tf_graft."""
    import tf_graft as tg

    keras_adam = keras.optimizers.Adam
    return {
        "adam": lambda: tg.Adam(0.01, use_ema=True, gradient_accumulation_steps=2),
        "graft": lambda: tg.AdaGraft(tg.SGD(0.01), tg.Adam(0.02)),
        "agn": lambda: tg.AGN(
            tg.SGD(0.01, momentum=0.9), communication_period=3, center_optimizer=tg.Adam(0.01)
        ),
        "mixed": lambda: tg.MixedPrecision(tg.Adam(0.01), "backoff"),
        "mixed_agn": lambda: tg.AGN(tg.MixedPrecision(tg.Adam(0.01), "backoff")),
        "wrapped": lambda: tg.wrap(keras.optimizers.Nadam(0.01)),
        "scheduled": lambda: tg.RMSprop(tg.schedules.PolyDecay(0.1, 100), centered=True),
        "stock": lambda: keras_adam(0.01),
    }


def in_a_fresh_process(folder: Path) -> dict:
    """Each file loaded, and the weights after two epochs more."""
    found = {}
    try:
        keras.saving.load_model(folder / "adam.keras")
    except TypeError as error:
        found["hint"] = str(error)
    bare = keras.saving.load_model(folder / "adam.keras", compile=False)
    found["weights"] = weights(bare).tolist()
    found["imported"] = "tf_graft" in sys.modules

    import pickle

    import tf_graft as tg

    for name, make in optimizers().items():
        if not (folder / f"{name}.keras").exists():
            continue
        twin = tg.Adam(0.01) if name == "stock" else make()
        unbuilt, read = compiled(twin), {}
        unbuilt.load_weights(folder / f"{name}.weights.h5")
        read["weights.h5"] = unbuilt
        restored = compiled(tg.Adam(0.01) if name == "stock" else make())
        checkpoint = tf.train.Checkpoint(model=restored, optimizer=restored.optimizer)
        checkpoint.read(str(folder / f"{name}.checkpoint"))
        read["checkpoint"] = restored
        if name != "stock":
            read["keras"] = keras.saving.load_model(folder / f"{name}.keras")
            read["keras"].run_eagerly = True
            model = compiled(pickle.loads((folder / f"{name}.pickle").read_bytes()))
            model.set_weights(restored.get_weights())
            read["pickle"] = model
        found[name] = {way: weights(fit(model)).tolist() for way, model in read.items()}
    return found


if __name__ == "__main__":
    print(json.dumps(in_a_fresh_process(Path(sys.argv[1]))))
