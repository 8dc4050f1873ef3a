"""`wrap`: Keras' optimizers through our pipeline take Keras' steps, or are refused."""

import gc
import json
import weakref

import keras
import numpy as np
import pytest
import tensorflow as tf
from packaging.version import Version

import tf_graft
from support import saving
from support.samples import (
    BUILT_IN,
    assert_same_state,
    gradients,
    slices,
    state_of,
    variables,
    weights,
)
from tf_graft import wrap
from tf_graft.compose.of_keras import Wrapped

RATE = 0.0625
EPS = np.finfo("float32").eps
SHAPES = {"kernel": (4, 3), "bias": (3,), "scale": (), "filters": (2, 2, 3, 2)}
# Their update is written out with more roundings of numbers of the size of the weights.
ULPS = {"adamw": 4, "ftrl": 8, "muon": 4}
# From this version on, Keras searches for excluded names in `bias`, no longer in `net/dense/bias`.
KERAS_SEARCHES_NAMES = Version("3.16.0.dev0")


def assert_equals_stock(ours, stock, steps=5, shapes=SHAPES, part=None, ulps=2):
    """Step by step, for all variables or every other time for a part of them."""
    models = [variables(weights(shapes)) for _ in range(2)]
    for optimizer, model in zip((ours, stock), models, strict=True):
        optimizer.build(list(model.values()))
    for number, g in enumerate(gradients(steps, shapes), 1):
        paths = part if part and number % 2 else list(shapes)
        for optimizer, model in zip((ours, stock), models, strict=True):
            optimizer.apply([tf.constant(g[p]) for p in paths], [model[p] for p in paths])
        for path in shapes:
            mine, theirs = (model[path].numpy() for model in models)
            allowed = number * ulps * EPS * np.maximum(1, np.abs(theirs).max())
            np.testing.assert_allclose(mine, theirs, rtol=0, atol=allowed, err_msg=path)
    start = weights(shapes)
    assert all((models[0][path].numpy() != w).any() for path, w in start.items())


@pytest.mark.parametrize("name", BUILT_IN)
def test_takes_the_steps_of(name):
    assert_equals_stock(wrap(BUILT_IN[name](RATE)), BUILT_IN[name](RATE), ulps=ULPS.get(name, 2))


@pytest.mark.parametrize("name", ["nadam", "adam", "adafactor"])
def test_takes_the_steps_when_applied_to_a_part(name):
    """Nadam's product of momenta goes with the count and not with the variables."""
    make = BUILT_IN[name]
    assert_equals_stock(wrap(make(RATE)), make(RATE), part=["bias", "kernel"])


@pytest.mark.parametrize("name", ["sgd_momentum", "nadam", "lamb", "schedule_free", "muon"])
def test_takes_the_steps_with_the_weight_decay_of(name):
    if name not in BUILT_IN:
        pytest.skip("this Keras does not have it")

    def make():
        optimizer = BUILT_IN[name](RATE, weight_decay=0.5)
        optimizer.exclude_from_weight_decay(var_names=["bias"])
        return optimizer

    assert_equals_stock(wrap(make()), make(), ulps=6)


@pytest.mark.parametrize("name", ["sgd", "adafactor"])
def test_takes_the_steps_under_the_schedule_of(name):
    def make():
        rate = keras.optimizers.schedules.PiecewiseConstantDecay([0, 2], [0.5, 0.25, 0.125])
        return BUILT_IN[name](rate)

    assert_equals_stock(wrap(make()), make())


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("name", BUILT_IN)
def test_a_rate_of_0_makes_no_step_and_leaves_all_finite(name, sparse):
    """As a warm-up begins; Keras' Ftrl divides by the rate."""
    optimizer, w = wrap(BUILT_IN[name](0.0)), tf.Variable(tf.ones([4, 3]), name="w")
    g = tf.constant(np.linspace(-1, 1, 12, dtype="float32").reshape(4, 3))
    g = (
        tf.IndexedSlices(g[:2], [0, 2], [4, 3])
        if sparse
        else tf.tensor_scatter_nd_update(g, [[3]], [[0.0, 0.0, 0.0]])
    )
    optimizer.apply([g], [w])
    assert w.numpy().tolist() == np.ones([4, 3]).tolist()
    assert all(np.isfinite(x).all() for x in state_of(optimizer, w).values())
    optimizer.learning_rate = RATE
    optimizer.apply([g], [w])
    assert (w.numpy()[0] != 1).all()
    assert all(np.isfinite(x).all() for x in state_of(optimizer, w).values())


