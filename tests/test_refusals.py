"""G24, G26 to G28, G33, G34: what is refused, how, and that nothing has changed by then."""

import copy
import inspect
import json
import math
import re

import keras
import numpy as np
import pytest
import tensorflow as tf

import tf_graft
from support.samples import (
    COMMON_NAMES,
    DECAYING_THEMSELVES,
    OPTIONS,
    RATE,
    SAMPLES,
    Refusal,
    assert_same_state,
    each,
    each_in_turn,
    gradients,
    having,
    needed_by,
    of_each_class,
    slices,
    state_of,
    variables,
    weights,
)
from tf_graft import listing
from tf_graft.core.arguments import registry

# G33: hyperparameters. Those of one algorithm are on its row in `samples.py`.

NAN, INF = float("nan"), float("inf")


def _values(name, must, *wrong):
    return [
        Refusal({name: value}, ValueError, f"({name}={value}): {name} must {must}.")
        for value in wrong
    ]


AVERAGES = "be True or False, or averages such as tf_graft.averages.SWA()"


def _types(name, must, *wrong):
    return [
        Refusal({name: value}, TypeError, f"({name}={value!r}): {name} must {must}.")
        for value in wrong
    ]


def _choices(name, listed, *wrong):
    return [
        Refusal({name: value}, ValueError, f"({name}={value!r}): {name} must be one of {listed}.")
        for value in wrong
    ]


COMMON_REFUSALS = [
    *_values("learning_rate", "be finite and at least 0", -1, -1e-9, NAN, INF),
    *_types(
        "learning_rate",
        "be a number or a schedule; tf_graft.schedules.get makes a schedule by name",
        "0.1",
    ),
    *_types("learning_rate", "be a number", True, None, [0.1], np.array([0.1])),
    *_values("weight_decay", "be finite and at least 0", -0.1, NAN, INF),
    *_types("weight_decay", "be a number", "0.1", True),
    *[
        refusal
        for clip in ("clipnorm", "clipvalue", "global_clipnorm")
        for refusal in (
            *_values(clip, "be finite and above 0", 0, -1, NAN, INF),
            *_types(clip, "be a number", "1", True),
        )
    ],
    Refusal(
        {"clipnorm": 1, "clipvalue": 0.5},
        ValueError,
        "(clipnorm=1, clipvalue=0.5): at most one way of clipping can be given.",
    ),
    Refusal(
        {"clipnorm": 1, "global_clipnorm": 2},
        ValueError,
        "(clipnorm=1, global_clipnorm=2): at most one way of clipping can be given.",
    ),
    Refusal(
        {"clipvalue": 1, "global_clipnorm": 2},
        ValueError,
        "(clipvalue=1, global_clipnorm=2): at most one way of clipping can be given.",
    ),
    *_types("use_ema", AVERAGES, 1, "yes", None),
    *_values("ema_momentum", "lie in [0, 1)", -0.1, 1, 1.1, NAN),
    *_types("ema_momentum", "be a number", "0.9", None),
    *_values("ema_overwrite_frequency", "be at least 1", 0, -3),
    *_values("ema_overwrite_frequency", "be a whole number", 1.5),
    *_types("ema_overwrite_frequency", "be a number", "2", True),
    *_values("loss_scale_factor", "be finite and above 0", 0, -1, NAN, INF),
    *_types("loss_scale_factor", "be a number", "2", True),
    *_values("gradient_accumulation_steps", "be at least 2", 1, 0, -2),
    *_values("gradient_accumulation_steps", "be a whole number", 2.5),
    *_types("gradient_accumulation_steps", "be a number", "2", True),
    *_choices("jit_compile", "'auto', True, False", "yes", None, 1, 0),
    *_choices("sparse", "'lazy', 'exact', 'lazy_decay'", "dense", None, True),
    *_choices("nonfinite", "'skip', 'raise', 'apply'", "ignore", None, False),
    *_choices("state_dtype", "None, 'bfloat16', 'bfloat16+8'", "float16", False, 16),
    *_types("master_weights", "be True or False", "bfloat16", None, 0),
    *_types("exclude_from_weight_decay", "be a list of patterns", "bias", 3),
    Refusal(
        {"exclude_from_weight_decay": ["bias", 3]},
        TypeError,
        "(exclude_from_weight_decay=['bias', 3]): 3 is not a pattern (a string).",
    ),
    Refusal(
        {"exclude_from_weight_decay": ["bias", "("]},
        ValueError,
        "(exclude_from_weight_decay=['bias', '(']): '(' is not a regular expression: missing ) at "
        "position 1.",
    ),
    *_types(
        "weight_decay_mode",
        "be None, tf_graft.CautiousDecay() or tf_graft.CorrectedDecay(max_learning_rate=...)",
        *(0.5, ["cautious_decay"], True),
    ),
    Refusal(
        {"weight_decay_mode": "none"},
        ValueError,
        "(weight_decay_mode='none'): this config describes no mode of weight decay; its 'name' "
        "must be 'cautious_decay' or 'corrected_decay'.",
    ),
    *_types("clip_rows", "be a dict of numbers or CowClip by pattern", 0.5, ["a"]),
    *_types("count_rows", "be a list of patterns, or a dict of multipliers by pattern", 0.5, "a"),
    *_types("learning_rate_multipliers", "be a dict of multipliers by pattern", 0.5, [("a", 1)]),
    *[
        Refusal(
            {"learning_rate_multipliers": {"a": value}},
            error,
            f"(learning_rate_multipliers['a']={value!r}): learning_rate_multipliers['a'] must "
            f"{must}.",
        )
        for error, must, values in (
            (ValueError, "be finite and at least 0", (-1, NAN, INF)),
            (TypeError, "be a number", ("1", True, None)),
        )
        for value in values
    ],
    *[
        Refusal(
            {"name": name},
            ValueError,
            f"(name={name!r}): name must be made of letters, digits, '_', '.' and '-'.",
        )
        for name in ("", "a/b", "two words", 3)
    ],
    Refusal({"mesh": 8}, TypeError, "(mesh=8): mesh must be a Mesh or DeviceMesh."),
    Refusal(
        {"clip_norm": 1},
        TypeError,
        "(clip_norm=...): there is no such argument; did you mean clipnorm?",
    ),
    Refusal(
        {"lr": 1, "qqq": 2},
        TypeError,
        "(lr=...): there is no such argument; did you mean learning_rate?",
    ),
    Refusal(
        {"decay": 0.5},  # of Keras 2, TensorFlow Addons and the Model Garden
        TypeError,
        "(decay=...): there is no such argument; to lower the learning rate, give a schedule: "
        "keras.optimizers.schedules.InverseTimeDecay(learning_rate, 1, decay).",
    ),
    Refusal({"qqq": 2}, TypeError, "(qqq=...): there is no such argument."),
]


