"""`to_keras`: Keras' own optimizers that take the steps of ours, or a sentence of what is lost."""

import re

import keras
import numpy as np
import pytest
import tensorflow as tf

import tf_graft as tg
from support import samples
from support.replicas import mirrored
from support.samples import gradients, variables, weights

KERAS = keras.optimizers
SCHEDULE = KERAS.schedules.CosineDecay(0.1, 9)
SHAPES = {"kernel": (4, 3), "bias": (3,), "scale": (), "filters": (2, 2, 3, 2)}

# Each class with a namesake, with arguments that are no defaults.
EQUAL = {
    "sgd": (lambda: tg.SGD(0.1), KERAS.SGD),
    "nesterov": (lambda: tg.SGD(0.1, momentum=0.9, nesterov=True), KERAS.SGD),
    "adagrad": (lambda: tg.Adagrad(0.1, 0.2, epsilon=0.1), KERAS.Adagrad),
    "adadelta": (lambda: tg.Adadelta(1.0, rho=0.9, epsilon=0.01), KERAS.Adadelta),
    "rmsprop": (lambda: tg.RMSprop(0.01, rho=0.8, epsilon=0.01), KERAS.RMSprop),
    "centered": (lambda: tg.RMSprop(0.01, momentum=0.9, centered=True), KERAS.RMSprop),
    "adam": (lambda: tg.Adam(0.01, 0.8, 0.99, epsilon=0.01), KERAS.Adam),
    "amsgrad": (lambda: tg.Adam(0.01, amsgrad=True), KERAS.Adam),
    "adamw": (lambda: tg.AdamW(0.01, weight_decay=0.1), KERAS.AdamW),
    "adamax": (lambda: tg.Adamax(0.01, beta_1=0.8), KERAS.Adamax),
    "nadam": (lambda: tg.NAdam(0.01, beta_2=0.99), KERAS.Nadam),
    "lion": (lambda: tg.Lion(0.01, beta_1=0.8), KERAS.Lion),
    "ftrl": (lambda: tg.Ftrl(0.1, l1_regularization_strength=0.01, beta=0.5), KERAS.Ftrl),
    "adafactor": (lambda: tg.Adafactor(0.01, clip_threshold=0.5), KERAS.Adafactor),
    "lamb": (lambda: tg.LAMB(0.01, epsilon=0.01), KERAS.Lamb),
}
OPTIONS = {
    "clipnorm": lambda: tg.SGD(0.1, clipnorm=0.5),
    "clipvalue": lambda: tg.SGD(0.1, clipvalue=0.5),
    "global_clipnorm": lambda: tg.SGD(0.1, global_clipnorm=0.5),
    "weight_decay": lambda: tg.Ftrl(0.1, weight_decay=0.1),
    "averages": lambda: tg.Adam(0.01, use_ema=True, ema_momentum=0.5, ema_overwrite_frequency=2),
    "averages by an object": lambda: tg.Adam(0.01, use_ema=tg.averages.EMA(0.5)),
    "loss scale": lambda: tg.SGD(0.1, loss_scale_factor=8.0),
    "accumulation": lambda: tg.NAdam(0.01, gradient_accumulation_steps=2),
    "schedule": lambda: tg.SGD(SCHEDULE, momentum=0.9),
    "schedule of ours": lambda: tg.SGD(tg.schedules.Warmup(0.1, 4)),
    "callable": lambda: tg.SGD(lambda: 0.1),
    "wrapped": lambda: tg.wrap(KERAS.Nadam(0.01, clipnorm=0.5)),
    "wrapped, with options": lambda: tg.wrap(KERAS.Adam(0.01), clipnorm=0.5, use_ema=True),
    "wrapped, with decay": lambda: tg.wrap(KERAS.Muon(0.01, weight_decay=0.1)),
    "wrapped, with gaps": lambda: tg.wrap(KERAS.Adafactor(0.01, use_ema=True)),
    "mixed precision": lambda: tg.MixedPrecision(tg.NAdam(0.01, clipnorm=0.5), 8),
    "mixed precision around a wrapped one": lambda: tg.MixedPrecision(KERAS.Nadam(0.01), None),
}
MADE = {name: make for name, (make, _) in EQUAL.items()} | OPTIONS


