"""Fine-tuning: multipliers of the learning rate, freezing, and layers that are trained later."""

import functools
import re
import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf

import tf_graft as tg
from support import samples
from support.replicas import mirrored

S = keras.optimizers.schedules
WEIGHTS = {"body/kernel": [[1.0, -2.0], [0.5, 3.0]], "body/bias": [0.5, 1.0], "head": [2.0]}
BODY, HEAD = slice(2), slice(2, 3)


def variables():
    return [tf.Variable(value, name=path) for path, value in WEIGHTS.items()]


def gradients(step):
    random = np.random.default_rng(step)
    return [tf.constant(random.normal(size=np.shape(w)), tf.float32) for w in WEIGHTS.values()]


def stepped(optimizer, given, steps=range(3), only=slice(None)):
    """The values of the given variables after steps of some of them."""
    for step in steps:
        optimizer.apply(gradients(step)[only], given[only])
    return [variable.numpy() for variable in given]


# Multipliers.


@samples.each([sample for sample in samples.of_each_class() if sample.of_vectors])
def test_a_multiplier_is_another_learning_rate(sample):
    """Bit for bit what optimizers of their own do at that rate: 1/4 rounds nothing."""
    decay = {"weight_decay": 0.125}
    found = stepped(sample.make(learning_rate_multipliers={"body": 0.25}, **decay), variables())
    lower = sample.make(learning_rate=0.25 * float(np.float32(samples.RATE)), **decay)
    body = stepped(lower, variables(), only=BODY)
    head = stepped(sample.make(**decay), variables(), only=HEAD)
    for value, expected in zip(found, [*body[BODY], *head[HEAD]], strict=True):
        np.testing.assert_array_equal(value, expected)


def test_a_schedule_multiplies_by_the_updates_so_far():
    halving = S.ExponentialDecay(1.0, 1, 0.5)
    optimizer = tg.SGD(1.0, learning_rate_multipliers={"body": halving})
    w = variables()
    for _ in range(3):
        optimizer.apply([tf.ones(v.shape) for v in w], w)
    np.testing.assert_array_equal(w[1].numpy(), np.array(WEIGHTS["body/bias"]) - 1.75)
    np.testing.assert_array_equal(w[2].numpy(), [-1.0])


def test_the_first_pattern_that_matches_counts():
    optimizer = tg.SGD(1.0, learning_rate_multipliers={"bias": 0.5, "body": 0.25})
    w = variables()
    optimizer.apply([tf.ones(v.shape) for v in w], w)
    np.testing.assert_array_equal(w[0].numpy(), np.array(WEIGHTS["body/kernel"]) - 0.25)
    np.testing.assert_array_equal(w[1].numpy(), np.array(WEIGHTS["body/bias"]) - 0.5)


@pytest.mark.parametrize("name", ["adamw", "graft_sgd_adam", "larc_clip"])
def test_zero_freezes_weights_state_and_norms(name):
    given = {"weight_decay": 0.1, "global_clipnorm": 0.5, "use_ema": True}
    make = samples.BY_NAME[name].make
    optimizer = make(learning_rate_multipliers={"body": 0}, name="optimizer", **given)
    w = variables()
    optimizer.build(w)
    before = samples.state_of(optimizer)
    found = stepped(optimizer, w)
    after = samples.state_of(optimizer)
    for value, path in zip(found[BODY], WEIGHTS, strict=False):
        np.testing.assert_array_equal(value, WEIGHTS[path])
    frozen = [name for name in before if "body" in name]
    assert frozen
    for role in frozen:
        np.testing.assert_array_equal(after[role], before[role])
    alone = stepped(make(**given), variables(), only=HEAD)
    np.testing.assert_array_equal(found[2], alone[2])


def test_all_frozen_is_no_step():
    optimizer, w = tg.Adam(0.1, learning_rate_multipliers={"": 0}), variables()
    found = stepped(optimizer, w)
    assert int(optimizer.iterations) == 0
    np.testing.assert_array_equal(found[2], WEIGHTS["head"])


def test_a_config_keeps_multipliers():
    schedule = S.CosineDecay(1.0, 10)
    optimizer = tg.Adam(0.1, learning_rate_multipliers={"body": schedule, "head": 2})
    again = tg.deserialize(tg.serialize(optimizer))
    assert again.get_config() == optimizer.get_config()
    assert "{'body': CosineDecay(" in repr(again) or "{'body': <" in repr(again)
    assert stepped(again, variables())[0].tolist() == stepped(optimizer, variables())[0].tolist()