def assert_refused(cls, refusal, owner="", **needed):
    with pytest.raises(refusal.error) as caught:
        cls(**(needed | refusal.kwargs))
    assert type(caught.value) is refusal.error
    assert str(caught.value) == owner + refusal.message


@pytest.mark.parametrize("name", dict.fromkeys(next(iter(r.kwargs)) for r in COMMON_REFUSALS))
def test_refuses_common_arguments(name):
    for refusal in COMMON_REFUSALS:
        if next(iter(refusal.kwargs)) == name:
            assert_refused(tf_graft.SGD, refusal, "SGD")


@each(of_each_class())
def test_refuses_common_arguments_under_its_own_name(sample):
    """Every class hands its common arguments on to the same checks."""
    owner = sample.cls.__name__
    for refusal in (
        COMMON_REFUSALS[0],
        Refusal({"clipnorm": 0}, ValueError, "(clipnorm=0): clipnorm must be finite and above 0."),
    ):
        assert_refused(sample.cls, refusal, owner, **sample.kwargs)


@pytest.mark.parametrize("sample", having("refuses"), ids=lambda sample: sample.name)
def test_refuses_own_arguments(sample):
    for refusal in sample.refuses:
        assert_refused(sample.cls, refusal, **needed_by(sample))


def test_every_optimizer_is_a_sample():
    ours = {cls for cls in registry.OURS.classes() if cls.__module__.startswith("tf_graft.")}
    with_tests_of_their_own = {tf_graft.AGN, tf_graft.LayerwiseRates, tf_graft.MixedPrecision}
    assert ours - {sample.cls for sample in SAMPLES} == with_tests_of_their_own


def test_every_number_has_its_refusals():
    """An argument of a constructor that no refusal names has been forgotten in the table."""
    for cls in {sample.cls for sample in SAMPLES}:
        own = set(inspect.signature(cls.__init__).parameters) - {"self", "learning_rate", "common"}
        refused = {name for s in SAMPLES if s.cls is cls for r in s.refuses for name in r.kwargs}
        assert own <= refused, cls
    common = {name for refusal in COMMON_REFUSALS for name in refusal.kwargs}
    assert {*COMMON_NAMES, "learning_rate"} <= common


