"""Slots divided over the batch dimension: the same numbers, 1/N of the slots, bytes as computed.

Run by `test_dtensor.py`, in a process of its own.
"""

import functools

import keras
import numpy as np
import pytest
import tensorflow as tf
from tensorflow.experimental import dtensor

import tf_graft as tg
from support import samples, written
from tf_graft import dtensor as td

N = len(tf.config.list_logical_devices("CPU"))
U = dtensor.UNSHARDED
SHAPES = {"rows": (4, 6), "columns": (4, 6), "whole": (8, 3), "odd": (3, 5), "bias": (4,), "x": ()}
LAYOUTS = {"rows": ["model", None], "columns": [None, "model"]}
SLOTS = {
    "rows": ["model", "batch"],
    "columns": ["batch", "model"],
    "whole": ["batch", U],
    "odd": [U, U],  # nothing there can be halved
    "bias": ["batch"],
    "x": [],
}
STEPS = 3
# Where bits may differ: norms and means are sums of the shares' sums, and the roots of vector
# instructions, which Adadelta's quotient makes visible, are rounded otherwise than single entries'.
ROUNDED = {
    "adadelta",
    *("lamb", "graft_schedules_global", "factored", "wrapped_muon", "clipnorm", "together"),
}


@functools.cache
def mesh(batch: int = 2) -> dtensor.Mesh:
    return td.create_mesh({"batch": batch, "model": -1})


class Weights(keras.layers.Layer):
    """Weights of all shapes, which nothing is computed with."""

    def build(self, _):
        for path, value in samples.weights(SHAPES).items():
            self.add_weight(name=path, shape=value.shape, initializer=lambda *_, v=value, **__: v)

    def call(self, x):
        return x


def weights(shard_slots: bool, dtype: str = "float32") -> keras.Model:
    keras.backend.clear_session(free_memory=False)
    model = keras.Sequential([keras.Input((1,)), Weights(dtype=dtype)])
    return td.distribute(model, td.LayoutMap(mesh(), LAYOUTS), shard_slots=shard_slots)


def stepped(optimizer, model, steps=STEPS, rows=False, spoiled=None) -> dict[str, np.ndarray]:
    """The state after steps with the same gradients each time, two rows of one row-sparse."""
    variables = model.trainable_variables

    @tf.function
    def step(gradients, ids):
        given = dict(zip(SHAPES, gradients, strict=True))
        if rows:
            given["whole"] = tf.IndexedSlices(given["whole"][:3], ids)
        optimizer.apply(list(given.values()), variables)

    layouts = [v.value.layout for v in variables]
    ids = td.to_mesh(np.array([5, 1, 5]), dtensor.Layout.replicated(mesh(), 1))
    for number, gradients in enumerate(samples.gradients(steps, SHAPES)):
        if number == spoiled:
            gradients["bias"][3] = np.inf
        values = [g.astype(v.dtype) for g, v in zip(gradients.values(), variables, strict=True)]
        step([td.to_mesh(g, layout) for g, layout in zip(values, layouts, strict=True)], ids)
    return samples.state_of(optimizer, *variables)


def assert_same(actual, expected, exact: bool) -> None:
    assert actual.keys() == expected.keys()
    for path, value in expected.items():
        rtol, atol = (0, 0) if exact else (1e-6, 1e-6 * np.max(np.abs(value), initial=0))
        np.testing.assert_allclose(actual[path], value, rtol=rtol, atol=atol, err_msg=path)


# Of each kind of slots, and of what a step is made of: entries, norms, factors, matrices.
CELLS = [
    *(("adam_amsgrad", "ema"), ("graft_schedules_global", "weight_decay")),
    *(("factored", "plain"), ("wrapped_muon", "plain")),
    pytest.param("adadelta", "accumulation", marks=pytest.mark.slow),
    pytest.param("lamb", "clipnorm", marks=pytest.mark.slow),
    pytest.param("sgd_momentum", "together", marks=pytest.mark.slow),
]


@pytest.mark.parametrize(("name", "option"), CELLS)
def test_the_numbers_are_those_of_whole_slots(name, option):
    given = {"name": "optimizer", **samples.OPTIONS[option]}
    make = written.Factored if name == "factored" else samples.BY_NAME[name].make
    rows = name in ("adam_amsgrad", "lamb")
    actual, expected = (stepped(make(**given), weights(s), rows=rows) for s in (True, False))
    assert_same(actual, expected, exact=not {name, option} & ROUNDED)