def test_a_schedule_that_goes_wrong_skips_the_step():
    class Wrong(S.LearningRateSchedule):
        def __call__(self, step):
            return tf.where(step < 1, 1.0, np.nan)

        def get_config(self):
            return {}

    optimizer, w = tg.SGD(1.0, learning_rate_multipliers={"body": Wrong()}), variables()
    stepped(optimizer, w)
    assert (int(optimizer.iterations), int(optimizer.skipped_steps)) == (1, 2)


REFUSED = {
    "nothing matches": (
        {"encoder": 0.5},
        ValueError,
        "{'encoder': ...}): the pattern matches none of the 3 variables; the nearest path is",
    ),
    "never the first": (
        {"body": 0.1, "body/kernel": 1.0},
        ValueError,
        "the narrower pattern first",
    ),
    "negative": (
        {"body": -1.0},
        ValueError,
        "learning_rate_multipliers['body'] must be finite and",
    ),
    "nan": ({"body": np.nan}, ValueError, "learning_rate_multipliers['body'] must be finite and"),
    "text": ({"body": "0.1"}, TypeError, "learning_rate_multipliers['body'] must be a number"),
    "not a dict": ([("body", 0.1)], TypeError, "must be a dict of multipliers by pattern"),
    "not an expression": ({"(": 0.1}, ValueError, "'(' is not a regular expression"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_multipliers_that_cannot_be(case):
    given, error, message = REFUSED[case]
    with pytest.raises(error, match=re.escape(message)):
        tg.Adam(learning_rate_multipliers=given).build(variables())


# Groups of a model's variables.


def network():
    inputs = keras.Input([6], name="tokens")
    x = keras.layers.Embedding(11, 4, name="embedding")(inputs)
    x = keras.layers.MultiHeadAttention(2, 2, name="attention")(x, x)
    x = keras.layers.LayerNormalization(name="norm")(x)
    body = keras.Model(inputs, x, name="body")
    pooled = keras.layers.GlobalAveragePooling1D()(body.output)
    gru = keras.layers.GRU(3, name="gru")(body.output)
    joined = keras.layers.Concatenate()([pooled, gru])
    return keras.Model(inputs, keras.layers.Dense(1, name="head")(joined))


def paths(model, patterns):
    """What of a model's variables each pattern matches."""
    found = {p: [v.path for v in model.weights if re.search(p, v.path)] for p in patterns}
    assert all(len(each) == 1 for each in found.values()), found
    return [each[0] for each in found.values()]


def test_biases_and_normalizations_are_found_by_their_layers():
    model = network()
    found = paths(model, tg.no_decay(model))
    left = {v.path for v in model.trainable_variables} - {*found}
    assert {path.rpartition("/")[2] for path in left} == {
        *("embeddings", "kernel", "recurrent_kernel"),
    }
    assert sum(path.endswith("bias") for path in found) == 4 + 1 + 1  # attention, gru and head
    assert sum("norm/" in path for path in found) == 2
    tg.AdamW(weight_decay=0.1, exclude_from_weight_decay=tg.no_decay(model)).build(
        model.trainable_variables
    )


def test_biases_that_are_frozen_at_first_do_not_decay_later():
    layers = [keras.layers.Dense(2, name="early"), keras.layers.BatchNormalization(name="norm")]
    head = keras.layers.Dense(1, name="head")
    model = keras.Sequential([keras.Input([3]), *layers, head], name="net")
    early = ["net/early/bias", "net/norm/gamma", "net/norm/beta"]
    assert paths(model, tg.no_decay(model)) == [*early, "net/head/bias"]
    for layer in layers:
        layer.trainable = False
    assert paths(model, tg.no_decay(model)) == ["net/head/bias", *early]


def test_layers_decay_from_the_top():
    body = keras.Sequential(
        [keras.layers.Dense(2, name="low"), keras.layers.Dense(2, name="middle")], name="body"
    )
    model = keras.Sequential([keras.Input([2]), body, keras.layers.Dense(1, name="head")])
    found = tg.layerwise_decay(model, 0.5)
    found_paths = zip(paths(model, found), found.values(), strict=True)
    by_layer = {path.split("/")[-2]: x for path, x in found_paths}
    assert by_layer == {"low": 0.25, "middle": 0.5, "head": 1.0}
    given = tg.layerwise_decay(model, 0.5, [model.layers[-1], body])
    assert sorted(given.values()) == [0.5, 0.5, 1.0, 1.0, 1.0, 1.0]
    model.compile(tg.SGD(1.0, learning_rate_multipliers=found), "mse")
    before = [v.numpy() for v in model.trainable_variables]
    gradients = [tf.ones(v.shape) for v in model.trainable_variables]
    model.optimizer.apply(gradients, model.trainable_variables)
    moved = [np.max(b - v.numpy()) for b, v in zip(before, model.trainable_variables, strict=True)]
    np.testing.assert_allclose(moved, [0.25, 0.25, 0.5, 0.5, 1.0, 1.0], rtol=1e-6)


def test_a_frozen_layer_keeps_its_place_in_the_order():
    layers = [keras.layers.Dense(2, name=name) for name in ("low", "head")]
    model = keras.Sequential([keras.Input([2]), *layers])
    layers[0].trainable = False
    found = tg.layerwise_decay(model, 0.5)
    assert sorted(found.values()) == [0.5, 0.5, 1.0, 1.0]
    optimizer = tg.SGD(1.0, learning_rate_multipliers=found)
    optimizer.build(model.trainable_variables)  # although two of the patterns match nothing
    other = keras.Sequential([keras.Input([2]), keras.layers.Dense(2, name="other")])
    with pytest.raises(ValueError, match="matches none of the 2 variables"):
        tg.SGD(1.0, learning_rate_multipliers=found).build(other.trainable_variables)


def two_towers():
    """Layers in parts of one name have one path; an optimizer numbers them."""
    inputs, towers = [keras.Input([2]), keras.Input([2])], []
    for _ in inputs:
        tower = keras.Sequential([keras.Input([2]), keras.layers.Dense(2, name="d")], name="body")
        towers.append(keras.Sequential([keras.Input([2]), tower]))
    joined = keras.layers.Add()([tower(x) for tower, x in zip(towers, inputs, strict=True)])
    model = keras.Model(inputs, keras.layers.Dense(1, name="head")(joined))
    found = [v.path for v in model.trainable_variables]
    assert len({*found}) == len(found) - 2
    return model, towers


def test_groups_tell_layers_of_one_path_apart():
    model, _ = two_towers()
    found = tg.layerwise_decay(model, 0.5)
    assert [*found.values()] == [0.25, 0.25, 0.5, 0.5, 1.0, 1.0]
    optimizer = tg.AdamW(
        *(0.1, 0.1),
        learning_rate_multipliers=found,
        exclude_from_weight_decay=tg.no_decay(model),
    )
    optimizer.build(model.trainable_variables)
    rows = [re.split(r"  +", line) for line in optimizer.table().splitlines()[1:]]
    assert [row[3] for row in rows] == ["yes", "no"] * 3
    rates = [float(row[2]) for row in rows]
    assert rates == [0.025, 0.025, 0.05, 0.05, 0.1, 0.1]


def test_a_frozen_layer_of_a_path_that_another_has():
    model, towers = two_towers()
    towers[0].trainable = False
    found = tg.layerwise_decay(model, 0.5)
    assert len(found) == 6
    optimizer = tg.SGD(1.0, learning_rate_multipliers=found)
    before = [v.numpy() for v in model.trainable_variables]
    gradients = [tf.ones(v.shape) for v in model.trainable_variables]
    optimizer.apply(gradients, model.trainable_variables)
    moved = [np.max(b - v.numpy()) for b, v in zip(before, model.trainable_variables, strict=True)]
    np.testing.assert_allclose(moved, [0.5, 0.5, 1.0, 1.0], rtol=1e-6)


def test_a_layer_that_is_used_twice_is_one_layer():
    shared = keras.layers.Dense(2, name="shared")
    part = keras.Sequential([keras.Input([2]), shared], name="part")
    low, head = keras.layers.Dense(2), keras.layers.Dense(1)
    model = keras.Sequential([keras.Input([2]), low, shared, part, head])
    assert [*tg.layerwise_decay(model, 0.5).values()] == [0.25, 0.25, 0.5, 0.5, 1.0, 1.0]


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda m: tg.layerwise_decay(m, 0.0), ValueError, "rate must lie in (0, 1]"),
        (lambda m: tg.layerwise_decay(m, 1.5), ValueError, "layerwise_decay(rate=1.5): rate must"),
        (lambda m: tg.layerwise_decay("m", 0.5), TypeError, "model must be a"),
        (lambda m: tg.layerwise_decay(m, 0.5, ["head"]), TypeError, "layers must be a Layer"),
        (lambda m: tg.no_decay(m.layers), TypeError, "no_decay(model=["),
    ],
)
def test_groups_of_what_is_no_model(call, error, message):
    model = keras.Sequential([keras.Input([2]), keras.layers.Dense(1)])
    with pytest.raises(error, match=re.escape(message)):
        call(model)
    with pytest.raises(ValueError, match="build"):
        tg.no_decay(keras.Sequential([keras.layers.Dense(1)]))