@pytest.mark.parametrize(
    "rate", [1, 0, np.float32(0.5), np.float64(0.5), np.int64(1), np.array(0.5)], ids=repr
)
def test_numbers_are_accepted_as_numbers(rate):
    optimizer = tf_graft.SGD(rate, clipnorm=np.float32(2), ema_overwrite_frequency=3.0)
    assert float(optimizer.learning_rate.numpy()) == float(rate)
    json.dumps(optimizer.get_config())  # plain values
    optimizer.learning_rate = rate
    assert float(optimizer.learning_rate.numpy()) == float(rate)


@pytest.mark.parametrize("rate", [-1, NAN, INF, "0.1", True, None], ids=repr)
def test_a_rate_is_checked_when_it_is_set(rate):
    optimizer = tf_graft.SGD(0.25)
    with pytest.raises((ValueError, TypeError), match=r"^SGD\(learning_rate="):
        optimizer.learning_rate = rate
    assert float(optimizer.learning_rate.numpy()) == 0.25


# G26


def refused_variables():
    """Made in the test: a string variable cannot be a `keras.Variable`."""
    return [
        tf.Variable([1, 2], name="counts"),
        tf.Variable([True, False], name="counts"),
        tf.Variable(["a", "b"], name="counts"),
        tf.Variable([1 + 2j], name="counts"),
    ]


@pytest.mark.parametrize("kind", range(4), ids=["int32", "bool", "string", "complex128"])
def test_refuses_to_train_what_is_not_floating_point(kind, request):
    good, bad = tf.Variable([1.0]), refused_variables()[kind]
    optimizer = tf_graft.Adam(RATE)
    dtype = bad.dtype.name
    message = (
        f"Adam.build: 'counts' is of dtype {dtype}; only floating point variables can be trained."
    )
    for call in (
        lambda: optimizer.build([good, bad]),
        lambda: optimizer.apply([tf.constant([1.0]), tf.constant([1.0, 1.0])], [good, bad]),
    ):
        before = state_of(optimizer, good)
        with pytest.raises(TypeError, match=f"^{re.escape(message)}$"):
            call()
        assert not optimizer.built
        assert_same_state(state_of(optimizer, good), before)


# G27

SHAPES = {"kernel": (2, 3), "bias": (3,)}


def assert_refuses_call(optimizer, call, error, message):
    """`call(model)` raises exactly so, and no variable has changed."""
    model = list(variables(weights(SHAPES)).values())
    optimizer.apply(list(gradients(1, SHAPES)[0].values()), model)
    before = state_of(optimizer, *model)
    with pytest.raises(error) as caught:
        call(optimizer, model)
    assert_same_state(state_of(optimizer, *model), before)
    assert type(caught.value) is error
    assert re.fullmatch(
        re.escape(message).replace("OWNER", type(optimizer).__name__), str(caught.value)
    )


def ones(*shape, dtype="float32"):
    return tf.ones(shape, dtype)


def stranger(shape=(2, 3)):
    return keras.Variable(np.ones(shape, "float32"), name="stranger")


CALLS = {
    "wrong shape that would broadcast": (
        lambda o, m: o.apply([ones(3), ones(3)], m),
        ValueError,
        "OWNER.apply: the gradient of 'kernel' has shape (3,), the variable has shape (2, 3).",
    ),
    "wrong shape of the last": (
        lambda o, m: o.apply([ones(2, 3), ones()], m),
        ValueError,
        "OWNER.apply: the gradient of 'bias' has shape (), the variable has shape (3,).",
    ),
    "wrong width of rows": (
        lambda o, m: o.apply([slices([0], np.ones([1, 2], "float32")), ones(3)], m),
        ValueError,
        "OWNER.apply: the row-sparse gradient of 'kernel' has shape (1, 2), the variable has "
        "shape (2, 3).",
    ),
    "unknown variable": (
        lambda o, m: o.apply([ones(2, 3)], [stranger()]),
        ValueError,
        "OWNER.apply: 'stranger' is not one of the 2 variables that the optimizer was built for.",
    ),
    "a variable twice": (
        lambda o, m: o.apply([ones(2, 3), ones(2, 3)], [m[0], m[0]]),
        ValueError,
        "OWNER.apply: 'kernel' is given twice.",
    ),
    "a variable twice, once by what is behind it": (
        lambda o, m: o.apply([ones(2, 3), ones(2, 3)], [m[0], m[0].value]),
        ValueError,
        "OWNER.apply: 'kernel' is given twice.",
    ),
    "fewer gradients": (
        lambda o, m: o.apply([ones(2, 3)], m),
        ValueError,
        "OWNER.apply: 1 gradients were given for 2 variables.",
    ),
    "more gradients": (
        lambda o, m: o.apply([ones(2, 3), ones(3), ones(3)], m),
        ValueError,
        "OWNER.apply: 3 gradients were given for 2 variables.",
    ),
    "fewer gradients without variables": (
        lambda o, m: o.apply([ones(2, 3)]),
        ValueError,
        "OWNER.apply: 1 gradients were given for 2 variables.",
    ),
    "no gradients for variables": (
        lambda o, m: o.apply([], m),
        ValueError,
        "OWNER.apply: 0 gradients were given for 2 variables.",
    ),
    "integer gradient": (
        lambda o, m: o.apply([ones(2, 3), ones(3, dtype="int32")], m),
        TypeError,
        "OWNER.apply: the gradient of 'bias' is of dtype int32; it must be floating point.",
    ),
    "pairs of a wrong shape": (
        lambda o, m: o.apply_gradients([(ones(2, 3), m[0]), (ones(2, 3), m[1])]),
        ValueError,
        "OWNER.apply: the gradient of 'bias' has shape (2, 3), the variable has shape (3,).",
    ),
    "one update of a wrong shape": (
        lambda o, m: o.update_step(ones(3), m[0], 0.1),
        ValueError,
        "OWNER.update_step: the gradient of 'kernel' has shape (3,), the variable has shape "
        "(2, 3).",
    ),
    "built again for others": (
        lambda o, m: o.build([stranger()]),
        ValueError,
        "OWNER.build: it was built for other variables; make a new optimizer for these.",
    ),
    "decay excluded too late": (
        lambda o, m: o.exclude_from_weight_decay(var_names=["bias"]),
        ValueError,
        "OWNER.exclude_from_weight_decay: call it before the optimizer is built.",
    ),
    "averages of a stranger": (
        lambda o, m: o.finalize_variable_values([stranger()]),
        ValueError,
        "OWNER.finalize_variable_values: 'stranger' is not one of the 2 variables that the "
        "optimizer was built for.",
    ),
}


