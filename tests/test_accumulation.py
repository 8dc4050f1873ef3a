"""Gradient accumulation whose micro-steps do not all have a gradient for each variable."""

import numpy as np
import pytest
import tensorflow as tf

import tf_graft as tg
from support import samples
from support.replicas import mirrored

pytestmark = pytest.mark.filterwarnings("ignore:.*no gradient for:UserWarning")

EXECUTIONS = {
    "eager": lambda f: f,
    "graph": tf.function,
    "xla": lambda f: tf.function(f, jit_compile=True),
}
SHAPES = {"kernel": (3, 2), "bias": (2,), "head": (2, 2), "table": (5, 2)}
# The variables that have a gradient in each micro-step; two make an update.
STEPS = [
    ["kernel", "table"],
    ["kernel", "bias"],
    ["bias", "head"],
    ["kernel"],
    ["kernel", "bias", "head", "table"],
    ["kernel", "bias", "head", "table"],
]
MADE = {
    "sgd": lambda **options: tg.SGD(0.1, momentum=0.9, **options),
    "adam": lambda **options: tg.Adam(0.1, clipnorm=1.0, **options),
    "adamw_averaged": lambda **options: tg.AdamW(0.1, use_ema=True, **options),
    "graft": lambda **options: tg.AdaGraft(tg.Adam(0.1), tg.SGD(0.1), **options),
}


def variables():
    rng = np.random.default_rng(0)
    return {
        path: tf.Variable(rng.normal(size=shape).astype("float32"), name=path)
        for path, shape in SHAPES.items()
    }


def gradient(number, path):
    """A dense array; that of the table has its rows 1 and `number % 5` only."""
    g = np.random.default_rng(100 + number).normal(size=SHAPES[path]).astype("float32")
    if path == "table":
        g[[row for row in range(5) if row not in (1, number % 5)]] = 0
    return g


def given(number, path):
    """The gradient as a micro-step has it: None, dense, or with a repeated row."""
    if path not in STEPS[number]:
        return None
    g = gradient(number, path)
    if path != "table":
        return tf.constant(g)
    ids = [1, number % 5, 1]
    share = np.array([[0.5], [1.0], [0.5]], "float32")
    return tf.IndexedSlices(tf.constant(g[ids] * share), tf.constant(ids), (5, 2))


def mean(first, path):
    """The mean over two micro-steps as the update of all at once has it."""
    present = [n for n in (first, first + 1) if path in STEPS[n]]
    if not present:
        return None
    g = tf.constant(sum(gradient(n, path) for n in present) / 2)
    rows = sorted({row for n in present for row in (1, n % 5)})
    if path != "table":
        return g
    return tf.IndexedSlices(tf.gather(g, rows), tf.constant(rows), (5, 2))


@pytest.mark.parametrize("execution", samples.with_slow(EXECUTIONS, ["eager"]))
@pytest.mark.parametrize("name", MADE)
def test_a_gradient_of_an_earlier_micro_step_takes_part(name, execution):
    found, expected = variables(), variables()
    optimizer = MADE[name](gradient_accumulation_steps=2)
    optimizer.build(list(found.values()))
    for number in range(len(STEPS)):
        step = EXECUTIONS[execution](
            lambda number=number: optimizer.apply(
                [given(number, path) for path in SHAPES], list(found.values())
            )
        )
        step()
    reference = MADE[name]()
    reference.build(list(expected.values()))
    for first in range(0, len(STEPS), 2):
        reference.apply([mean(first, path) for path in SHAPES], list(expected.values()))
    assert int(optimizer.iterations.numpy()) == 3
    for path in SHAPES:
        a, b = found[path].numpy(), expected[path].numpy()
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6, err_msg=path)


@pytest.mark.parametrize("name", samples.BY_NAME)
def test_what_has_no_gradient_stays_as_it_is(name):
    """The head has none in the first update, the table none in the second."""
    sample = samples.BY_NAME[name]
    found, expected = variables(), variables()
    optimizer, reference = sample.make(gradient_accumulation_steps=2), sample.make()
    optimizer.build(list(found.values()))
    reference.build(list(expected.values()))
    for number in range(4):
        optimizer.apply([given(number, path) for path in SHAPES], list(found.values()))
    for first in (0, 2):
        reference.apply([mean(first, path) for path in SHAPES], list(expected.values()))
    for path in SHAPES:
        a, b = found[path].numpy(), expected[path].numpy()
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6, err_msg=path)
    for one, other in zip(optimizer.state.parameters, reference.state.parameters, strict=True):
        for role, slot in other.slots.items():
            right = slot.numpy()
            smallest = 1e-5 * np.abs(right).max(initial=0)
            value = one.slots[role].numpy()
            np.testing.assert_allclose(value, right, 1e-3, smallest, err_msg=slot.path)