def test_masters_are_divided_too():
    found = []
    for shard_slots in (True, False):
        model = weights(shard_slots, "bfloat16")
        optimizer = tg.MixedPrecision(tg.Adam(0.1), 1, name="optimizer")
        found.append(stepped(optimizer, model))
        lying = {v.path: v.value.layout.sharding_specs for v in optimizer.variables}
        for path, specs in SLOTS.items():
            (of_master,) = (s for p, s in lying.items() if p.endswith(f"/{path}/master"))
            own = [name or U for name in LAYOUTS.get(path, [None] * len(specs))]
            assert of_master == (specs if shard_slots else own)
    assert_same(*found, exact=True)


def test_a_spoiled_gradient_of_one_share_changes_nothing():
    model, optimizer = weights(True), tg.Adam(0.1, name="optimizer")
    assert (optimizer.nonfinite, STEPS) == ("skip", 3)
    expected = stepped(tg.Adam(0.1, name="optimizer"), weights(True), steps=2)
    actual = stepped(optimizer, model, spoiled=2)
    assert int(actual.pop("skipped_steps")) == 1
    assert int(expected.pop("skipped_steps")) == 0
    assert_same(actual, expected, exact=True)


def test_slots_lie_along_the_first_dimension_that_fits():
    model, optimizer = weights(True), tg.Adam(0.1, name="optimizer", use_ema=True)
    optimizer.build(model.trainable_variables)
    for path, specs in SLOTS.items():
        roles = {v.path.rpartition("/")[2]: v for v in optimizer.variables if f"/{path}/" in v.path}
        assert len(roles) == 4
        for role, variable in roles.items():
            rank = min(len(specs), 1) if role == "average_step" else len(specs)
            assert variable.value.layout.sharding_specs == specs[:rank], variable.path
    (slot,) = (v for v in optimizer.variables if v.path.endswith("columns/velocity"))
    shards = dtensor.unpack(slot.value.read_value())
    assert [shard.shape.as_list() for shard in shards] == [[2, 6 // (N // 2)]] * N
    for variable in model.trainable_variables:  # as without
        specs = [name or U for name in LAYOUTS.get(variable.name, [None] * len(variable.shape))]
        assert variable.value.layout.sharding_specs == specs


def test_what_is_refused():
    model = keras.Sequential([keras.Input((1,)), Weights()])
    layout_map = td.LayoutMap(mesh(), LAYOUTS)
    with pytest.raises(ValueError, match=r"batch_dim=None, shard_slots=True.*name a dimension"):
        td.distribute(model, layout_map, None, shard_slots=True)
    with pytest.raises(TypeError, match=r"shard_slots=1.: shard_slots must be True or False"):
        td.distribute(model, layout_map, shard_slots=1)
    for function in (td.memory, lambda model: td.traffic(model, (np.ones(4),))):
        with pytest.raises(ValueError, match="is not on a mesh"):
            function(model)
    with pytest.raises(ValueError, match="must be compiled, with run_eagerly=False"):
        td.traffic(td.distribute(model, layout_map), (np.ones((4, 1)),))


# A model, with an embedding's row-sparse gradients.

RNG = np.random.default_rng(0)
B, T, D, WIDE, CLASSES, VOCABULARY = 8, 6, 8, 16, 4, 16
X = RNG.integers(0, VOCABULARY, (3 * B - 3, T)).astype("int32")
Y = RNG.integers(0, CLASSES, 3 * B - 3)
DIVIDED = {
    "tokens": [None, "model"],
    "up/kernel": [None, "model"],
    "up/bias": ["model"],
    "down/kernel": ["model", None],
}


def model_on(mesh_, layouts, shard_slots) -> keras.Model:
    keras.backend.clear_session(free_memory=False)
    keras.utils.set_random_seed(7)
    inputs = keras.Input((T,), dtype="int32")
    found = keras.layers.Flatten()(keras.layers.Embedding(VOCABULARY, D, name="tokens")(inputs))
    hidden = keras.layers.Dense(WIDE, "relu", name="up")(found)
    hidden = keras.layers.Dropout(0.25, seed=3)(hidden)
    model = keras.Model(inputs, keras.layers.Dense(CLASSES, name="down")(hidden))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(tg.Adam(0.01, name="optimizer"), loss, metrics=["accuracy"])
    return td.distribute(model, td.LayoutMap(mesh_, layouts), shard_slots=shard_slots)


def kept(model) -> dict[str, np.ndarray]:
    return samples.state_of(model.optimizer, *model.weights)


def test_a_model_trains_is_saved_and_moves(tmp_path):
    """To whole slots and back, through every kind of file, and off the mesh."""
    fitted = []
    for shard_slots in (False, True):
        model = model_on(mesh(), DIVIDED, shard_slots)
        history = model.fit(X, Y, batch_size=B, shuffle=False, verbose=0).history
        fitted.append((history, kept(model)))
    assert fitted[0][0] == fitted[1][0]
    expected = fitted[0][1]
    assert_same(fitted[1][1], expected, exact=True)

    path = tf.train.Checkpoint(model=model, optimizer=model.optimizer).write(str(tmp_path / "c"))
    for shard_slots in (False, True):
        other = model_on(mesh(N), {}, shard_slots)
        other.optimizer.build(other.trainable_variables)
        checkpoint = tf.train.Checkpoint(model=other, optimizer=other.optimizer)
        checkpoint.read(path)
        assert_same(kept(other), expected, exact=True)
        path = checkpoint.write(str(tmp_path / f"c{shard_slots}"))
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert_same(kept(loaded), expected, exact=True)
    td.distribute(loaded, td.LayoutMap(mesh(), DIVIDED), shard_slots=True)
    assert_same(kept(loaded), expected, exact=True)
    assert_same(kept(td.collect(model)), expected, exact=True)
    assert not [v for v in model.optimizer.variables if isinstance(v.value, dtensor.DVariable)]


def test_eagerly_too():
    found = []
    for shard_slots in (True, False):
        model = model_on(mesh(N), {}, shard_slots)
        model.run_eagerly = True
        model.train_on_batch(X[:B], Y[:B])
        found.append(kept(model))
    assert_same(*found, exact=True)


# Bytes, of which a ring of n devices sends (n - 1) / n in each of its rounds. CPUs gather in two.


def around(n: int, entries: int, rounds: int = 2, size: int = 4) -> float:
    return rounds * size * entries * (n - 1) / n


@pytest.mark.parametrize(("batch", "shard_slots"), [(N, True), (2, False), (2, True), (1, False)])
def test_bytes_are_as_computed(batch, shard_slots):
    model, parts, examples = model_on(mesh(batch), DIVIDED, shard_slots), N // batch, B // batch
    before = kept(model)
    counted = td.traffic(model, (X[:B], Y[:B]))
    after = kept(model)
    assert_same({path: after[path] for path in before}, before, exact=True)
    assert not any(np.any(v) for path, v in after.items() if "/velocity" in path)
    assert not any(np.any(variable.numpy()) for variable in model.metrics_variables)

    weights = VOCABULARY * D + T * D * WIDE + WIDE + WIDE * CLASSES
    held = weights // parts + CLASSES
    dense = held - VOCABULARY * D // parts
    rows = around(batch, B * T * D // parts) + around(batch, B * T, size=8)  # values, and ids
    data = around(batch, dense) + rows
    tensor = around(parts, examples * (T * D + CLASSES + T * D))  # embedding, and both ways
    left = WIDE // parts if parts > 1 else 0  # the bias that `model` divides already
    steps = around(batch, held - left) if shard_slots else 0
    large = [each for each in counted if each.size > 8]  # others are a norm, a loss
    assert sum(each.sent for each in large) == data + tensor + steps
    assert counted.sent < sum(each.sent for each in large) + 200
    assert counted.by_kind() == {"all-reduce": counted.sent}

    share = (held - left) // batch + left if shard_slots else held
    counters = 3 * 8 + 4  # of updates, skipped ones and micro-steps; the rate
    assert td.memory(model)["optimizer"] == 4 * 2 * share + counters
    assert td.memory(model)["model"] == 4 * held + 2 * 8 + 4 * 4  # a seed, two metrics