@pytest.mark.parametrize("case", CALLS)
def test_refuses_misuse(case):
    call, error, message = CALLS[case]
    assert_refuses_call(tf_graft.Adam(RATE, **OPTIONS["together"]), call, error, message)


@each_in_turn(
    "case",
    ["wrong shape of the last", "unknown variable", "a variable twice", "fewer gradients"],
    of_each_class(),
)
def test_refuses_misuse_of_any_optimizer(sample, case):
    assert_refuses_call(sample.make(), *CALLS[case])


def test_refuses_misuse_while_tracing():
    for case in ("wrong shape that would broadcast", "fewer gradients"):
        call, error, message = CALLS[case]
        assert_refuses_call(
            tf_graft.SGD(RATE),
            lambda o, m, call=call: tf.function(lambda: call(o, m), autograph=False)(),
            error,
            message,
        )


def test_an_unbuilt_optimizer_wants_variables():
    with pytest.raises(ValueError, match=r"^SGD\.apply: without variables the optimizer must be"):
        tf_graft.SGD(RATE).apply([ones(3)])


def test_a_variable_twice_is_refused_at_build():
    w = tf.Variable([1.0], name="w")
    optimizer = tf_graft.SGD(RATE)
    with pytest.raises(ValueError, match=r"^SGD\.build: 'w(_1)?' is given twice\.$"):
        optimizer.build([w, w])
    assert not optimizer.built


# G28


@each_in_turn("option", ["plain", "ema"], [s for s in SAMPLES if not s.slow])
def test_order_does_not_matter(sample, option):
    """Built in one order, applied in another; and in two parts, where counting allows it."""
    finals = []
    for turn in (False, True):
        optimizer = sample.make(**OPTIONS[option])
        model = variables(weights())
        optimizer.build(list(model.values()))
        for g in gradients(3):
            paths = list(model)[:: -1 if turn else 1]
            optimizer.apply([g[p] for p in paths], [model[p] for p in paths])
        finals.append(state_of(optimizer, *model.values()))
    if not sample.spans:
        assert_same_state(*finals)
    for name, value in finals[0].items():
        np.testing.assert_allclose(finals[1][name], value, rtol=1e-6, atol=1e-7, err_msg=name)


@each()
def test_a_part_of_the_variables_can_be_applied(sample):
    optimizer, model = sample.make(), variables(weights())
    optimizer.build(list(model.values()))
    before = state_of(optimizer, *model.values())
    for value in (1, 2):
        optimizer.apply([np.full(3, value, "float32")], [model["bias"]])
    after = state_of(optimizer, *model.values())
    changed = {name for name in before if after[name].tobytes() != before[name].tobytes()}
    slots = {f"bias/{role}" for role in sample.roles(1) if role not in sample.late}
    assert changed == {"iteration", "model 1", *slots, *sample.shared} - {*sample.late}


# G24


