"""Where a drawn optimizer runs, how it is saved in between, and what it leaves there."""

import contextlib
import functools
import pathlib
import tempfile

import keras
import numpy as np
import tensorflow as tf
from tensorflow.experimental import dtensor

import tf_graft as tg
from support import replicas
from tf_graft import dtensor as meshes


class Place:
    """One device: eager, or compiled by a function that wraps a step.

    Args:
        wrap: compiles a step.
    """

    replicas = 1

    def __init__(self, wrap=lambda step: step):
        self.wrap = wrap

    def scope(self):
        return contextlib.nullcontext()

    def variables(self, weights, dtype):
        return [keras.Variable(value, dtype=dtype, name=path) for path, value in weights.items()]

    def begun(self, make, weights, dtype):
        """An optimizer, not built, and its variables."""
        with self.scope():
            return make(), self.variables(weights, dtype)

    def steps(self, optimizer, variables):
        """A function that takes one step, of the shares of all replicas."""

        def step(rows, *values):
            scale = optimizer.loss_scale()
            given = [
                value if scale is None or value is None else value * tf.cast(scale, value.dtype)
                for value in values
            ]
            table = None if rows is None else tf.IndexedSlices(given[0], rows)
            optimizer.apply([table, *given[1:]], variables)

        compiled = self.wrap(step)
        return lambda shares: compiled(*self.given(shares, variables))

    def given(self, shares, variables):
        """The arguments of a step: rows, and the values of each variable; None if absent."""
        (share,) = shares
        rows = tf.constant(share["table"].rows, tf.int64) if "table" in share else None
        paths = [v.name.removesuffix(":0") for v in variables]
        return [
            rows,
            *(self.values(share.get(p), v) for p, v in zip(paths, variables, strict=True)),
        ]

    @staticmethod
    def values(gradient, variable):
        return None if gradient is None else tf.constant(gradient.values, variable.dtype)

    def read(self, variable):
        return variable.numpy()


class Replicas(Place):
    """Two replicas of a strategy, each with its share."""

    replicas = 2

    def scope(self):
        return replicas.mirrored().scope()

    def steps(self, optimizer, variables):
        plain = self.wrap
        strategy = replicas.mirrored()
        self.wrap = lambda step: plain(lambda *args: strategy.run(step, args=args))
        try:
            return super().steps(optimizer, variables)
        finally:
            self.wrap = plain

    def given(self, shares, variables):
        each = [Place.given(self, [share], variables) for share in shares]
        return [
            None if values[0] is None else replicas.per_replica(values)
            for values in zip(*each, strict=True)
        ]

    def read(self, variable):
        return replicas.mirrored().experimental_local_results(storage(variable))[0].numpy()


class Mesh(Place):
    """A mesh of 2 x 2: the kernel is divided by its rows, and the table by its columns."""

    LAYOUTS = {"table": [None, "y"], "kernel": ["x", None], "bias": [None], "scale": []}  # noqa: RUF012

    def layout(self, path):
        specs = [name or dtensor.UNSHARDED for name in self.LAYOUTS.get(path, [None] * 2)]
        return dtensor.Layout(specs, mesh())

    def variables(self, weights, dtype):
        return [
            dtensor.DVariable(meshes.to_mesh(value.astype(dtype), self.layout(path)), name=path)
            for path, value in weights.items()
        ]

    def given(self, shares, variables):
        return [
            None if x is None else meshes.to_mesh(x, dtensor.Layout.replicated(mesh(), x.ndim))
            for x in super().given(shares, variables)
        ]

    def read(self, variable):
        return meshes.from_mesh(storage(variable).read_value()).numpy()


@functools.cache
def mesh():
    return meshes.create_mesh({"x": 2, "y": 2})


def storage(variable):
    return variable.value if isinstance(variable, keras.Variable) else variable


PLACES = {
    "eager": Place(),
    "function": Place(functools.partial(tf.function, autograph=False)),
    "xla": Place(functools.partial(tf.function, autograph=False, jit_compile=True)),
    "replicas": Replicas(functools.partial(tf.function, autograph=False)),
    "mesh": Mesh(),
}


# Ways of saving: each takes an optimizer and its variables, and returns what loads the same into
# another optimizer, which is not built, and its variables.


def by_checkpoint(optimizer, variables, folder):
    """A checkpoint of TensorFlow, read before the optimizer is built or after it."""
    path = tf.train.Checkpoint(optimizer=optimizer, variables=list(variables)).write(f"{folder}/c")

    def load(other, others, built):
        if built:
            other.build(others)
        tf.train.Checkpoint(optimizer=other, variables=list(others)).read(path)
        other.build(others)

    return load


def by_store(optimizer, variables, folder):
    """What a Keras file holds."""
    store: dict = {}
    optimizer.save_own_variables(store)
    values = [np.array(variable) for variable in variables]

    def load(other, others, built):
        for variable, value in zip(others, values, strict=True):
            variable.assign(value)
        if built:
            other.build(others)
        other.load_own_variables(store)
        other.build(others)

    return load


