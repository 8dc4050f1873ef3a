"""MultiOptimizer: each group as its optimizer does alone; what is for all, over all groups."""

import numpy as np
import pytest
import tensorflow as tf

import tf_graft as tg
from support.oracles import Child, Oracle, multi, sgd
from tf_graft.core.errors import CheckpointError

ROWS = [2, 0, 2]


def variables():
    random = np.random.default_rng(0)
    shapes = {"table": (4, 3), "kernel": (3, 2), "bias": (2,)}
    return [tf.Variable(random.normal(size=shapes[p]), name=p) for p in shapes]


def gradients(seed):
    random = np.random.default_rng(seed)
    rows = tf.IndexedSlices(tf.constant(random.normal(size=(3, 3))), ROWS, dense_shape=[4, 3])
    return [rows, tf.constant(random.normal(size=(3, 2))), tf.constant(random.normal(size=2))]


def trained(*optimizers):
    """The variables after three steps by one optimizer, or by one for each variable."""
    weights = variables()
    for seed in range(3):
        given = gradients(seed)
        if len(optimizers) == 1:
            optimizers[0].apply(given, weights)
        else:
            for optimizer, g, w in zip(optimizers, given, weights, strict=True):
                optimizer.apply([g], [w])
    return [w.numpy() for w in weights]


def groups(**of_the_bias):
    return {
        "table": tg.Adagrad(0.5),
        "^bias$": tg.SGD(0.25, momentum=0.9, **of_the_bias),
        ".*": tg.Adam(0.125, weight_decay=0.5),
    }


def alone(**of_the_bias):
    made = groups(**of_the_bias)
    return made["table"], made[".*"], made["^bias$"]


@pytest.mark.parametrize("of_the_bias", [{}, {"clipnorm": 0.125}, {"clipvalue": 0.125}])
def test_equals_an_optimizer_for_each_variable(of_the_bias):
    ours = trained(tg.MultiOptimizer(groups(**of_the_bias)))
    for one, other in zip(ours, trained(*alone(**of_the_bias)), strict=True):
        np.testing.assert_array_equal(one, other)


def test_a_global_norm_is_over_all_groups():
    optimizers = {"^bias$": tg.SGD(0.5), ".*": tg.SGD(0.25)}
    ours = trained(tg.MultiOptimizer(optimizers, global_clipnorm=0.5))
    children = {"^bias$": Child(sgd, 0.5), ".*": Child(sgd, 0.25)}
    start = {v.name.partition(":")[0]: v.numpy() for v in variables()}
    oracle = Oracle(multi, start, 1.0, children, global_clipnorm=0.5)
    for seed in range(3):
        dense = [tf.convert_to_tensor(g).numpy() for g in gradients(seed)]
        oracle.apply(dict(zip(start, dense, strict=True)))
    for one, other in zip(ours, oracle.w.values(), strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=1e-12)


def test_the_learning_rate_is_a_factor_on_all():
    ours = trained(tg.MultiOptimizer({".*": tg.SGD(0.5, momentum=0.9)}, learning_rate=0.5))
    for one, other in zip(ours, trained(tg.SGD(0.25, momentum=0.9)), strict=True):
        np.testing.assert_array_equal(one, other)


def test_a_group_that_spans_variables_waits_for_all_of_its_own():
    def graft():
        return tg.AdaGraft(tg.Adam(0.1), tg.SGD(1.0), use_global_norm=True)

    weights, given = variables(), gradients(0)
    tg.MultiOptimizer({"kernel": tg.SGD(0.5), ".*": graft()}).apply(given, weights)
    by_hand = variables()
    tg.SGD(0.5).apply([given[1]], [by_hand[1]])
    graft().apply([given[0], given[2]], [by_hand[0], by_hand[2]])
    for one, other in zip(weights, by_hand, strict=True):
        np.testing.assert_array_equal(one, other)


def test_weight_decay_is_set_on_all_optimizers():
    optimizer = tg.MultiOptimizer(
        {"bias": "sgd", ".*": tg.SGD(weight_decay=0.5)}, weight_decay=0.25
    )
    assert [child.weight_decay for child in optimizer.groups.values()] == [0.25, 0.25]
    optimizer.groups["bias"].weight_decay = 0.0
    assert optimizer.weight_decay is None


def test_the_table_shows_each_groups_rate():
    optimizer = tg.MultiOptimizer(groups(), learning_rate=0.5, exclude_from_weight_decay=["bias"])
    optimizer.build(variables())
    lines = [line.split() for line in optimizer.table().splitlines()[1:]]
    rates = {line[0]: float(next(x for x in line[1:] if x.startswith("0."))) for line in lines}
    assert rates == {"table": 0.25, "kernel": 0.0625, "bias": 0.125}


@pytest.mark.parametrize(
    ("optimizers", "message"),
    [
        (lambda: {"bias": "sgd"}, r"none of the 1 patterns matches 'table'; end with '\.\*' for"),
        (lambda: {"foo": "sgd", ".*": "sgd"}, r"\{'foo': \.\.\.\}\): the pattern matches none of"),
        (lambda: {".*": "sgd", "bias": "sgd"}, r"an earlier pattern matches every variable"),
        (lambda: dict.fromkeys(["bias", ".*"], tg.SGD()), r"the same object is given twice"),
        (
            lambda: {".*": tg.SGD(use_ema=True)},
            r"\['\.\*'\]=SGD\(use_ema=True\)\): use_ema is one",
        ),
    ],
)
def test_refuses(optimizers, message):
    with pytest.raises(ValueError, match=rf"^MultiOptimizer\(optimizers.*{message}"):
        tg.MultiOptimizer(optimizers()).build(variables())


def test_a_load_says_nothing_of_a_variable_that_has_no_state(tmp_path):
    weights = variables()
    optimizer = tg.MultiOptimizer({"kernel": tg.SGD(0.5), ".*": tg.Adam(0.25)})
    optimizer.build(weights)
    saved = tf.train.Checkpoint(optimizer=optimizer)
    saved.read(saved.write(str(tmp_path / "checkpoint"))).assert_consumed()


def test_state_of_groups_in_another_order_is_refused():
    """Otherwise the rates of the groups would change places."""
    first, second = variables(), variables()
    rates = {"bias": 0.001, "kernel": 0.1}
    made = [
        tg.MultiOptimizer({key: tg.SGD(rates[key], momentum=0.9) for key in keys} | {".*": "sgd"})
        for keys in (("bias", "kernel"), ("kernel", "bias"))
    ]
    store = {}
    made[0].build(first)
    made[1].build(second)
    made[0].save_own_variables(store)
    with pytest.raises(CheckpointError, match=r"entries differ.*/group\d/momentum"):
        made[1].load_own_variables(store)
