"""What is said of an argument that comes too late, or that matches nothing."""

import keras
import pytest
import tensorflow as tf

import tf_graft as tg


def kernel_and_bias():
    return [tf.Variable([1.0], name="kernel"), tf.Variable([1.0], name="bias")]


def built(optimizer):
    optimizer.build(kernel_and_bias())
    return optimizer


SET = {
    "momentum": (lambda: built(tg.SGD(momentum=0.9)), 0.5),
    "beta_1": (lambda: built(tg.Adam()), 0.5),
    "weight_decay": (lambda: built(tg.AdamW()), 0.5),
    "clipnorm": (lambda: built(tg.Adam()), 1.0),
    "nonfinite": (lambda: built(tg.Adam()), "apply"),
    "decay_exclusions": (lambda: built(tg.AdamW()), ["bias"]),
}


@pytest.mark.parametrize("name", SET)
def test_an_argument_is_fixed_once_the_optimizer_is_built(name):
    make, value = SET[name]
    optimizer = make()
    before = getattr(optimizer, name)
    setattr(optimizer, name, before)  # which changes nothing
    with pytest.raises(ValueError, match=r"built with .* compiled step would not see the change"):
        setattr(optimizer, name, value)
    assert getattr(optimizer, name) == before


def test_an_argument_of_a_child_is_fixed_too():
    graft = built(tg.AdaGraft(tg.SGD(momentum=0.9), tg.Adam()))
    with pytest.raises(
        ValueError, match=r"^SGD\.momentum = 0\.5: the optimizer was built with 0\.9"
    ):
        graft.magnitude_optimizer.momentum = 0.5
    larc = built(tg.LARC(tg.SGD(weight_decay=0.1)))
    with pytest.raises(ValueError, match=r"^SGD\.weight_decay = 0\.5"):
        larc.weight_decay = 0.5
    graft.magnitude_optimizer.learning_rate = 0.25  # which is a variable
    assert float(graft.magnitude_optimizer.learning_rate) == 0.25


def test_an_argument_can_be_set_before():
    optimizer = tg.SGD(1.0, momentum=0.9)
    optimizer.momentum = 0.5
    variable = tf.Variable([0.0])
    for _ in range(2):
        optimizer.apply([tf.constant([1.0])], [variable])
    assert variable.numpy() == [-2.5]


REFUSED = {
    "sparse": (lambda: tg.AdamW(use_ema=True, sparse="lazy_decay"), "lazy"),
    "weight_decay_mode": (
        lambda: tg.RadialBrake("sgd", weight_decay_mode="cautious_decay"),
        None,
    ),
    "state_dtype": (lambda: tg.SGD(state_dtype="bfloat16"), None),
    "clip_rows": (lambda: tg.SGD(clip_rows={"rows": 1.0}), None),
}


@pytest.mark.parametrize("inside", [False, True], ids=["alone", "as a child"])
@pytest.mark.parametrize("name", REFUSED)
def test_an_argument_can_be_set_right_after_a_refusal(name, inside):
    make, value = REFUSED[name]
    optimizer = make()
    outer = tg.Cautious(optimizer) if inside else optimizer
    variables = [tf.Variable([[1.0]], name="table")]
    with pytest.raises(ValueError, match=name):
        outer.build(variables)
    setattr(outer, name, value)
    outer.apply([tf.ones([1, 1])], variables)
    assert variables[0].numpy() < 1.0


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: tg.SGD(weight_decay=0.1, exclude_from_weight_decay=["bais"]),
            r"^SGD\(exclude_from_weight_decay=\.\.\.\): the pattern 'bais' matches none of the 2 "
            r"variables; the nearest path is 'bias'\.$",
        ),
        (
            lambda: tg.LARS(exclude_from_layer_adaptation=["kernels"]),
            r"^LARS\(exclude_from_layer_adaptation=\.\.\.\): the pattern 'kernels' .* 'kernel'\.$",
        ),
        (lambda: tg.LARC("sgd", exclude_from_layer_adaptation=["bais"]), "^LARC"),
        (lambda: tg.LARC(tg.AdamW(exclude_from_weight_decay=["bais"])), "^AdamW"),
        (lambda: tg.AGN("sgd", center_optimizer=tg.LAMB(exclude_from_weight_decay=["x"])), "^LAMB"),
    ],
)
def test_a_pattern_that_matches_nothing_is_warned_of(make, message):
    with pytest.warns(UserWarning, match=message) as warned:
        built(make())
    assert len(warned) == 1


def test_variables_of_a_clone_are_told_from_unknown_ones():
    model = keras.Sequential([keras.Input([2]), keras.layers.Dense(1, name="dense")])
    clone = keras.models.clone_model(model)
    optimizer = tg.SGD()
    optimizer.build(model.trainable_variables)
    gradients = [tf.zeros(v.shape) for v in clone.trainable_variables]
    with pytest.raises(ValueError, match=r"variables of the same names: '.*dense/kernel' .* new"):
        optimizer.apply(gradients, clone.trainable_variables)
    stranger = keras.Variable([1.0], name="stranger")
    with pytest.raises(ValueError, match="'stranger' is not one of the 2 variables"):
        optimizer.apply([tf.zeros(1)], [stranger])


def test_agn_copies_a_callable_rate_and_a_schedule_of_ones_own():
    class Halving(keras.optimizers.schedules.LearningRateSchedule):
        def __call__(self, step):
            return 0.5 ** (tf.cast(step, tf.float32) + 1)

    rates = iter([0.5, 0.5, 0.25, 0.25])
    for rate in (lambda: next(rates), Halving()):
        agn = tg.AGN(tg.LARC(tg.SGD(rate), eta=100.0), communication_period=1)
        assert agn.center_optimizer.optimizer.learning_rate is not None
    w = tf.Variable([1.0])
    agn.apply([tf.constant([1.0])], [w])  # the center is at its first step, at 0.5
    assert w.numpy() == [0.5]
    workers = tg.AGN(tg.SGD(lambda: 0.5), num_worker=2).workers()
    assert [worker.learning_rate for worker in workers] == [0.5, 0.5]


def test_the_description_of_a_wrapped_optimizer_makes_it():
    optimizer = tg.wrap(keras.optimizers.AdamW(0.25, beta_1=0.5, clipnorm=2.0), nonfinite="raise")
    said = repr(optimizer)
    assert said == (
        "wrap(optimizer=keras.optimizers.AdamW(learning_rate=0.25, beta_1=0.5), clipnorm=2.0, "
        "nonfinite='raise')"
    )
    again = eval(said, {"wrap": tg.wrap, "keras": keras})
    assert repr(again) == said
