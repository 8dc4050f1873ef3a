"""The engine and its parts, each used alone: what it is handed is all that it needs."""

import copy
import inspect
import pickle
from types import SimpleNamespace

import keras
import numpy as np
import pytest
import tensorflow as tf

import tf_graft as tg
from tf_graft.agn import ScaledAGN
from tf_graft.agn.cells import Cell, CellState, parameter_of
from tf_graft.core import keras_contract
from tf_graft.core.arguments.options import OPTIONS, Common, Options
from tf_graft.core.pipeline import accumulation
from tf_graft.core.pipeline.engine import Engine
from tf_graft.core.state.algorithm import Algorithm
from tf_graft.core.state.optimizer_state import OptimizerState
from tf_graft.core.state.parameters import Parameter, Parameters
from tf_graft.core.state.rule import Rule

COUNTERS = ("iteration", "skipped_steps", "micro_steps", "spoiled_micro_steps")
NAN = np.nan


class Momentum(Algorithm):
    """An algorithm that is no Keras optimizer, with what a rule asks of one."""

    learning_rate = 0.5
    iterations = 0
    weight_decay = learning_rate_multipliers = None
    decay_exclusions = ()

    def __init__(self):
        self.rule = Rule(self)

    def slots(self):
        return {"m": tg.Slot()}

    def step(self, g, w, s, lr, t):
        m = 0.5 * s["m"] + g
        return -lr * m, {"m": m}