def step(optimizer, model, batches):
    scale = float(optimizer.scale_loss(tf.constant(1.0)))
    for batch in batches:
        optimizer.apply([tf.constant(scale * batch[p]) for p in model], list(model.values()))


def values(model):
    return {path: variable.numpy() for path, variable in model.items()}


def assert_near(model, expected):
    for path, value in values(model).items():
        np.testing.assert_allclose(value, expected[path], rtol=0, atol=1e-6, err_msg=path)


@pytest.mark.parametrize("name", EQUAL)
def test_has_exactly_the_class_of_keras(name):
    make, cls = EQUAL[name]
    optimizer = make()
    assert type(tg.to_keras(optimizer)) is cls
    assert tg.to_keras(optimizer).name == optimizer.name


@pytest.mark.parametrize("name", samples.with_slow(MADE, [*EQUAL, "accumulation", "wrapped"]))
def test_takes_the_same_steps(name):
    """Converted before the first step, and after the third or, under accumulation, within one."""
    batches, ours = gradients(8, SHAPES), variables(weights(SHAPES))
    optimizer, fresh = MADE[name](), variables(weights(SHAPES))
    at_once = tg.to_keras(optimizer)
    assert not at_once.built
    step(at_once, fresh, batches[:5])
    step(optimizer, ours, batches[:3])
    converted, third = tg.to_keras(optimizer), values(ours)
    assert converted.built
    step(converted, ours, batches[3:])
    eighth = values(ours)
    for path, value in third.items():
        ours[path].assign(value)
    step(optimizer, ours, batches[3:5])
    assert_near(ours, values(fresh))
    step(optimizer, ours, batches[5:])
    assert_near(ours, eighth)
    assert int(converted.iterations) == int(optimizer.iterations.numpy())
    assert all(np.any(values(ours)[p] != w) for p, w in weights(SHAPES).items())


def averages(optimizer):
    return [v.numpy() for v in optimizer.variables if v.path.endswith("average")]


def test_averages_are_those_of_all_updates():
    """Also of rows that the last updates did not touch, whose averages are not kept up to date."""
    table, optimizer = tf.Variable(tf.ones([4, 2])), tg.SGD(0.5, use_ema=True, ema_momentum=0.5)
    optimizer.apply([tf.ones([4, 2])], [table])
    table.assign(tf.zeros([4, 2]))
    optimizer.apply([tf.IndexedSlices(tf.ones([1, 2]), [1], [4, 2])], [table])
    (found,) = averages(tg.to_keras(optimizer))
    np.testing.assert_array_equal(found[:, 0], [0.25, 0.0, 0.25, 0.25])


def test_the_given_optimizer_shares_nothing():
    model = variables(weights(SHAPES))
    for optimizer in (tg.Adam(0.01), tg.wrap(KERAS.Adam(0.01))):
        step(optimizer, model, gradients(1, SHAPES))
        before = [v.numpy() for v in optimizer.variables]
        converted = tg.to_keras(optimizer)
        converted.learning_rate = 0.5
        step(converted, model, gradients(2, SHAPES))
        for variable, value in zip(optimizer.variables, before, strict=True):
            np.testing.assert_array_equal(variable.numpy(), value)