@each_in_turn("option", ["plain", "together", "clipnorm"], having("oracle"))
def test_unusual_shapes(sample, option):
    """Empty, scalar, one row, five dimensions; one call for all, against float64."""
    shapes = {
        "empty": (0,),
        "empty rows": (0, 3),
        "empty columns": (3, 0),
        "scalar": (),
        "one row": (1, 4),
        "high": (2, 1, 3, 1, 2),
    }
    options = OPTIONS[option]
    if sample.of_eigenvectors:
        shapes["one row"] = (1, 1)  # of full rank
    start = weights(shapes)
    optimizer, model = sample.make(**options), variables(start)
    oracle = sample.make_oracle(start, float(np.float32(RATE)), **options)
    for g in gradients(4, shapes):
        optimizer.apply(list(g.values()), list(model.values()))
        oracle.apply(g)
    for path, variable in model.items():
        np.testing.assert_allclose(variable.numpy(), oracle.w[path], rtol=2e-6, atol=4e-6 * RATE)
    for slot in optimizer.variables:
        assert np.isfinite(slot.numpy().astype("float64")).all(), slot.path


def test_unusual_tables():
    """Row-sparse gradients of tables with one row, with empty rows, and with no rows at all."""
    for shape, ids in (((1, 2), [0, 0]), ((3, 0), [1, 1]), ((0, 2), [])):
        for sparse in ("lazy", "exact"):
            table = tf.Variable(tf.ones(shape))
            optimizer = tf_graft.Adam(RATE, sparse=sparse, **OPTIONS["together"])
            for _ in range(2):
                optimizer.apply([slices(ids, np.ones([len(ids), shape[1]], "float32"))], [table])
            assert int(optimizer.iterations.numpy()) == 1
            assert (table.numpy() < 1).all()


# G34

CHANGED = {
    "learning_rate": 0.25,
    "momentum": 0.5,
    "nesterov": True,
    "initial_accumulator_value": 0.3,
    "epsilon": 0.01,
    "rho": 0.7,
    "centered": True,
    "beta_1": 0.7,
    "beta_2": 0.8,
    "amsgrad": True,
    "scale": "spectral",
    "learning_rate_power": -0.25,
    "l1_regularization_strength": 0.5,
    "l2_regularization_strength": 0.5,
    "l2_shrinkage_regularization_strength": 0.5,
    "beta": 0.5,
    "ns_steps": 3,
    "ns_dtype": "bfloat16",
    "ns_coefficients": [[2.0, -1.5, 0.5]],
    "others": {"name": "adamax", "learning_rate": 0.25},
    "axes": {"kernel": "layer"},
    "heads": "apart",
    "initial_velocity": 0.5,
    "use_nesterov": True,
    "momentum_decay": 0.004,
    "no_prox": True,
    "epsilon_hat": False,
    "clips": False,
    "xi": 1.0,
    "threshold": 6.0,
    "epsilon_root": 0.25,
    "beta_3": 0.75,
    "beta_2_decay": -0.5,
    "epsilon_1": 1e-20,
    "epsilon_2": 0.01,
    "clip_threshold": 2.0,
    "relative_step": False,
    "multiply_by_parameter_scale": False,
    "min_dim_size_to_factor": 128,
    "factored_axes": "largest",
    "d0": 0.01,
    "d_coef": 2.0,
    "growth_rate": 1.5,
    "use_bias_correction": True,
    "safeguard_warmup": True,
    "decouple": False,
    "gamma": 0.05,
    "mars_type": "lion",
    "optimize_1d": True,
    "beta_1_1d": 0.5,
    "beta_2_1d": 0.5,
    "alpha": 3.0,
    "beta_3_warmup": 7,
    "alpha_warmup": 8,
    "silent_sgd_phase": False,
    "weight_lr_power": 1.0,
    "r": 0.5,
    "warmup_steps": 3,
    "beta1": 0.5,
    "beta2": 0.6,
    "grad_averaging": True,
    "weight_decay": 0.3,
    "clipnorm": 0.5,
    "clipvalue": 0.5,
    "global_clipnorm": 0.5,
    "use_ema": True,
    "ema_momentum": 0.5,
    "ema_overwrite_frequency": 3,
    "loss_scale_factor": 4.0,
    "gradient_accumulation_steps": 3,
    "name": "another",
    "jit_compile": False,
    "sparse": "exact",
    "nonfinite": "raise",
    "exclude_from_weight_decay": ["bias$", "^norm"],
    "weight_decay_mode": "cautious_decay",
    "learning_rate_multipliers": {"bias$": 0.5},
    "count_rows": {"table$": 0.5},
    "clip_rows": {"table$": 0.5},
    "state_dtype": "bfloat16",
    "master_weights": False,
    "magnitude_optimizer": {"name": "adadelta", "learning_rate": 0.25},
    "direction_optimizer": {"name": "ftrl", "learning_rate": 0.125},
    "use_global_norm": True,
    "diagnostic": True,
    "optimizer": keras.optimizers.serialize(keras.optimizers.Ftrl(0.25)),
    "optimizers": {"head/": {"name": "adagrad", "learning_rate": 0.25}, ".*": {"name": "sgd"}},
    "weight_decay_rate": 0.3,
    "eeta": 0.3,
    "classic_momentum": False,
    "sum_of_norms": True,
    "exclude_from_layer_adaptation": ["gamma$"],
    "eta": 0.3,
    "mode": "scale",
    "min_update": 0.3,
    "clipping": 0.3,
    "by_row": ["table$"],
    "exclude_from_clipping": ["head/"],
    "exclude_from_centralization": ["head/"],
    "exclude_from_hyperball": ["head/"],
    "outward": 0.3,
    "ahead": 0.5,
    "floor": 0.3,
    "exclude_from_brake": ["head/"],
    "relative_epsilon": True,
    "exponent": 0.3,
    "sides": "smaller",
    "precondition_frequency": 3,
    "spread": False,
    "start": 2,
    "block_size": 5,
    "shampoo_epsilon": 0.01,
    "shampoo_beta": 0.3,
    "max_size": 5,
}


