"""What each further variable adds: few operations to a traced step, and the same to building."""

import sys
from collections import Counter

import pytest
import tensorflow as tf

import tf_graft as tg
from tf_graft.core.pipeline import matching
from tf_graft.core.tensors import memo

# What a step does for each variable where nothing is clipped or decays: it judges, and applies.
OPERATIONS = {
    "Adam": (tg.Adam, {}, ["L2Loss", "ResourceApplyAdam"]),
    "amsgrad": (tg.Adam, {"amsgrad": True}, ["L2Loss", "ResourceApplyAdamWithAmsgrad"]),
    "SGD": (tg.SGD, {}, ["L2Loss", "ResourceApplyGradientDescent"]),
    "momentum": (tg.SGD, {"momentum": 0.9}, ["L2Loss", "ResourceApplyKerasMomentum"]),
    "Adagrad": (tg.Adagrad, {}, ["L2Loss", "ResourceApplyAdagradV2"]),
    "Adadelta": (tg.Adadelta, {}, ["L2Loss", "ResourceApplyAdadelta"]),
    "unchecked": (tg.Adam, {"nonfinite": "apply"}, ["ResourceApplyAdam"]),
}


# How many operations a step adds at most for each variable in other stages of the pipeline.
CEILINGS = {
    "EMA": (tg.Adam, {"use_ema": True}, 12),
    "accumulation": (tg.Adam, {"gradient_accumulation_steps": 2}, 11),
    "global_clipnorm": (tg.Adam, {"global_clipnorm": 1.0}, 6),
    "scratch": (tg.RMSprop, {}, 6),
}


def variables(count):
    return [tf.Variable(tf.zeros([3])) for _ in range(count)]


def operations(optimizer, count):
    """The operations of a step of so many variables, by type, but for what is passed in."""
    weights = variables(count)
    optimizer.build(weights)
    step = tf.function(lambda *gradients: optimizer.apply(gradients, weights), autograph=False)
    graph = step.get_concrete_function(*[tf.TensorSpec([3])] * count).graph.as_graph_def()
    nodes = [*graph.node, *(n for f in graph.library.function for n in f.node_def)]
    return Counter(node.op for node in nodes if node.op != "Placeholder")


@pytest.mark.parametrize(("cls", "arguments", "each"), OPERATIONS.values(), ids=OPERATIONS)
def test_a_variable_adds_few_operations(cls, arguments, each):
    few, many = (operations(cls(**arguments), count) for count in (2, 5))
    many.subtract(few)
    assert {op: count for op, count in many.items() if count} == dict.fromkeys(each, 3)


@pytest.mark.parametrize(("cls", "arguments", "ceiling"), CEILINGS.values(), ids=CEILINGS)
def test_a_stage_adds_few_operations_for_a_variable(cls, arguments, ceiling):
    few, many = (operations(cls(**arguments), count).total() for count in (2, 5))
    assert many - few <= 3 * ceiling


# How many it adds where many variables of a shape share the code of their steps.
SHARED = {
    "LAMB": (tg.LAMB, 3),  # with the handle of a scratch variable
    "LARS": (tg.LARS, 2),
    "Lion": (tg.Lion, 6),
    "NAdam": (tg.NAdam, 3),
    "AdaGraft": (lambda: tg.AdaGraft(tg.LAMB(), tg.Lion()), 12),
    "LARC": (lambda: tg.LARC(tg.SGD(momentum=0.9)), 10),
}


@pytest.mark.slow
@pytest.mark.parametrize(("make", "ceiling"), SHARED.values(), ids=SHARED)
def test_many_variables_share_code(make, ceiling):
    few, many = (operations(make(), count).total() for count in (20, 30))
    assert many - few <= 10 * ceiling


def calls(run):
    """How many functions of Python and C `run` calls."""
    count = 0

    def profile(frame, event, argument):
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(profile)
    try:
        run()
    finally:
        sys.setprofile(None)
    return count


@pytest.mark.slow
def test_each_variable_is_built_with_as_many_calls():
    def build(count):
        weights = variables(count)  # all of one name
        optimizer = tg.Adam()
        return calls(lambda: optimizer.build(weights))

    build(1)
    few, more, most = map(build, (10, 40, 70))
    assert most - more == pytest.approx(more - few, rel=0.01)


class Key:
    """A key that counts how often it is compared."""

    compared = 0

    def __hash__(self):
        return id(self)

    def __eq__(self, other):
        Key.compared += 1
        return self is other


def test_keys_are_not_compared_with_each_other():
    given = variables(20)
    matching.refuse_untrainable("Adam.build", given, [Key() for _ in given])
    assert Key.compared == 0


def test_once_for_all_variables_of_an_update():
    made = []

    @memo.memoized
    def double(x, factor):
        made.append(x)
        return factor * x

    a, b = tf.constant(1.0), tf.constant(1.0)
    with memo.for_one_update():
        assert double(a, 2.0) is double(a, 2.0)
        assert double(a, 2.0) is not double(b, 2.0)
        assert double(a, 0.0) is not double(a, -0.0)
        assert len(made) == 4
        graph = tf.function(lambda: made.append(double(a, 2.0)), autograph=False)
        graph.get_concrete_function()
        assert tf.is_symbolic_tensor(made[-1])  # and not the one from outside the function
    assert double(a, 2.0) is not double(a, 2.0)