def test_what_is_not_finite_is_applied_as_told():
    optimizer, w = wrap(keras.optimizers.Ftrl(0.0), nonfinite="apply"), tf.Variable([1.0])
    optimizer.apply([tf.constant([1.0])], [w])
    assert np.isnan(w.numpy()).all()


@pytest.mark.parametrize(
    "option",
    [
        {"clipnorm": 0.5},
        {"clipvalue": 0.25},
        {"global_clipnorm": 0.5},
        {"loss_scale_factor": 4.0},
        {"gradient_accumulation_steps": 2},
        {"use_ema": True, "ema_momentum": 0.5, "ema_overwrite_frequency": 2},
    ],
    ids=lambda option: next(iter(option)),
)
def test_takes_over_what_the_optimizer_was_given(option):
    ours, stock = wrap(keras.optimizers.Lion(RATE, **option)), keras.optimizers.Lion(RATE, **option)
    for name, value in option.items():
        assert getattr(ours, name) == value
    assert_equals_stock(ours, stock, steps=6)


def test_what_is_given_to_wrap_comes_first():
    stock = keras.optimizers.SGD(0.5, clipnorm=1.0, use_ema=True, name="mine")
    ours = wrap(stock, learning_rate=0.25, clipnorm=2.0, use_ema=False, nonfinite="raise")
    assert (float(ours.learning_rate.numpy()), ours.clipnorm, ours.use_ema) == (0.25, 2.0, False)
    assert (ours.name, ours.nonfinite) == ("mine", "raise")
    assert (float(stock.learning_rate.numpy()), stock.clipnorm) == (0.5, 1.0)


def test_keeps_no_first_values_beside_its_slots(monkeypatch):
    """They would take as much memory as the slots, and the first step would copy these."""
    made, zeros = [], keras.initializers.Zeros.__call__

    def noted(self, *args, **kwargs):
        values = zeros(self, *args, **kwargs)
        made.append(weakref.ref(values))
        return values

    monkeypatch.setattr(keras.initializers.Zeros, "__call__", noted)
    gc.freeze()  # what other tests have left would take seconds to look through
    try:
        optimizer = wrap(keras.optimizers.Adam(RATE))
        optimizer.build([tf.Variable(tf.zeros([4, 3]), name="table")])
        gc.collect()
    finally:
        gc.unfreeze()
    assert made
    assert all(values() is None for values in made)


@pytest.mark.slow
def test_float64_and_half_precision():
    """Half precision is float32's step from a float32 master."""
    start, g = weights({"w": (4,)})["w"], gradients(8, {"w": (4,)})
    ends = {}
    for dtype in ("float16", "bfloat16", "float32", "float64"):
        w = tf.Variable(tf.cast(tf.cast(start, "bfloat16"), dtype), name="w")
        optimizer = wrap(keras.optimizers.Nadam(1e-3))
        for step in g:
            half = tf.cast(step["w"], "bfloat16")
            optimizer.apply([tf.cast(half, dtype)], [w])
        ends[dtype] = tf.cast(w, "float64").numpy()
        state = state_of(optimizer)
        expected = "float64" if dtype == "float64" else "float32"
        assert state["w/momentum"].dtype == expected
    np.testing.assert_allclose(ends["float32"], ends["float64"], rtol=1e-6)
    np.testing.assert_allclose(ends["float16"], ends["float32"], rtol=2.0**-11 * 1.01)
    np.testing.assert_allclose(ends["bfloat16"], ends["float32"], rtol=2.0**-8 * 1.01)


# Rows.

TABLE = {"table": (6, 3)}
WHOLE = [name for name in ("lamb", "adafactor", "muon") if name in BUILT_IN]