def arguments_of(cls):
    """Every argument of the constructor that a config holds, the common ones spelled out."""
    own = [name for name in inspect.signature(cls).parameters if name != "common"]
    return [name for name in dict.fromkeys([*own, *COMMON_NAMES]) if name != "mesh"]


def changed(cls, name):
    """Another value of an argument than its default, which is the other one for a flag."""
    default = getattr(inspect.signature(cls).parameters.get(name), "default", None)
    return not default if isinstance(default, bool) else CHANGED[name]


def changed_arguments(cls):
    """Each argument that is not a clip away from its default; then each clip alone."""
    alone = ("clipnorm", "clipvalue", "global_clipnorm", "sum_of_norms")
    no = {
        *alone,
        *(["count_rows"] if cls.__name__ == "Wrapped" else []),  # whose rows Keras does not count
        *(["weight_decay_mode"] if cls.__name__ in DECAYING_THEMSELVES else []),
    }
    everything = {name: changed(cls, name) for name in arguments_of(cls) if name not in no}
    return [everything, *({name: CHANGED[name]} for name in arguments_of(cls) if name in alone)]


def test_the_list_of_common_arguments_is_the_packages():
    from tf_graft.core.arguments.options import Common

    assert set(COMMON_NAMES) == set(Common.__annotations__)


def assert_round_trip(cls, **needed):
    plain = cls(**needed).get_config()
    assert set(arguments_of(cls)) <= set(plain)
    for given in changed_arguments(cls):
        optimizer = cls(**(needed | given))
        config = optimizer.get_config()
        for name in given:
            assert config[name] != plain[name], f"{name} is not in the config"
        json.dumps(config)
        kept = copy.deepcopy(config)
        twin = cls.from_config(config)
        assert config == kept, "the caller's dict was changed"
        assert twin.get_config() == config
        assert not twin.built
        for name in given.keys() - {"optimizers"}:  # MultiOptimizer's, an attribute of another name
            value = getattr(optimizer, name)
            inside = isinstance(value, keras.optimizers.Optimizer)
            if name != "learning_rate" and not callable(value) and not inside:
                assert getattr(twin, name) == value, name
        again = tf_graft.deserialize(json.loads(json.dumps(tf_graft.serialize(optimizer))))
        assert type(again) is cls
        assert again.get_config() == config


@each([next(s for s in SAMPLES if s.cls is cls) for cls in dict.fromkeys(s.cls for s in SAMPLES)])
def test_config_round_trip(sample):
    assert_round_trip(sample.cls, **needed_by(sample))


def test_config_holds_a_schedule():
    schedule = keras.optimizers.schedules.PiecewiseConstantDecay([2], [0.5, 0.25])
    for optimizer in (
        tf_graft.Adam(schedule),
        tf_graft.Adam(tf_graft.schedules.PolyDecay(0.5, decay_steps=10)),
        tf_graft.AdaGraft(tf_graft.AdamW(weight_decay=schedule), tf_graft.SGD()),
        tf_graft.wrap(keras.optimizers.Nadam(schedule)),
    ):
        config = optimizer.get_config()
        kept = json.dumps(config)
        twin = type(optimizer).from_config(config)
        assert json.dumps(config) == kept
        assert twin.get_config() == config