def by_weights(optimizer, variables, folder):
    """Values in the order of the optimizer's variables."""
    values = [variable.numpy() for variable in optimizer.variables]
    weights = [np.array(variable) for variable in variables]

    def load(other, others, built):
        for variable, value in zip(others, weights, strict=True):
            variable.assign(value)
        other.build(others)
        other.set_weights(values)

    return load


WAYS = {"checkpoint": by_checkpoint, "store": by_store, "weights": by_weights}


def run(place, make, problem, way, built):
    """What is left of an optimizer after all steps; `way` saves it in mid-run, if not None."""
    optimizer, variables = place.begun(make, problem.weights, problem.dtype)
    step = place.steps(optimizer, variables)
    half = len(problem.steps) // 2
    for shares in problem.steps[:half]:
        step(shares)
    with tempfile.TemporaryDirectory() as folder:  # to the end: a mesh reads what it is asked for
        if way is not None:
            load = WAYS[way](optimizer, variables, pathlib.Path(folder))
            other = tg.deserialize(tg.serialize(optimizer))
            optimizer, variables = place.begun(lambda: other, problem.weights, problem.dtype)
            load(optimizer, variables, built)
            step = place.steps(optimizer, variables)
        for shares in problem.steps[half:]:
            step(shares)
        return left(place, optimizer, variables, problem)


def left(place, optimizer, variables, problem):
    """Numbers by name, as `truth.py` names them."""
    found = {f"w/{p}": place.read(v) for p, v in zip(problem.weights, variables, strict=True)}
    if optimizer.use_ema:
        averages = optimizer.synchronized_averages()
        found |= {
            f"average/{p}": place.read(v) for p, v in zip(problem.weights, averages, strict=True)
        }
    if isinstance(optimizer, tg.AGN):
        centers = optimizer.center_values().values()
        found |= {
            f"center/{p}": np.asarray(v) for p, v in zip(problem.weights, centers, strict=True)
        }
        found["rounds"] = place.read(optimizer.rounds)
    counts = {"iterations": optimizer.iterations, "skipped_steps": optimizer.skipped_steps}
    return found | {name: place.read(variable) for name, variable in counts.items()}


# Through `fit`: a model whose loss has the gradients that are wanted.


@keras.saving.register_keras_serializable(package="tests")
class Products(keras.layers.Layer):
    """The sum of the products of each variable with a given value: its gradient is the value."""

    def build(self, shapes):
        self.table = self.add_weight(shape=(6, 4), name="table")
        self.kernel = self.add_weight(shape=(4, 4), name="kernel")
        self.bias = self.add_weight(shape=(4,), name="bias")
        self.scale = self.add_weight(shape=(), name="scale")

    def call(self, given):
        rows, table, kernel, bias, scale = given
        found = keras.ops.take(self.table, rows, axis=0)
        total = keras.ops.sum(table * found, axis=(1, 2))
        total += keras.ops.sum(kernel * self.kernel, axis=(1, 2))
        total += keras.ops.sum(bias * self.bias, axis=1)
        return total + keras.ops.reshape(scale, [-1]) * self.scale


def total(targets, outputs):
    return keras.ops.sum(outputs)


def fitted(make, problem, way):
    """As `run`, by `fit`, an epoch before and an epoch after a file was saved and loaded."""
    model = _compiled(make(), problem)
    half = len(problem.steps) // 2
    _fit(model, problem.steps[:half])
    if way is not None:
        with tempfile.TemporaryDirectory() as folder:
            model = _reloaded(model, problem, way, folder)
    _fit(model, problem.steps[half:])
    return model


def _compiled(optimizer, problem):
    shapes = [(2,), (2, 4), (4, 4), (4,), (1,)]
    inputs = [keras.Input(s, dtype="int64" if i == 0 else "float32") for i, s in enumerate(shapes)]
    model = keras.Model(inputs, Products(name="products")(inputs))
    model.set_weights(list(problem.weights.values()))
    model.compile(optimizer, total, jit_compile=False)
    return model


def _fit(model, steps):
    """One epoch, of a batch for each step; a batch has the shares as its examples."""
    parts = [share for shares in steps for share in shares]
    x = [np.stack([share["table"].rows for share in parts]).astype("int64")]
    x += [np.stack([s[p].values for s in parts]) for p in ("table", "kernel", "bias")]
    x.append(np.stack([np.reshape(s["scale"].values, [1]) for s in parts]))
    size = len(parts) // len(steps)
    model.fit(x, np.zeros(len(parts)), size, shuffle=False, verbose=0, callbacks=[])


def _reloaded(model, problem, way, folder):
    if way == "weights":
        model.save_weights(f"{folder}/m.weights.h5")
        other = _compiled(tg.deserialize(tg.serialize(model.optimizer)), problem)
        other.optimizer.build(other.trainable_variables)
        other.load_weights(f"{folder}/m.weights.h5")
        return other
    model.save(f"{folder}/m.keras")
    return keras.saving.load_model(f"{folder}/m.keras", custom_objects={"total": total})