@pytest.mark.slow
def test_a_scalar_without_state_stays_as_it_is():
    scale = tf.Variable(1.0, name="scale")
    head, body = (tf.Variable([1.0], name=name) for name in ("head", "body"))
    optimizer, one = tg.SGD(0.5, gradient_accumulation_steps=2), tf.constant([1.0])
    optimizer.build([scale, head, body])
    step = tf.function(lambda *gradients: optimizer.apply(gradients, [scale, head, body]))
    step(None, one, None)
    step(None, None, one)
    assert [float(scale), *head.numpy(), *body.numpy()] == [1.0, 0.75, 0.75]
    step(tf.constant(1.0), one, None)
    step(None, None, one)
    assert [float(scale), *head.numpy(), *body.numpy()] == [0.75, 0.5, 0.5]


def test_a_push_is_also_of_what_had_no_gradient_in_the_last_update():
    """With `sparse="exact"` the table takes part in the last update without a gradient."""
    a, table = tf.Variable([0.0], name="a"), tf.Variable(tf.zeros([3, 1]), name="table")
    b, one = tf.Variable([0.0], name="b"), tf.constant([1.0])
    options = {"sparse": "exact", "gradient_accumulation_steps": 2}
    local = tg.Adagrad(1.0, weight_decay=0.1, **options)
    optimizer = tg.AGN(local, 1, 2, center_optimizer=tg.SGD(1.0), mode="updates")
    optimizer.build([a, b, table])
    rows = tf.IndexedSlices(tf.constant([[2.0]]), tf.constant([1]), (3, 1))
    for gradients in [(one, one, rows)] * 2 + [(one, None, None), (None, one, None)]:
        optimizer.apply(gradients, [a, b, table])
    center = optimizer.center_values()
    np.testing.assert_allclose(center["table"][1], table.numpy()[1])
    assert center["table"][1] < -0.4  # the mean over two updates, of which one has a step


def test_whole_gradients_are_zero_where_there_was_none():
    """Muon's steps need the whole matrix, so its momentum moves on."""
    w, head = (tf.Variable(np.eye(3, dtype="float32"), name=name) for name in ("w", "head"))
    w2, head2 = (tf.Variable(np.eye(3, dtype="float32"), name=name) for name in ("w", "head"))
    one, optimizer = tf.ones([3, 3]), tg.Muon(0.1, gradient_accumulation_steps=2)
    optimizer.build([w, head])
    for gradients in [(one, one), (one, one), (one, None), (None, one)]:
        optimizer.apply(gradients, [w, head])
    reference = tg.Muon(0.1)
    for scale in (1.0, 0.5):
        reference.apply([scale * one, scale * one], [w2, head2])
    np.testing.assert_allclose(w.numpy(), w2.numpy(), rtol=1e-5)
    np.testing.assert_allclose(head.numpy(), head2.numpy(), rtol=1e-5)


def test_a_spoiled_update_leaves_nothing_for_the_next():
    a, b = tf.Variable([0.0], name="a"), tf.Variable([0.0], name="b")
    one, optimizer = tf.constant([1.0]), tg.SGD(1.0, gradient_accumulation_steps=2)
    optimizer.build([a, b])
    for gradients in [(one, None), (None, one * np.nan), (one, one), (one, one)]:
        optimizer.apply(gradients, [a, b])
    assert [*a.numpy(), *b.numpy()] == [-1, -1]
    assert [int(optimizer.iterations.numpy()), int(optimizer.skipped_steps.numpy())] == [1, 1]


@pytest.mark.parametrize(
    "make",
    [
        lambda: tg.SGD(1.0, gradient_accumulation_steps=2),
        lambda: tg.AGN(tg.SGD(1.0), communication_period=2),
    ],
)
def test_on_two_replicas(make):
    strategy = mirrored()
    with strategy.scope():
        a, table = tf.Variable([0.0, 0.0]), tf.Variable(tf.zeros([4, 1]))
        optimizer = make()
        optimizer.build([a, table])

    @tf.function
    def step(first):
        def run():
            share = tf.constant([0.5, 0.5])  # of a sum over two replicas
            rows = tf.IndexedSlices(tf.constant([[0.5]]), tf.constant([2]), (4, 1))
            optimizer.apply([share, None] if not first else [None, rows], [a, table])

        strategy.run(run)

    for first in (True, False, False, True):
        step(first)
    optimizer.finalize_variable_values([a, table])
    np.testing.assert_allclose(a.numpy(), [-1.0, -1.0])
    np.testing.assert_allclose(table.numpy()[:, 0], [0, 0, -1.0, 0])