def test_in_the_loss_scale_of_keras():
    """As `compile` puts it there under mixed_float16; the scale, which overflowed, goes on."""
    model, batches = variables(weights(SHAPES)), gradients(4, SHAPES)
    optimizer = KERAS.LossScaleOptimizer(tg.SGD(0.1, momentum=0.9), 16.0, 3, name="scale")
    assert type(tg.to_keras(optimizer).inner_optimizer) is KERAS.SGD
    step(optimizer, model, batches[:2])
    step(optimizer, model, [{p: np.float32(np.nan) * g for p, g in batches[2].items()}])
    converted, before = tg.to_keras(optimizer), values(model)
    assert type(converted) is KERAS.LossScaleOptimizer
    assert type(converted.inner_optimizer) is KERAS.SGD
    assert float(converted.scale_loss(1.0)) == float(optimizer.scale_loss(1.0)) == 8.0
    step(converted, model, batches[2:])
    expected = values(model)
    for path, value in before.items():
        model[path].assign(value)
    step(optimizer, model, batches[2:])
    assert_near(model, expected)


def test_there_and_back():
    for name in ("adam", "nadam"):
        stock = tg.to_keras(name)
        assert type(tg.to_keras(tg.wrap(stock))) is type(stock)
        assert tg.to_keras(stock) is stock
        again = tg.to_keras(tg.get(KERAS.serialize(stock)))
        assert again.get_config() == stock.get_config()
    wrapped = tg.wrap(KERAS.Muon(0.01, ns_steps=3, name="mine"))
    assert tg.to_keras(wrapped).get_config() == wrapped.optimizer.get_config()
    wrapped.learning_rate = 0.25
    assert float(tg.to_keras(wrapped).learning_rate) == 0.25
    with pytest.raises(TypeError, match="give an optimizer, a name"):
        tg.to_keras(3)


def test_the_learning_rate_and_the_counter_are_those_of_now():
    optimizer = tg.SGD(0.1)
    optimizer.learning_rate = 0.25
    optimizer.iterations.assign(7)
    found = tg.to_keras(optimizer)
    assert (float(found.learning_rate), int(found.iterations)) == (0.25, 7)
    assert tg.to_keras(tg.SGD(SCHEDULE)).learning_rate == SCHEDULE(0)


EXCLUDING = {
    "argument": lambda: tg.AdamW(0.1, exclude_from_weight_decay=["bias$", "^scale"]),
    "around": lambda: tg.MixedPrecision(
        tg.AdamW(0.1), 1, exclude_from_weight_decay=["bias$", "^scale"]
    ),
}


@pytest.mark.parametrize("name", EXCLUDING)
def test_exclusions_of_variables(name):
    optimizer, model = EXCLUDING[name](), variables(weights(SHAPES))
    with pytest.raises(ValueError, match=r"AdamW\): exclude_from_weight_decay=.* would be lost"):
        tg.to_keras(optimizer)
    optimizer.build(list(model.values()))
    zeros = [tf.zeros(shape) for shape in SHAPES.values()]
    tg.to_keras(optimizer).apply(zeros, list(model.values()))
    start = weights(SHAPES)
    kept = [path for path, value in values(model).items() if np.all(value == start[path])]
    assert kept == ["bias", "scale"]
    optimizer = tg.Adam(exclude_from_weight_decay=["bias"])  # which has no decay
    assert type(tg.to_keras(optimizer)) is KERAS.Adam


def test_exclusions_of_a_wrapped_optimizer():
    stock = KERAS.AdamW(0.1)
    stock.exclude_from_weight_decay(var_names=["bias"])
    model = variables(weights(SHAPES))
    zeros = [tf.zeros(shape) for shape in SHAPES.values()]
    tg.to_keras(tg.wrap(stock)).apply(zeros, list(model.values()))
    kept = [p for p, value in values(model).items() if np.all(value == weights(SHAPES)[p])]
    assert kept == ["bias"]
    more = tg.wrap(stock, exclude_from_weight_decay=["scale"])
    with pytest.raises(ValueError, match=r"to_keras\(AdamW\): exclude_from_weight_decay"):
        tg.to_keras(more)