def test_exclusions_made_by_the_method_are_kept():
    optimizer = tf_graft.SGD(RATE, weight_decay=0.1, exclude_from_weight_decay=["a"])
    optimizer.exclude_from_weight_decay(
        var_list=[keras.Variable([1.0], name="b.c")], var_names=["d"]
    )
    patterns = optimizer.get_config()["exclude_from_weight_decay"]
    assert patterns[0] == "a"
    assert patterns[-1] == "d"
    assert re.search(patterns[1], "b.c")
    assert not re.search(patterns[1], "b-c")
    assert tf_graft.SGD.from_config(optimizer.get_config()).get_config() == optimizer.get_config()


NAMES = {
    "sgd": tf_graft.SGD,
    "SGD": tf_graft.SGD,
    "adagrad": tf_graft.Adagrad,
    "adadelta": tf_graft.Adadelta,
    "rmsprop": tf_graft.RMSprop,
    "RMSprop": tf_graft.RMSprop,
    "adam": tf_graft.Adam,
    "Adam": tf_graft.Adam,
    "adamw": tf_graft.AdamW,
    "AdamW": tf_graft.AdamW,
    "adam_w": tf_graft.AdamW,
    "lars": tf_graft.LARS,
    "LARS": tf_graft.LARS,
    "lamb": tf_graft.LAMB,
    "LAMB": tf_graft.LAMB,
}


# Made of optimizers, which a name alone does not say: the arguments that do.
OF_OTHERS = {
    "ada_graft": {"magnitude_optimizer": "adam", "direction_optimizer": "sgd"},
    "wrapped": {"optimizer": keras.optimizers.serialize(keras.optimizers.Nadam())},
    "larc": {"optimizer": "adam"},
}


@pytest.mark.parametrize("name", NAMES)
def test_get_by_name(name):
    assert type(tf_graft.get(name)) is NAMES[name]


@pytest.mark.parametrize("name", OF_OTHERS)
def test_get_of_what_is_made_of_others(name):
    made = tf_graft.get({"name": name, **OF_OTHERS[name]})
    assert type(made).__name__.lower() == name.replace("_", "")
    with pytest.raises(TypeError, match=f"missing .*'{next(iter(OF_OTHERS[name]))}'"):
        tf_graft.get(name)


def test_get_of_configs_and_instances():
    optimizer = tf_graft.Adam(RATE)
    assert tf_graft.get(optimizer) is optimizer
    stock = keras.optimizers.SGD(RATE)
    assert tf_graft.get(stock) is stock
    flat = {"name": "rmsprop", "learning_rate": 0.25, "momentum": 0.5}
    kept = dict(flat)
    made = tf_graft.get(flat)
    assert flat == kept
    assert (type(made), made.momentum) == (tf_graft.RMSprop, 0.5)
    serialized = tf_graft.serialize(made)
    kept = copy.deepcopy(serialized)
    assert tf_graft.get(serialized).get_config() == made.get_config()
    assert serialized == kept


@pytest.mark.parametrize(
    ("identifier", "error", "message"),
    [
        ("adem", ValueError, "get('adem'): there is no such optimizer; did you mean 'adam'?"),
        (
            {"name": "sgd", "momentun": 1},
            TypeError,
            "SGD(momentun=...): there is no such argument; did you mean momentum?",
        ),
        (
            {"name": "sgd", "momentum": 3},
            ValueError,
            "SGD(momentum=3): momentum must lie in [0, 1].",
        ),
        (
            3,
            TypeError,
            "get(3): give an optimizer, a name, or a dict with 'name' or 'class_name'.",
        ),
        (
            {"name": "sgd", "lr": 0.1},
            TypeError,
            "SGD(lr=...): there is no such argument; did you mean learning_rate?",
        ),
        (
            {"learning_rate": 1},
            TypeError,
            "get({'learning_rate': 1}): give an optimizer, a name, or a dict with 'name' or "
            "'class_name'.",
        ),
    ],
    ids=str,
)
def test_get_refuses(identifier, error, message):
    with pytest.raises(error) as caught:
        tf_graft.get(identifier)
    assert str(caught.value) == message


def test_get_shows_a_few_names_if_none_is_similar():
    message = (
        "get('zzz'): there is no such optimizer; the nearest are agn, sgd, adam; "
        "tf_graft.list_optimizers() lists all."
    )
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        tf_graft.get("zzz")


def test_deserialize_refuses_what_is_no_optimizer():
    schedule = keras.saving.serialize_keras_object(
        keras.optimizers.schedules.PiecewiseConstantDecay([2], [0.5, 0.25])
    )
    with pytest.raises(ValueError, match="'PiecewiseConstantDecay' is not an optimizer"):
        tf_graft.deserialize(schedule)