# Layers that are trained later.


@pytest.mark.parametrize("name", ["adam_amsgrad", "sgd_momentum", "graft_sgd_adam", "larc_clip"])
def test_variables_that_come_later_equal_variables_without_gradients(name):
    """Their state starts then; all else goes on as if they had been there."""
    options = {"use_ema": True, "weight_decay": 0.1, "name": "optimizer"}
    later, early = (samples.BY_NAME[name].make(**options) for _ in range(2))
    w, v = variables(), variables()
    early.build(v)
    for optimizer, given in ((later, w), (early, v)):
        stepped(optimizer, given, range(2), HEAD)
        stepped(optimizer, given, range(2, 5))
        stepped(optimizer, given, range(5, 6), BODY)  # the head waits
        stepped(optimizer, given, range(6, 8))
    samples.assert_same_state(samples.state_of(later, *w), samples.state_of(early, *v))


def two_layers(trainable):
    keras.utils.set_random_seed(0)
    layers = [keras.layers.Dense(4, "relu", name="body"), keras.layers.Dense(1, name="head")]
    model = keras.Sequential([keras.Input([3]), *layers], name="model")
    for layer, trains in zip(layers, trainable, strict=True):
        layer.trainable = trains
    return model


def fitted(model, optimizer, epochs=1):
    x = np.random.default_rng(0).normal(size=(32, 3)).astype("float32")
    model.compile(optimizer, "mse")
    model.fit(x, x.sum(1), batch_size=8, epochs=epochs, verbose=0)
    found = samples.state_of(optimizer, *model.trainable_variables)
    return {name.removeprefix("model/"): value for name, value in found.items()}