@pytest.mark.parametrize("name", BUILT_IN)
def test_repeated_rows_equal_the_dense_gradient(name):
    """Keras squares before it sums."""
    models = [variables(weights(TABLE)) for _ in range(2)]
    ours, dense = wrap(BUILT_IN[name](RATE)), wrap(BUILT_IN[name](RATE))
    for step, ids in enumerate([[0, 1, 2, 3, 4, 5, 1, 1], [5, 4, 3, 2, 1, 0, 0]]):
        values = np.random.default_rng(step).normal(size=(len(ids), 3)).astype("float32")
        total = np.zeros((6, 3), "float32")
        np.add.at(total, ids, values)
        ours.apply([slices(ids, values)], models[0].values())
        dense.apply([tf.constant(total)], models[1].values())
    np.testing.assert_allclose(
        models[0]["table"].numpy(), models[1]["table"].numpy(), rtol=0, atol=2e-6
    )


@pytest.mark.parametrize("name", BUILT_IN)
def test_untouched_rows_wait_unless_the_update_is_of_the_whole(name):
    start = weights(TABLE)["table"]
    table = variables({"table": start})["table"]
    optimizer = wrap(BUILT_IN[name](RATE))
    optimizer.apply([slices(range(6), np.ones([6, 3], "float32"))], [table])
    before = table.numpy()
    state = state_of(optimizer)
    optimizer.apply([slices([1, 1], np.ones([2, 3], "float32"))], [table])
    waiting = [0, 2, 3, 4, 5]
    assert (table.numpy()[1] != before[1]).any()
    assert optimizer.whole("table") == (name in WHOLE)
    if name not in WHOLE:
        np.testing.assert_array_equal(table.numpy()[waiting], before[waiting])
    after = {role: s for role, s in state_of(optimizer).items() if s.shape[:1] == (6,)}
    changed = [role for role, s in after.items() if (s[waiting] != state[role][waiting]).any()]
    assert bool(changed) == (name in WHOLE)


def test_no_rows_and_empty_variables():
    """`keras.ops.add` takes a tensor without rows for a bias, and fails."""
    for name in ("nadam", "ftrl", "lamb"):
        optimizer = wrap(BUILT_IN[name](RATE))
        model = [tf.Variable(tf.ones([4, 3])), tf.Variable(tf.ones([0, 3])), tf.Variable(1.0)]
        grads = [slices([], np.zeros([0, 3], "float32")), tf.ones([0, 3]), tf.constant(1.0)]
        for _ in range(2):
            optimizer.apply(grads, model)
        assert int(optimizer.iterations.numpy()) == 2
        np.testing.assert_array_equal(model[0], tf.ones([4, 3]))
        assert float(model[2]) < 1


# Weight decay.


def decayed(optimizer):
    """Which of kernel and bias a zero gradient moves."""
    model = keras.Sequential([keras.Input([2]), keras.layers.Dense(2, name="dense")], name="net")
    for variable in model.trainable_variables:
        variable.assign(tf.ones(variable.shape))
    optimizer.apply(
        [tf.zeros(v.shape) for v in model.trainable_variables], model.trainable_variables
    )
    return [bool((v.numpy() != 1).any()) for v in model.trainable_variables], model


def decaying(cls=keras.optimizers.SGD):
    return cls(0.5, weight_decay=0.5)


@pytest.mark.parametrize("pattern", ["bias", "dense/bias", "^net/dense/b", "bias|nothing"])
@pytest.mark.parametrize("saved", [False, True], ids=["", "from its config"])
def test_exclusions_of_the_optimizer_are_kept(pattern, saved):
    stock, inner = decaying(), decaying()
    for optimizer in (stock, inner):
        optimizer.exclude_from_weight_decay(var_names=[pattern])
    ours = wrap(inner)
    if saved:
        ours = tf_graft.deserialize(json.loads(json.dumps(tf_graft.serialize(ours))))
    assert decayed(ours)[0] == [True, False]
    if "/" not in pattern or Version(keras.__version__) < KERAS_SEARCHES_NAMES:
        assert decayed(stock)[0] == [True, False]