@pytest.mark.slow
def test_list_optimizers_by_name_and_by_facts():
    names = tf_graft.list_optimizers
    assert {*names("ada*", rows=True)} == {"adagrad"}
    assert {"adam", "adamw", "adamax"} <= {*names("ADAM*")}
    assert {"row_wise_adagrad", "sgd"} <= {*names(slots=0)} - {*names("a*"), *names(slots=1)}
    assert {"nadam", "adamax", "lion", "adam"} <= {*names(keras=True)} - {*names(rows=True)}
    assert {*names(wrapper=True)} >= {"cautious", "larc", "mixed_precision", "wrapped"}
    assert {*names(matrix=True, slots=1)} >= {"muon"}
    assert {"adam", "adamax"} <= {*names(reference="KINGMA")}
    assert not {*names(rows=True), *names(rows=False), *names(slots=1)} & {*names(wrapper=True)}
    assert {*names(row_bytes="4")} == {"adafactor", "row_wise_adagrad"}
    assert {*names(row_bytes="4 * columns")} >= {"adagrad", "lion"}
    assert not {*names(row_bytes="4 * columns")} & {"row_wise_adam", "adam", "muon", "larc"}
    assert names("zzz*") == {}
    for name in names(kernel=True):
        assert tf_graft.get(name).kernel is not None


@pytest.mark.parametrize(
    ("facts", "error", "message"),
    [
        ({"row": True}, TypeError, "list_optimizers(row=...): there is no such fact; did you mean"),
        ({"zz": 1}, TypeError, "list_optimizers(zz=...): there is no such fact; there are keras,"),
        ({"rows": 1}, TypeError, "list_optimizers(rows=1): rows must be True or False."),
        ({"slots": -1}, ValueError, "list_optimizers(slots=-1): slots must be at least 0."),
        ({"row_bytes": 8}, TypeError, "list_optimizers(row_bytes=8): row_bytes must be a text."),
        ({"reference": 2015}, TypeError, "list_optimizers(reference=2015): reference must be a te"),
    ],
)
def test_list_optimizers_refuses(facts, error, message):
    with pytest.raises(error, match=f"^{re.escape(message)}"):
        tf_graft.list_optimizers(**facts)


@pytest.mark.parametrize(("name", "formula"), listing.row_bytes().items())
def test_the_bytes_of_a_row_are_those_of_its_state(name, formula):
    """How much the variables of a built optimizer grow with each row of a table."""

    def bytes_of(rows, columns):
        optimizer = tf_graft.get(name)
        optimizer.build([tf.Variable(tf.ones([rows, columns]), name="table")])
        return sum(variable.numpy().nbytes for variable in optimizer.variables)

    for columns in (3, 8):
        of_row = sum(
            math.prod(columns if x == "columns" else int(x) for x in term.split(" * "))
            for term in formula.split(" + ")
        )
        assert bytes_of(11, columns) - bytes_of(10, columns) == of_row


def test_list_optimizers():
    listed = tf_graft.list_optimizers()
    assert list(listed) == sorted(listed)
    assert {"ada_graft", "adadelta", "adagrad", "adam", "adamw", "rmsprop", "sgd"} <= set(listed)
    for name, line in listed.items():
        try:
            made = type(tf_graft.get(name)).__name__
        except TypeError as error:  # a name alone is not enough
            made = re.match(r"(\w+)\.__init__\(\) missing", str(error))[1]
        assert made.lower() == name.replace("_", "")
        assert 20 < len(line) < 120
        assert "\n" not in line


# The checks notice what they are for.


class BroadcastsQuietly(tf_graft.SGD):
    """Does the first variable before it looks at the second."""

    def apply(self, grads, trainable_variables=None):
        grads, model = list(grads), list(trainable_variables)
        self.build(model)
        self.update_step(grads[0], model[0], self.learning_rate)
        super().apply(grads, model)


class ForgetsAnArgument(tf_graft.SGD):
    def get_config(self):
        return super().get_config() | {"momentum": 0.0}


class EatsItsConfig(tf_graft.SGD):
    @classmethod
    def from_config(cls, config, custom_objects=None):
        config.pop("nesterov")
        return super().from_config(config)


def test_notices_what_is_changed_before_it_is_refused():
    with pytest.raises(AssertionError, match="differs"):
        assert_refuses_call(BroadcastsQuietly(RATE), *CALLS["wrong shape of the last"])


@pytest.mark.parametrize("cls", [ForgetsAnArgument, EatsItsConfig])
def test_notices_a_config_that_loses_something(cls):
    with pytest.raises(AssertionError):
        assert_round_trip(cls)