@pytest.mark.slow
def test_fit_goes_on_after_a_layer_is_unfrozen():
    model, optimizer = two_layers([False, True]), tg.Adam(0.1, name="optimizer")
    frozen = model.layers[0].kernel.numpy()
    first = fitted(model, optimizer)
    np.testing.assert_array_equal(model.layers[0].kernel.numpy(), frozen)
    model.layers[0].trainable = True
    second = fitted(model, optimizer)
    assert not np.array_equal(model.layers[0].kernel.numpy(), frozen)
    assert second["iteration"] == 2 * first["iteration"] == 8
    assert {*second} > {*first}


@pytest.mark.slow
def test_a_run_that_is_saved_after_unfreezing_goes_on_to_the_same_bits(tmp_path):
    def unfrozen(model):
        model.layers[0].trainable = True
        return model

    whole, optimizer = two_layers([False, True]), tg.Adam(0.1, name="optimizer")
    fitted(whole, optimizer)
    fitted(unfrozen(whole), optimizer)
    whole.save(tmp_path / "model.keras")
    expected = fitted(whole, optimizer)
    again = keras.saving.load_model(tmp_path / "model.keras")
    samples.assert_same_state(fitted(again, again.optimizer), expected)


def unnamed(optimizer, trainable=(True, True)):
    """Two layers of one shape, which Keras numbers as it numbers others."""
    layers = [keras.layers.Dense(3, use_bias=False) for _ in trainable]
    model = keras.Sequential([keras.Input([3]), *layers])
    for layer, trains in zip(layers, trainable, strict=True):
        layer.trainable = trains
    model.compile(optimizer, keras.losses.MeanSquaredError(), jit_compile=False)
    return model