def test_exclusions_by_variable_are_kept():
    model = keras.Sequential([keras.Input([2]), keras.layers.Dense(2, name="dense")], name="net")
    kernel, bias = model.trainable_variables
    inner = decaying()
    inner.exclude_from_weight_decay(var_list=[kernel])
    ours = wrap(inner)
    bias.assign([1.0, 1.0])
    before = kernel.numpy()
    ours.apply([tf.zeros([2, 2]), tf.zeros([2])], [kernel, bias])
    np.testing.assert_array_equal(kernel.numpy(), before)
    np.testing.assert_array_equal(bias.numpy(), [0.75, 0.75])
    twin = tf_graft.deserialize(tf_graft.serialize(ours))  # known by its path from then on
    twin.apply([tf.zeros([2, 2]), tf.zeros([2])], [kernel, bias])
    np.testing.assert_array_equal(kernel.numpy(), before)


def test_exclusions_given_to_wrap_are_of_the_optimizers_decay_too():
    assert decayed(wrap(decaying(), exclude_from_weight_decay=["bias$"]))[0] == [True, False]
    late = wrap(decaying(keras.optimizers.AdamW))
    late.exclude_from_weight_decay(var_names=["kernel$"])
    assert decayed(late)[0] == [False, True]


@pytest.mark.parametrize("reshaping", [tf_graft.Cautious, tf_graft.RadialBrake])
def test_a_wrapper_reshapes_the_step_without_the_decay(reshaping):
    given = {"learning_rate": RATE, "momentum": 0.9, "weight_decay": 0.5}
    wrapped = wrap(keras.optimizers.SGD(**given))
    assert_equals_stock(reshaping(wrapped), reshaping(tf_graft.SGD(**given)), ulps=4)


def test_two_decays_are_refused():
    message = r"^wrap\(SGD, weight_decay=0\.25\): it already has weight_decay=0\.5; give"
    with pytest.raises(ValueError, match=message):
        wrap(decaying(), weight_decay=0.25)
    moved, model = decayed(wrap(keras.optimizers.SGD(0.5), weight_decay=0.5))
    assert moved == [True, True]
    np.testing.assert_allclose(model.trainable_variables[1].numpy(), [0.75, 0.75])


# Optimizers of users.


class Custom(keras.optimizers.Optimizer):
    """State of every kind, kept in every way, and written in every way."""

    def build(self, var_list):
        if self.built:
            return
        super().build(var_list)
        self.by_key = {self._var_key(v): tf.Variable(tf.zeros_like(v)) for v in var_list}
        self.scalars = [self.add_variable((), initializer="ones", name="scalar") for _ in var_list]
        self.halves = [
            self.add_variable_from_reference(
                v, "half", initializer=keras.initializers.Constant(0.5)
            )
            for v in var_list
        ]
        self.starts = [self.add_variable_from_reference(v, "start") for v in var_list]
        for start, v in zip(self.starts, var_list, strict=True):
            start.assign(v)

    def update_step(self, gradient, variable, learning_rate):
        lr = tf.cast(learning_rate, gradient.dtype)
        index = self._get_variable_index(variable)
        sums, scalar = self.by_key[self._var_key(variable)], self.scalars[index]
        total = sums.assign_add(gradient)
        scalar.assign(0.5 * scalar)
        self.halves[index].assign(abs(self.halves[index]) + gradient**2)
        away = variable - self.starts[index]
        variable.assign_sub(lr * (total / self.halves[index] + scalar * away))


class Decides(keras.optimizers.SGD):
    """Looks at tensors in a condition of TensorFlow."""

    def update_step(self, gradient, variable, learning_rate):
        large = tf.reduce_max(tf.abs(gradient)) > 1
        gradient = tf.cond(large, lambda: tf.sign(gradient), lambda: gradient)
        super().update_step(gradient, variable, learning_rate)


@pytest.mark.parametrize("cls", [Custom, Decides])
def test_takes_the_steps_of_a_users_optimizer(cls):
    assert_equals_stock(wrap(cls(RATE)), cls(RATE), ulps=4)