class Watching(Momentum):
    """Writes down the number of each update."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def step(self, g, w, s, lr, t):
        self.seen.append(float(t))
        return super().step(g, w, s, lr, t)


def options(**given):
    read = Options.of(tg.SGD(**given))
    return lambda: read


def variables(weights):
    """State on ordinary variables."""
    made = {name: tf.Variable(value) for name, value in values(weights).items()}
    slots, engine = {"m": made["slots/m"]}, {role: made[role] for role in accumulation.SLOTS}
    variable = keras_contract.OwnVariable(initializer=lambda *_, **__: weights, shape=weights.shape)
    parameter = Parameter(variable, "w", slots, engine)
    counters = {role: tf.Variable(0, dtype=tf.int64) for role in COUNTERS}
    return parameter, OptimizerState(Parameters({"w": parameter}), {}, counters)


def cells(weights):
    """The same on cells."""
    like = SimpleNamespace(path="w", variable=SimpleNamespace(constraint=None))
    parameter = parameter_of(like, values(weights))
    counters = {role: Cell(tf.constant(0, tf.int64)) for role in COUNTERS}
    return parameter, CellState(Parameters({"w": parameter}), {}, counters)


def values(weights):
    zeros, marks = tf.zeros(weights.shape), tf.zeros(weights.shape[:1], tf.bool)
    engine = {"gradient_accumulator": zeros, "accumulated_rows": marks}
    return {"weights": weights, "slots/m": zeros} | engine


WEIGHTS = tf.constant([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])
DENSE = [tf.fill((3, 2), x) for x in (1.0, -2.0, NAN, 3.0)]
ROWS = [
    tf.IndexedSlices(tf.constant([[1.0, 1.0], [x, 2.0]]), tf.constant(rows), tf.constant([3, 2]))
    for x, rows in ((1.0, [0, 0]), (NAN, [1, 2]), (2.0, [2, 0]), (3.0, [1, 1]))
]


def run(state_on, gradients, compiled=False, **given):
    """The weights, the slot and the counters after updates with all gradients."""
    parameter, state = state_on(WEIGHTS)
    engine = Engine("Momentum", Momentum().rule, options(**given), state)

    def update(gradient):
        engine.receive([gradient], [parameter], summed=True)

    if compiled and state_on is variables:
        update = tf.function(update)
    for gradient in gradients:
        update(gradient)
    counts = [int(state.count(role)) for role in COUNTERS]
    held = (parameter.variable, parameter.slots["m"])
    return [tf.convert_to_tensor(x).numpy().tolist() for x in held], counts


def test_an_algorithm_needs_no_keras():
    (weights, slot), counts = run(variables, DENSE[:2])
    # m: 1, -1.5; the weights lose half of each
    assert weights == (WEIGHTS + 0.25).numpy().tolist()
    assert slot == [[-1.5, -1.5]] * 3
    assert counts == [2, 0, 0, 0]


GIVEN = {
    "plain": {},
    "clipped": {"global_clipnorm": 1.0},
    "accumulating": {"gradient_accumulation_steps": 2},
    "applying": {"nonfinite": "apply"},
}


@pytest.mark.parametrize("given", GIVEN.values(), ids=GIVEN)
@pytest.mark.parametrize("gradients", [DENSE, ROWS], ids=["dense", "rows"])
def test_cells_hold_what_variables_do(gradients, given):
    expected = run(variables, gradients, compiled=True, **given)
    assert repr(run(cells, gradients, **given)) == repr(expected)
    assert expected[1][0] >= 1


@pytest.mark.slow
def test_cells_go_through_a_loop():
    stacked, given = tf.stack(DENSE), options()

    @tf.function
    def loop():
        parameter, state = cells(WEIGHTS)
        engine = Engine("Momentum", Momentum().rule, given, state)

        def body(i, held):
            state.hold(held)
            engine.receive([stacked[i]], [parameter], summed=True)
            return i + 1, state.tensors()

        start = (tf.constant(0), state.tensors())
        state.hold(tf.while_loop(lambda i, _: i < len(DENSE), body, start)[1])
        return parameter.variable.tensor, state.count("skipped_steps")

    weights, skipped = loop()
    np.testing.assert_array_equal(weights, run(variables, DENSE, compiled=True)[0][0])
    assert int(skipped) == 1


def test_bias_corrections_see_the_counter_that_is_named():
    parameter, state = variables(WEIGHTS)
    counters = {**state.counters, "rounds": tf.Variable(6, dtype=tf.int64)}
    algorithm = Watching()
    held = OptimizerState(state.parameters, {}, counters, done="rounds")
    Engine("Watching", algorithm.rule, options(), held).receive(DENSE[:1], [parameter], summed=True)
    assert algorithm.seen == [7.0]
    assert int(held.count("iteration")) == 1


# The face.


def test_two_classes_stand_between_an_optimizer_and_keras_own():
    between = tg.Adam.__mro__[1 : tg.Adam.__mro__.index(keras.optimizers.Optimizer)]
    assert len(between) <= 2, between


def test_options_are_frozen_and_as_of_now():
    optimizer = tg.SGD(clipnorm=1.0)
    before = Options.of(optimizer)
    optimizer.clipnorm = 2.0
    assert (before.clipnorm, Options.of(optimizer).clipnorm) == (1.0, 2.0)
    with pytest.raises(AttributeError, match="cannot assign to field"):
        before.clipnorm = 3.0


def test_each_option_is_an_argument_an_attribute_and_documented():
    optimizer = tg.SGD()
    documented = inspect.getdoc(Common).partition("Args:\n")[2]
    for name, option in OPTIONS.items():
        assert name in inspect.signature(tg.SGD).parameters
        assert hasattr(optimizer, option.kept_as)
        assert f"\n    {name}: " in f"\n{documented}"
        assert (name in optimizer.get_config()) == option.in_config


@keras.saving.register_keras_serializable("tests")
class OwnAGN(ScaledAGN):
    pass


@pytest.mark.parametrize(("cls", "made"), [(tg.AGN, ScaledAGN), (OwnAGN, OwnAGN)])
def test_an_agn_that_scales_the_loss_is_so_for_keras_and_nothing_else(cls, made):
    plain, scaled = tg.AGN(tg.SGD()), cls(tg.MixedPrecision(tg.SGD(), "backoff"))
    assert type(plain) is tg.AGN
    assert type(scaled) is made
    assert isinstance(scaled, keras.optimizers.LossScaleOptimizer)
    assert not isinstance(scaled, tg.MixedPrecision)
    assert not isinstance(plain, keras.optimizers.LossScaleOptimizer)
    again = keras.optimizers.deserialize(keras.optimizers.serialize(scaled))
    for twin in (again, copy.copy(scaled), pickle.loads(pickle.dumps(scaled))):
        assert type(twin) is type(scaled)
        assert twin.get_config() == scaled.get_config()
    again = keras.optimizers.deserialize(keras.optimizers.serialize(plain))
    assert type(again) is tg.AGN
    assert repr(scaled).startswith(f"{made.__name__}(")