def momenta(model):
    parameters = model.optimizer.state.parameters
    by_layer = {p.path.split("/")[-2]: p.slots["momentum"].numpy() for p in parameters}
    return [by_layer[layer.name] for layer in model.layers]


@pytest.mark.slow
@pytest.mark.parametrize("form", ["weights.h5", "checkpoint", "keras", "h5", "to_keras"])
def test_state_of_a_layer_that_was_unfrozen_is_that_of_its_layer(tmp_path, form):
    model = unnamed(tg.SGD(0.1, momentum=0.9), [False, True])
    x = np.random.default_rng(0).normal(size=(16, 3)).astype("float32")
    model.fit(x, x * [3, 2, 1], verbose=0)
    model.layers[0].trainable = True
    model.compile(model.optimizer, model.loss, jit_compile=False)
    model.fit(x, x * [3, 2, 1], verbose=0)
    file, saved = str(tmp_path / f"saved.{form}"), momenta(model)
    other = unnamed(tg.SGD(0.1, momentum=0.9))
    if form == "weights.h5":
        model.save_weights(file)
        other.load_weights(file)
    elif form == "checkpoint":
        other.optimizer.build(other)
        former = tf.train.Checkpoint(model=model, optimizer=model.optimizer).write(file)
        tf.train.Checkpoint(model=other, optimizer=other.optimizer).read(former)
    elif form == "to_keras":
        stock = tg.to_keras(model.optimizer)
        loaded = [v.numpy() for v in stock.variables if v.path.endswith("momentum")]
    else:
        model.save(file)
        other = keras.saving.load_model(file)
        other.optimizer.build(other)  # what an .h5 file holds waits for it
    if form != "to_keras":
        loaded = momenta(other)
    for right, found in zip(saved, loaded, strict=True):
        np.testing.assert_array_equal(found, right)


@pytest.mark.parametrize("form", ["weights.h5", "checkpoint"])
@pytest.mark.parametrize("before", [(False, True), (True, True)], ids=["fewer", "more"])
def test_state_of_more_or_fewer_variables_is_loaded_as_far_as_it_fits(tmp_path, form, before):
    model, optimizer = two_layers(before), tg.Adam(0.1, name="optimizer")
    saved = fitted(model, optimizer)
    path = str(tmp_path / f"model.{form}")
    fewer = before == (False, True)
    other = two_layers([True, True] if fewer else [False, True])
    own = tg.Adam(0.1, name="optimizer")
    other.compile(own, "mse")
    own.build(other.trainable_variables)
    if form == "checkpoint":
        tf.train.Checkpoint(optimizer=optimizer).write(path)
        reader = tf.train.Checkpoint(optimizer=own)
        load = lambda: reader.read(path).expect_partial()  # noqa: E731
    else:
        model.save_weights(path)
        load = functools.partial(other.load_weights, path)
    what = "was not saved and stays" if fewer else "not trained here, is left out"
    with pytest.warns(UserWarning, match=rf"^Adam: .*'model/body/bias'.* {what}.*loaded\.$"):
        load()
    found = {n.removeprefix("model/"): x for n, x in samples.state_of(own).items()}
    common = found.keys() & saved.keys()
    assert any("head" in name for name in common)
    for name in common:
        np.testing.assert_array_equal(found[name], saved[name])
    for name in found.keys() - common:
        assert "body" in name
        assert not found[name].any()


def test_state_with_other_roles_is_still_refused(tmp_path):
    """Averages that one of the two does not keep are no layer that was frozen."""
    w = variables()
    optimizer = tg.Adam(0.1, use_ema=True)
    stepped(optimizer, w, only=HEAD)
    path = tf.train.Checkpoint(optimizer=optimizer).write(str(tmp_path / "checkpoint"))
    other = tg.Adam(0.1)
    other.build(variables())
    with pytest.raises(tg.CheckpointError, match="entries differ"):
        tf.train.Checkpoint(optimizer=other).read(path)


@pytest.mark.parametrize(
    "make", [lambda: tg.AGN(tg.SGD(0.1)), lambda: tg.wrap(keras.optimizers.Nadam(0.1))]
)
def test_optimizers_that_cannot_add_variables_say_so(make):
    optimizer, w = make(), variables()
    stepped(optimizer, w, only=HEAD)
    with pytest.raises(ValueError, match=r"was built for fewer variables, and .* cannot"):
        optimizer.build(w)
    assert len(optimizer.state.parameters) == 1