def test_state_of_a_users_optimizer_is_by_variable_and_role():
    optimizer = wrap(Custom(RATE))
    optimizer.build([keras.Variable([1.0, 2.0], name="w")])
    state = {k: v for k, v in state_of(optimizer).items() if k.startswith("w/")}
    assert set(state) == {"w/state", "w/scalars", "w/half", "w/start"}
    np.testing.assert_array_equal(state["w/half"], [0.5, 0.5])
    np.testing.assert_array_equal(state["w/start"], [1.0, 2.0])
    assert state["w/scalars"] == 1.0


def test_the_original_is_left_alone():
    original = keras.optimizers.Nadam(RATE)
    before = [v.path for v in original.variables]
    optimizer = wrap(original)
    w = keras.Variable([1.0], name="w")
    optimizer.apply([tf.ones([1])], [w])
    assert not original.built
    assert int(original.iterations.numpy()) == 0
    assert [v.path for v in original.variables] == before
    assert_equals_stock(original, keras.optimizers.Nadam(RATE))


# What cannot be wrapped.


class Captures(keras.optimizers.SGD):
    """Counts in a variable that it was not given."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.seen = [tf.Variable(0.0)]

    def update_step(self, gradient, variable, learning_rate):
        self.seen[0].assign_add(1.0)
        super().update_step(gradient, variable, learning_rate)


class KeepsTheModel(keras.optimizers.SGD):
    """Updates all variables when it is asked for one."""

    def build(self, var_list):
        super().build(var_list)
        self.model = list(var_list)

    def update_step(self, gradient, variable, learning_rate):
        for each in self.model:
            self.assign_sub(each, learning_rate * tf.reduce_mean(gradient) * tf.ones(each.shape))


class CountsTogether(keras.optimizers.SGD):
    """One counter, which every variable's update moves."""

    def build(self, var_list):
        super().build(var_list)
        self.total = self.add_variable((), name="total")

    def update_step(self, gradient, variable, learning_rate):
        self.total.assign_add(1.0)
        super().update_step(gradient, variable, learning_rate)


class Applies(keras.optimizers.SGD):
    def apply(self, grads, trainable_variables=None):
        super().apply([2 * g for g in grads], trainable_variables)


class LooksAtNumbers(keras.optimizers.SGD):
    def update_step(self, gradient, variable, learning_rate):
        super().update_step(float(gradient.numpy().max()) * gradient, variable, learning_rate)


class Branches(keras.optimizers.SGD):
    def update_step(self, gradient, variable, learning_rate):
        if tf.reduce_max(gradient) > 0:
            super().update_step(gradient, variable, learning_rate)


class RemembersInPython(keras.optimizers.SGD):
    calls = 0

    def update_step(self, gradient, variable, learning_rate):
        self.calls += 1
        super().update_step(gradient / self.calls, variable, learning_rate)


REFUSED = {
    Captures: "its update uses a variable that is neither its own state nor the variable it is",
    KeepsTheModel: "its update of 'a' touches 'b' too",
    CountsTogether: "its 'total' is changed by the updates of several variables",
    Applies: "it overrides the method 'apply', which would never be called",
    LooksAtNumbers: "its update cannot be traced: .*numpy",
    Branches: "its update cannot be traced: .*bool",
    RemembersInPython: "its update changes its attribute 'calls', which is not a variable",
}


@pytest.mark.parametrize("cls", REFUSED, ids=lambda cls: cls.__name__)
@pytest.mark.parametrize("child", [False, True], ids=["alone", "as a child"])
def test_refuses_an_optimizer_that_reaches_past_what_it_is_given(cls, child):
    optimizer = wrap(cls(0.5))
    if child:
        optimizer = tf_graft.AdaGraft(optimizer, "sgd")
    model = [keras.Variable([1.0, 2.0], name="a"), keras.Variable([3.0], name="b")]
    message = rf"^wrap\({cls.__name__}\): the optimizer cannot be wrapped: {REFUSED[cls]}"
    for _ in range(2):
        with pytest.raises(TypeError, match=message):
            optimizer.apply([tf.ones([2]), tf.ones([1])], model)
        assert not optimizer.built
    np.testing.assert_array_equal(model[0].numpy(), [1.0, 2.0])