def test_on_replicas():
    strategy = mirrored()
    with strategy.scope():
        optimizer, model = tg.Adam(0.1), variables({"kernel": np.ones([2, 3], "float32")})
        optimizer.build(list(model.values()))
    momentum = tg.to_keras(optimizer).variables[2].value
    assert len(strategy.experimental_local_results(momentum)) == 2


class Mine(tg.Adam):
    """A class of a user."""


def same_name():
    return type("Adam", (tg.Adam,), {})()


REFUSED = {
    "no such optimizer": (lambda: tg.RAdam(), "RAdam): Keras has no optimizer that takes its"),
    "other steps": (lambda: tg.Muon(), "Muon): Keras' Muon takes other steps."),
    "wrapper": (lambda: tg.LARC(tg.SGD()), "LARC): Keras has no optimizer"),
    "class of a user": (Mine, "Mine): Keras has no optimizer"),
    "of the same name": (same_name, "Adam): Keras has no optimizer"),
    "multipliers": (
        lambda: tg.Adam(learning_rate_multipliers={"bias": 2.0}),
        "Adam(learning_rate_multipliers={'bias': 2.0})): learning_rate_multipliers would be lost: "
        "Keras has one learning rate for all variables.",
    ),
    "count_rows": (lambda: tg.Adam(count_rows=["table"]), "Adam(count_rows={'table': 1.0})): "),
    "weight_decay_mode": (
        lambda: tg.MixedPrecision(
            tg.Adam(weight_decay=0.1, weight_decay_mode=tg.CautiousDecay()), loss_scale=2.0
        ),
        "MixedPrecision(weight_decay_mode=CautiousDecay())): weight_decay_mode would be lost: ",
    ),
    "clip_rows": (lambda: tg.Adam(clip_rows={"table": 2.0}), "Adam(clip_rows={'table': 2.0})): "),
    "state_dtype": (lambda: tg.Adam(state_dtype="bfloat16"), "Adam(state_dtype='bfloat16')): "),
    "master_weights": (
        lambda: tg.Adam(master_weights=False),
        "Adam(master_weights=False)): master_weights would be lost: Keras rounds weights to the",
    ),
    "raise": (lambda: tg.Adam(nonfinite="raise"), "Adam(nonfinite='raise')): nonfinite would"),
    "schedule of beta_1": (lambda: tg.Adam(beta_1=SCHEDULE), "Adam(beta_1=CosineDecay("),
    "Settable": (
        lambda: tg.SGD(momentum=tg.Settable(0.5)),
        "SGD(momentum=Settable(0.5))): momentum would be lost: Keras takes a number for momentum.",
    ),
    "schedule of decay": (lambda: tg.SGD(weight_decay=SCHEDULE), "SGD(weight_decay=CosineDecay("),
    "SWA": (lambda: tg.SGD(use_ema=tg.averages.SWA()), "SGD(use_ema=SWA("),
    "later EMA": (lambda: tg.SGD(use_ema=tg.averages.EMA(start=9)), "SGD(use_ema=EMA("),
    "EMA of micro-steps": (
        lambda: tg.SGD(use_ema=True, gradient_accumulation_steps=2),
        "SGD(use_ema=True)): use_ema would be lost: under gradient_accumulation_steps Keras",
    ),
    "schedule of micro-steps": (
        lambda: tg.SGD(SCHEDULE, gradient_accumulation_steps=2),
        "SGD(learning_rate=CosineDecay(",
    ),
    "initial_velocity": (
        lambda: tg.RMSprop(initial_velocity=1.0),
        "RMSprop(initial_velocity=1.0)): initial_velocity would be lost: Keras' RMSprop has no suc",
    ),
    "momentum_decay": (lambda: tg.NAdam(momentum_decay=0.004), "NAdam(momentum_decay=0.004)): "),
    "beta_1 of Lion": (
        lambda: tg.Lion(beta_1=0),
        "Lion(beta_1=0.0)): beta_1 would be lost: in Ker",
    ),
    "relative_step": (lambda: tg.Adafactor(relative_step=False), "Adafactor(relative_step=False"),
    "decay of Adafactor": (lambda: tg.Adafactor(weight_decay=0.1), "Adafactor(weight_decay=0.1)"),
    "factored_axes": (lambda: tg.Adafactor(factored_axes="largest"), "Adafactor(factored_axes='la"),
    "weight_decay_rate": (lambda: tg.LAMB(weight_decay_rate=0.1), "LAMB(weight_decay_rate=0.1)): "),
    "decay of LAMB": (lambda: tg.LAMB(weight_decay=0.1), "LAMB(weight_decay=0.1)): weight_decay"),
    "layers of LAMB": (
        lambda: tg.LAMB(exclude_from_weight_decay=["bias"]),
        "LAMB(exclude_from_weight_decay=['bias'])): ",
    ),
    "decay of a wrapper": (
        lambda: tg.wrap(KERAS.SGD(), weight_decay=0.1),
        "SGD(weight_decay=0.1)): weight_decay would be lost: it does not act before the step",
    ),
    "schedule of a wrapper": (
        lambda: type(tg.wrap(KERAS.SGD()))(KERAS.SGD(SCHEDULE), learning_rate=0.1),
        "SGD(learning_rate=0.1)): ",
    ),
    "moving scale": (
        lambda: tg.MixedPrecision(tg.SGD()),
        "MixedPrecision(loss_scale=BackoffScaler())): loss_scale would be lost: the scale of Keras",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refuses_what_would_be_lost(name):
    make, message = REFUSED[name]
    with pytest.raises(ValueError, match=re.escape(f"to_keras({message}")) as error:
        tg.to_keras(make())
    assert "\n" not in str(error.value)
    assert str(error.value).endswith(".")


def test_refuses_a_mesh():
    optimizer = tg.SGD(mesh=tg.dtensor.create_mesh({"batch": -1}))
    with pytest.raises(ValueError, match=r"to_keras\(SGD\(mesh=.*: mesh would be lost"):
        tg.to_keras(optimizer)


class Forgets(KERAS.SGD):
    """An optimizer of a user with an argument that its config lacks."""

    def __init__(self, learning_rate=0.1, power=2, **of_keras):
        super().__init__(learning_rate, **of_keras)
        self.power = power


def test_refuses_what_a_config_leaves_out():
    assert type(tg.to_keras(tg.wrap(Forgets()))) is Forgets
    with pytest.raises(ValueError, match=r"to_keras\(Forgets\): its get_config leaves out power"):
        tg.to_keras(tg.wrap(Forgets(power=3)))


def test_refuses_to_lose_masters():
    model, optimizer = variables({"kernel": np.ones(3, "float16")}), tg.SGD(0.1)
    assert type(tg.to_keras(optimizer)) is KERAS.SGD
    optimizer.build(list(model.values()))
    with pytest.raises(ValueError, match="'kernel' is in half precision, and its float32 master"):
        tg.to_keras(optimizer)


def test_refuses_to_lose_state_that_waits():
    model = variables(weights(SHAPES))
    trained, fresh = tg.SGD(0.1, momentum=0.9), tg.SGD(0.1, momentum=0.9)
    step(trained, model, gradients(2, SHAPES))
    fresh.set_weights([v.numpy() for v in trained.variables])
    with pytest.raises(ValueError, match=r"waits for the optimizer to be built, and would be lost"):
        tg.to_keras(fresh)
    fresh.build(list(model.values()))
    found = tg.to_keras(fresh).variables[-1].numpy()
    np.testing.assert_array_equal(found, trained.variables[-1].numpy())


@pytest.mark.slow
def test_refuses_in_a_function():
    with pytest.raises(ValueError, match=r"to_keras\(SGD\): call it between the steps"):
        tf.function(lambda: tg.to_keras(tg.SGD()))()