def test_a_new_variable_with_a_name_that_is_taken():
    optimizer, w = tg.Adam(0.1), variables()
    stepped(optimizer, w)
    head = tf.Variable([1.0], name="head")
    with pytest.raises(ValueError, match=r"'head' is the name of a variable .* another"):
        optimizer.build([*w[BODY], head])
    with pytest.raises(ValueError, match="it was built for other variables"):
        optimizer.build([head])


@pytest.mark.parametrize("compiled", [False, True], ids=["graph", "xla"])
def test_a_function_traced_before_goes_on_as_it_was(compiled):
    optimizer, w = tg.Adam(0.1, name="optimizer"), variables()

    @tf.function(jit_compile=compiled)
    def step(given):
        optimizer.apply(given, w[HEAD])

    optimizer.build(w[HEAD])
    step(gradients(0)[HEAD])
    optimizer.build(w)
    step(gradients(1)[HEAD])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        stepped(optimizer, w, range(2, 3))
    v = variables()
    expected = tg.Adam(0.1, name="optimizer")
    expected.build(v)
    stepped(expected, v, range(2), HEAD)
    stepped(expected, v, range(2, 3))
    np.testing.assert_allclose(w[2].numpy(), v[2].numpy(), rtol=1e-6)
    np.testing.assert_array_equal(w[0].numpy(), v[0].numpy())


def test_the_table_says_what_each_variable_gets():
    given = {"body/k": 0.5, "head": 0}
    optimizer = tg.MixedPrecision(
        tg.AdamW(0.5, exclude_from_weight_decay=["bias"], learning_rate_multipliers=given)
    )
    with pytest.raises(ValueError, match="must be built first"):
        optimizer.table()
    optimizer.build(variables())
    lines = [re.split(r"  +", line) for line in optimizer.table().splitlines()]
    state = "optimizer/momentum, optimizer/velocity"
    assert lines == [
        ["variable", "shape", "learning rate", "decays", "state"],
        ["body/kernel", "(2, 2)", "0.25", "yes", state],
        ["body/bias", "(2,)", "0.5", "no", state],
        ["head", "(1,)", "frozen", "no", state],
    ]


# Unfreezing within `fit`.


class Trained(keras.callbacks.Callback):
    """Which layers moved in each epoch."""

    def __init__(self):
        super().__init__()
        self.moved = []

    def on_epoch_begin(self, epoch, logs=None):
        self.before = [layer.get_weights() for layer in self.model.layers]

    def on_epoch_end(self, epoch, logs=None):
        both = zip(self.model.layers, self.before, strict=True)
        moved = [x.name for x, old in both if not np.array_equal(x.get_weights()[0], old[0])]
        self.moved.append(moved)


def unfreezing(optimizer, given, epochs=3, **more):
    keras.utils.set_random_seed(0)
    layers = [keras.layers.Dense(3, "relu", name=name) for name in ("low", "middle")]
    head = keras.layers.Dense(1, name="head")
    model = keras.Sequential([keras.Input([3]), *layers, head], name="model")
    model.compile(optimizer, "mse")
    x = np.random.default_rng(0).normal(size=(32, 3)).astype("float32")
    trained = Trained()
    callbacks = [tg.Unfreeze(given), trained]
    model.fit(x, x.sum(1), batch_size=8, epochs=epochs, verbose=0, callbacks=callbacks, **more)
    return model, trained.moved


@pytest.mark.slow
def test_layers_are_trained_from_their_epochs_on():
    _, moved = unfreezing(tg.Adam(0.01), {1: ["middle"], 2: ["low"]})
    assert moved == [["head"], ["middle", "head"], ["low", "middle", "head"]]


@pytest.mark.slow
@pytest.mark.parametrize(
    "optimizer",
    [
        tg.Adam(0.01, learning_rate_multipliers={"low": 0.1}),
        tg.AGN(tg.Adam(0.01), communication_period=2),
        tg.wrap(keras.optimizers.Adam(0.01)),
    ],
    ids=["patterns", "agn", "wrap"],
)
def test_the_optimizer_is_built_for_layers_that_are_frozen_at_first(optimizer):
    """A pattern may name one; and those that cannot add variables later need not."""
    _, moved = unfreezing(optimizer, {1: ["middle"], 2: ["low"]})
    assert moved == [["head"], ["middle", "head"], ["low", "middle", "head"]]