def test_refuses_optimizers_of_optimizers():
    inner = keras.optimizers.SGD(0.5)
    wrappers = [keras.optimizers.LossScaleOptimizer(inner)]
    if hasattr(keras.optimizers, "MultiOptimizer"):
        wrappers.append(keras.optimizers.MultiOptimizer(lambda v: keras.optimizers.SGD(0.5)))
    for wrapper in wrappers:
        with pytest.raises(TypeError, match=r"cannot be wrapped: it overrides the method 'apply'"):
            wrap(wrapper).build([keras.Variable([1.0])])


def test_get_refuses_what_cannot_be_wrapped_with_a_hint():
    hint = "to scale the loss, use mixed_precision"
    with pytest.raises(ValueError, match=f"so it cannot be wrapped; {hint}.$"):
        tf_graft.get("loss_scale_optimizer")


def test_refuses_one_that_has_been_built():
    built = keras.optimizers.SGD(0.5)
    built.build([keras.Variable([1.0])])
    with pytest.raises(ValueError, match=r"^wrap\(SGD\): it is already built; give a new"):
        wrap(built)


def test_refuses_what_is_none():
    with pytest.raises(TypeError, match=r"get\(3\)"):
        wrap(3)
    with pytest.raises(ValueError, match="no such optimizer"):
        wrap("adem")
    with pytest.raises(TypeError, match=r"^Wrapped\(clip_norm=\.\.\.\): there is no such argument"):
        wrap(keras.optimizers.SGD(0.5), clip_norm=1.0)


def test_ours_are_returned_as_they_are():
    ours = tf_graft.Adam(0.5)
    assert wrap(ours) is ours
    assert type(wrap("adam")) is tf_graft.Adam
    assert type(wrap("ftrl")) is tf_graft.Ftrl
    message = (
        r"^wrap\(Adam, clipnorm, sparse=\.\.\.\): it is already an optimizer of tf_graft; give the"
    )
    with pytest.raises(ValueError, match=message):
        wrap(tf_graft.Adam(0.5), clipnorm=1.0, sparse="exact")
    with pytest.raises(
        TypeError, match=r"^Wrapped\(Adam\): it is already an optimizer of tf_graft"
    ):
        Wrapped(tf_graft.Adam(0.5))


# Saving.


@pytest.mark.slow
@saving.each_way
@pytest.mark.parametrize("name", ["nadam", pytest.param("adafactor", marks=pytest.mark.slow)])
def test_resumes_bit_for_bit(name, way, tmp_path):
    def make():
        return wrap(BUILT_IN[name](0.05, name="optimizer"), gradient_accumulation_steps=2)

    model = saving.compiled(make())
    saving.train(model, 0, 3)
    resumed = way(model, tmp_path)(saving.compiled(make()))
    assert_same_state(saving.everything(resumed), saving.everything(model))
    for turn in (model, resumed):
        saving.train(turn, 3, 7)
    assert_same_state(saving.everything(resumed), saving.everything(model))


@pytest.mark.parametrize("way", [saving.weights_file, saving.checkpoint])
def test_the_state_of_another_keras_optimizer_is_refused(way, tmp_path):
    """Adam's and Nadam's state for a variable are alike."""
    load = way(saving.trained(wrap(keras.optimizers.AdamW(0.05, name="optimizer"))), tmp_path)
    target = saving.trained(wrap(keras.optimizers.Adam(0.05, name="optimizer")))
    before = state_of(target.optimizer)
    with pytest.raises(ValueError, match=r"the state of Wrapped\(AdamW\); nothing was loaded"):
        load(target)
    assert_same_state(state_of(target.optimizer), before)


# The check notices what it is for.


@pytest.mark.parametrize("name", ["nadam", "lion"])
def test_notices_another_rate(name):
    make = BUILT_IN[name]
    with pytest.raises(AssertionError):
        assert_equals_stock(wrap(make(RATE * 1.0001)), make(RATE))