def frozen_net(optimizer, strategy=None):
    with (strategy or tf.distribute.get_strategy()).scope():
        layers = [keras.layers.Dense(2, name="low"), keras.layers.Dense(1, name="head")]
        model = keras.Sequential([keras.Input([2]), *layers])
        model.compile(optimizer(), "mse")
    layers[0].trainable = False
    return model


@pytest.mark.slow
def test_layers_that_are_frozen_before_are_unfrozen_after_other_callbacks():
    """A Monitor that comes first builds the optimizer for what is trainable by then."""
    model, ones = frozen_net(lambda: tg.wrap(keras.optimizers.Adam(0.1))), np.ones([4, 2])
    before = model.get_layer("low").get_weights()[0]
    callbacks = [tg.Monitor(1), tg.Unfreeze({1: ["low"]})]
    model.fit(ones, ones[:, :1], epochs=2, verbose=0, callbacks=callbacks)
    assert (model.get_layer("low").get_weights()[0] != before).any()


@pytest.mark.slow
def test_an_optimizer_that_replicas_built_without_a_layer_says_so_before_the_first_epoch():
    model = frozen_net(lambda: tg.AGN(tg.Adam(0.1)), mirrored())
    begun, ones = Trained(), np.ones([4, 2])
    with pytest.raises(ValueError, match=r"^Unfreeze: AGN.*cannot add any.*Leave the layers train"):
        model.fit(ones, ones[:, :1], verbose=0, callbacks=[begun, tg.Unfreeze({1: ["low"]})])
    assert begun.moved == []
    assert not model.get_layer("low").trainable
    tg.Unfreeze({1: ["low"]}).set_model(frozen_net(tg.Adam, mirrored()))  # builds for all


def test_a_model_without_weights_is_refused():
    model = keras.Sequential([keras.layers.Dense(2, name="low"), keras.layers.Dense(1)])
    model.compile(tg.SGD(0.1), "mse")
    unfreeze, ones = tg.Unfreeze({1: ["low"]}), np.ones([4, 1])
    with pytest.raises(ValueError, match=r"^Unfreeze: the model has no weights yet.*keras\.Input"):
        model.fit(ones, ones, verbose=0, callbacks=[unfreeze])


@pytest.mark.slow
def test_a_resumed_fit_trains_what_was_trained():
    given = {1: ["middle"], 2: ["low"]}
    _, moved = unfreezing(tg.Adam(0.01), given, initial_epoch=1)
    assert moved == [["middle", "head"], ["low", "middle", "head"]]


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ({1: ["lo"]}, ValueError, "Unfreeze: the model has no layer 'lo'."),
        ({1: ["low"], 2: ["low"]}, ValueError, "the layer 'low' is given twice"),
        ({1: "low"}, TypeError, "for epoch 1 the layers are 'low'; they must be in a list"),
        ({-1: ["low"]}, ValueError, "Unfreeze(epoch=-1): epoch must be at least 0"),
        (["low"], TypeError, "layers must be a dict of lists of layers by epoch"),
    ],
)
def test_layers_that_cannot_be_unfrozen(given, error, message):
    with pytest.raises(error, match=re.escape(message)):
        unfreezing(tg.Adam(0.01), given)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({1: ["body"], 3: ["block"]}, [False, False, False, True]),
        ({1: ["block"], 3: ["body"]}, [False, True, True, True]),
    ],
)
def test_a_layer_within_a_given_model_has_an_epoch_of_its_own(given, expected):
    body = keras.Sequential(
        [keras.Input([2]), keras.layers.Dense(2), keras.layers.Dense(2, name="block")], name="body"
    )
    model = keras.Sequential([keras.Input([2]), body, keras.layers.Dense(1)])
    model.compile(tg.SGD(0.1), "mse", jit_compile=False)
    found = []

    class Trained(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            found.append(all(v.trainable for v in body.get_layer("block").variables))

    x, y = np.ones((4, 2)), np.ones((4, 1))
    callbacks = [tg.Unfreeze(given), Trained()]
    model.fit(x, y, epochs=4, verbose=0, callbacks=callbacks)
    assert found == expected
