"""LARS, LAMB and LARC: what the originals did, reproduced or bettered; and what is theirs alone.

`goldens/{lars,contrib_lars,lamb,larc}.json` hold recorded trajectories. Where a recording shows a
bug or an error, a test says what is right. The guarantees that all optimizers share are elsewhere.
"""

import json
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf

import tf_graft
from support import oracles
from support.samples import BY_NAME, RATE, gradients, slices, state_of, variables, weights
from tf_graft.core.tensors import numerics
from tf_graft.schedules import lr_policies

GOLDENS = Path(__file__).parent / "goldens"
FILES = {
    name: json.loads((GOLDENS / f"{name}.json").read_text())["cases"]
    for name in ("lars", "contrib_lars", "lamb", "larc")
}
NAMES = ("lars", "lamb", "larc_clip")  # in the samples
TOLERANCE = {"float64": {"rtol": 1e-8, "atol": 1e-12}, "float32": {"rtol": 2e-6, "atol": 1e-7}}
# Both take the root of 1 - 0.999^t, the original in float32.
OF_ADAM = {"rtol": 3e-5, "atol": 1e-6}


def case_of(system, name):
    """A recording, with the weights and gradients of the one it shares them with."""
    case, cases = FILES[system][name], FILES[system]
    whole = cases.get(case.get("problem_of"), {}) | case
    steps = len(whole.get("variables", whole["gradients"]))
    return whole | {"gradients": whole["gradients"][:steps]}


def initial(case):
    return {path: np.array(w, case["dtype"]) for path, w in case["initial"].items()}


def gradients_of(case):
    """For each step the gradients, NaN and repeated rows included."""

    def tensor(g):
        if isinstance(g, dict):
            return slices(g["ids"], np.array(g["values"], case["dtype"]))
        return tf.constant(np.array(g, case["dtype"]))

    return [[tensor(g) for g in step] for step in case["gradients"]]


def dense_of(case):
    """The same for the oracles."""
    shapes = {path: w.shape for path, w in initial(case).items()}
    for step in case["gradients"]:
        dense = {}
        for (path, shape), g in zip(shapes.items(), step, strict=True):
            dense[path] = np.zeros(shape)
            if isinstance(g, dict):
                np.add.at(dense[path], g["ids"], np.array(g["values"]))
            else:
                dense[path] += np.array(g, float)
        yield dense


def replay(optimizer, case, rates=None):
    """The weights after each step; `rates` are set before the steps, as users do."""
    model = {path: tf.Variable(w, name=path) for path, w in initial(case).items()}
    optimizer.build(list(model.values()))
    history = []
    for number, grads in enumerate(gradients_of(case)):
        if rates:
            optimizer.learning_rate = rates[number]
        optimizer.apply(grads, list(model.values()))
        history.append({path: v.numpy() for path, v in model.items()})
    return history


def follow(oracle, case):
    """The oracle's weights after each step."""
    for grads in dense_of(case):
        oracle.apply(grads)
        yield dict(oracle.w)


def assert_recorded(history, case, paths=None, tolerance=None):
    tolerance = tolerance or TOLERANCE[case["dtype"]]
    for ours, theirs in zip(history, case["variables"], strict=True):
        for path in paths or ours:
            expected = np.array(theirs[path], float)
            np.testing.assert_allclose(ours[path], expected, **tolerance, err_msg=path)


def assert_follows(history, expected, dtype):
    for ours, theirs in zip(history, expected, strict=True):
        for path, w in ours.items():
            np.testing.assert_allclose(w, theirs[path], **TOLERANCE[dtype], err_msg=path)


def assert_slots(optimizer, case, names, tolerance=None):
    """The slots after the last step; `names` gives a recorded one's path, role and factor."""
    tolerance = tolerance or TOLERANCE[case["dtype"]]
    state = state_of(optimizer)
    recorded = {}
    for old, value in case["slots"].items():
        for role, x in value.items() if isinstance(value, dict) else [(None, value)]:
            path, ours, factor = names(old, role)
            recorded[f"{path}/{ours}"] = factor * np.array(x)
    assert recorded
    for name, expected in recorded.items():
        np.testing.assert_allclose(state[name], expected, **tolerance, err_msg=name)


def single(x):
    """What the originals held in float32."""
    return float(np.float32(x))


# Model Garden's LARS.

LARS_REPRODUCED = [
    "classic_wd",
    "clipvalue",
    "exclude_separate_lists",
    "exclude_wd_only",
    "float32",
    "momentum_zero",
    "popular_nesterov_wd",
    "zero_norms_no_wd",
    "zero_norms_wd",
]
LARS_TREATED = [
    "exclude_empty_layer_list",
    "exclude_regex_search",
    "legacy_decay_kwarg",
    "nan_gradient",
    "sparse_raises",
]


def test_every_recording_has_its_place():
    assert sorted(FILES["lars"]) == sorted(LARS_REPRODUCED + LARS_TREATED)
    assert sorted(FILES["contrib_lars"]) == sorted(CONTRIB)
    assert sorted(FILES["lamb"]) == sorted(LAMB)
    assert sorted(FILES["larc"]) == sorted(LARC_REPRODUCED + LARC_TREATED)


@pytest.mark.parametrize("name", LARS_REPRODUCED)
def test_lars_reproduces(name):
    case = case_of("lars", name)
    optimizer = tf_graft.LARS(**case["config"])
    assert_recorded(replay(optimizer, case), case)
    if optimizer.momentum:  # ours has the sign of the step where it holds the rates
        sign = -1 if optimizer.classic_momentum else 1
        assert_slots(optimizer, case, lambda path, role: (path, role, sign))


def test_the_comparison_notices_a_wrong_coefficient():
    case = case_of("lars", "classic_wd")
    history = replay(tf_graft.LARS(**(case["config"] | {"eeta": 0.00101})), case)
    with pytest.raises(AssertionError, match="kernel"):
        assert_recorded(history, case)


def test_lars_takes_a_schedule_for_the_old_decay():
    case = case_of("lars", "legacy_decay_kwarg")
    config = dict(case["config"])
    rate = keras.optimizers.schedules.InverseTimeDecay(
        config.pop("learning_rate"), 1, config.pop("decay")
    )
    history = replay(tf_graft.LARS(**(config | {"learning_rate": rate})), case)
    for ours, theirs in zip(history, case["variables"], strict=True):
        for path, w in ours.items():  # a schedule is of float32
            np.testing.assert_allclose(w, np.array(theirs[path]), rtol=1e-7)


def test_lars_searches_paths():
    """`exclude_regex_search`: `^conv/b.*:0$` was searched for in `conv/bias:0`."""
    case = case_of("lars", "exclude_regex_search")
    assert case["config"]["exclude_from_weight_decay"] == ["^conv/b.*:0$"]
    config = case["config"] | {"exclude_from_weight_decay": ["^conv/b.*s$"]}
    assert_recorded(replay(tf_graft.LARS(**config), case), case)


def test_an_empty_list_of_layers_excludes_none():
    """`exclude_empty_layer_list`: it was taken for None, so that `bias` was not adapted either."""
    case = case_of("lars", "exclude_empty_layer_list")
    none = case["config"] | {"exclude_from_layer_adaptation": None}
    assert_recorded(replay(tf_graft.LARS(**none), case), case)
    own = {
        k: v for k, v in case["config"].items() if k in ("momentum", "weight_decay_rate", "eeta")
    }
    oracle = oracles.Oracle(
        oracles.lars,
        initial(case),
        single(0.1),
        own | {"exclude_from_layer_adaptation": []},
        exclude_from_weight_decay=["bias"],
    )
    history = replay(tf_graft.LARS(**case["config"]), case)
    assert_follows(history, follow(oracle, case), "float64")
    with pytest.raises(AssertionError, match="bias"):
        assert_recorded(history, case)


def test_lars_skips_a_nan():
    """`nan_gradient`: NaN went into the weights and the momentum of its variable, for good."""
    case = case_of("lars", "nan_gradient")
    optimizer = tf_graft.LARS(**case["config"])
    history = replay(optimizer, case)
    bad = [
        i
        for i, g in enumerate(dense_of(case))
        if not all(map(np.all, map(np.isfinite, g.values())))
    ]
    assert bad
    good = case | {"gradients": [g for i, g in enumerate(case["gradients"]) if i not in bad]}
    expected = replay(tf_graft.LARS(**case["config"]), good)
    for path, w in history[-1].items():
        assert np.isfinite(w).all()
        np.testing.assert_array_equal(w, expected[-1][path])
    assert int(optimizer.skipped_steps.numpy()) == len(bad)


@pytest.mark.parametrize("sparse", ["exact", "lazy"])
def test_lars_takes_rows(sparse):
    """`sparse_raises`: a NotImplementedError."""
    case = case_of("lars", "sparse_raises")
    (history,) = replay(tf_graft.LARS(**case["config"], sparse=sparse), case)
    (dense,), start = dense_of(case), initial(case)["emb"]
    touched = slice(None) if sparse == "exact" else slice(0, 1)  # row 0, twice
    expected = start.copy()
    expected[touched] += oracles.lars(
        dense["emb"][touched], start[touched], {}, single(0.1), 1, weight_decay_rate=0.01
    )
    np.testing.assert_allclose(history["emb"], expected, rtol=1e-12)


# tf.contrib's LARS: the paper's denominator.

CONTRIB = ["nesterov", "skip_list", "zero_norms"]


@pytest.mark.parametrize("name", CONTRIB)
def test_lars_reproduces_contrib(name):
    case = case_of("contrib_lars", name)
    config = case["config"]
    optimizer = tf_graft.LARS(
        config["learning_rate"],
        weight_decay_rate=config["weight_decay"],
        nesterov=config.get("use_nesterov", False),
        exclude_from_weight_decay=config.get("skip_list"),
        sum_of_norms=True,
    )
    assert_recorded(replay(optimizer, case), case)
    assert_slots(optimizer, case, lambda slot, _: (slot.split("/")[0], "momentum", -1))


def test_the_two_denominators_differ():
    case = case_of("contrib_lars", "nesterov")
    optimizer = tf_graft.LARS(0.1, weight_decay_rate=0.1, nesterov=True)
    with pytest.raises(AssertionError):
        assert_recorded(replay(optimizer, case), case)


# Model Garden's LAMB.

LAMB = ["lamb_excludes", "lamb_sparse_duplicates"]


@pytest.mark.parametrize("name", LAMB)
def test_lamb_reproduces(name):
    case = case_of("lamb", name)
    betas = {"beta_1": single(0.9), "beta_2": single(0.999)}
    optimizer = tf_graft.LAMB(**case["config"], **betas, sparse="exact")
    assert_recorded(replay(optimizer, case), case)
    roles = {"m": "momentum", "v": "velocity"}
    assert_slots(optimizer, case, lambda path, role: (path, roles[role], 1))


# OpenSeq2Seq's LARC.

LARC_REPRODUCED = [
    "clip_adam",
    "clip_exp_lr",
    "clip_momentum",
    "custom_eps_min_update",
    "scale_momentum_poly",
    "sparse_duplicates",
]
LARC_TREATED = [
    "param_errors",
    "with_clip_raises",
    "zero_lr_warmup_nan",
    "zero_weights_and_grads_clip",
]


class TensorFlow1Momentum(tf_graft.Optimizer):
    """The rate outside of the momentum."""

    def slots(self):
        return {"momentum": tf_graft.Slot()}

    def step(self, g, w, s, lr, t):
        a = 0.9 * s["momentum"] + g
        return -lr * a, {"momentum": a}


CHILDREN = {
    "SGD": lambda: tf_graft.SGD(0.1),
    "Momentum": lambda: TensorFlow1Momentum(0.1),
    "Adam": lambda: tf_graft.Adam(0.1, epsilon=1e-8),
}


def larc_of(case, child=None, **options):
    old = {"larc_eta": "eta", "larc_mode": "mode"}
    own = {old.get(k, k): v for k, v in case["config"]["larc_params"].items()}
    child = CHILDREN[case["config"]["optimizer"]]() if child is None else child
    return tf_graft.LARC(child, **own, **options)


@pytest.mark.parametrize("name", LARC_REPRODUCED)
def test_larc_reproduces(name):
    case = case_of("larc", name)
    optimizer = larc_of(case, sparse="exact")
    tolerance = OF_ADAM if case["config"]["optimizer"] == "Adam" else None
    assert_recorded(replay(optimizer, case, case.get("rates")), case, tolerance=tolerance)
    roles = {"Momentum:0": "momentum", "Adam:0": "momentum", "Adam_1:0": "velocity"}

    def ours(slot, _):
        _, path, role = slot.split("/")
        return path, f"optimizer/{roles[role]}", 1

    if case["slots"]:
        assert_slots(optimizer, case, ours, tolerance)


@pytest.mark.parametrize("name", LARC_REPRODUCED)
def test_larc_by_the_arguments_of_optimize_loss(name):
    """As it was recorded: through `optimize_loss`, with its policies and its optimizers' names."""
    case = case_of("larc", name)
    config = dict(case["config"])
    policy, params = getattr(lr_policies, config.pop("lr_policy")), config.pop("lr_policy_params")
    model = {path: tf.Variable(w, name=path) for path, w in initial(case).items()}

    def loss(gradients):
        def linear(g, w):
            sparse = isinstance(g, tf.IndexedSlices)
            return tf.reduce_sum((tf.gather(w, g.indices) if sparse else w) * numerics.values(g))

        return tf.add_n([linear(g, w) for g, w in zip(gradients, model.values(), strict=True)])

    step = tf_graft.optimize_loss(
        loss,
        list(model.values()),
        learning_rate_decay_fn=lambda step: policy(step, **params),
        **config,
    )
    history = []
    for gradients_now in gradients_of(case):
        step(gradients_now)
        history.append({path: v.numpy() for path, v in model.items()})
    if name == "sparse_duplicates":  # TensorFlow 1's momentum went on in idle rows, ours waits
        with pytest.raises(AssertionError):
            assert_recorded(history, case)
        return
    assert_recorded(history, case, tolerance=OF_ADAM if config["optimizer"] == "Adam" else None)


def test_larc_with_the_rate_inside_differs_under_a_schedule_only():
    same, other = case_of("larc", "clip_momentum"), case_of("larc", "scale_momentum_poly")
    assert_recorded(replay(larc_of(same, tf_graft.SGD(0.1, momentum=0.9)), same), same)
    history = replay(larc_of(other, tf_graft.SGD(0.1, momentum=0.9)), other, other["rates"])
    with pytest.raises(AssertionError):
        assert_recorded(history, other)


@pytest.mark.parametrize("name", ["zero_lr_warmup_nan", "zero_weights_and_grads_clip"])
def test_larc_moves_what_starts_at_zero(name):
    """It was NaN at a rate of zero, and moved by 1e-7 of a step at any other."""
    case = case_of("larc", name)
    history = replay(larc_of(case), case, case["rates"])
    oracle = oracles.Oracle(
        oracles.larc, initial(case), case["rates"].__getitem__, {"child": oracles.sgd, "eta": 0.01}
    )
    assert_follows(history, follow(oracle, case), "float32")
    assert_recorded(history, case, ["v1", "v2"])
    recorded = np.array([step["v0"] for step in case["variables"]], float)
    assert np.isnan(recorded).all() or np.abs(recorded).max() < 1e-6
    assert np.abs(history[-1]["v0"]).min() > 1e-3


def test_larc_goes_with_clipping():
    """`with_clip_raises`: an AttributeError."""
    case = case_of("larc", "with_clip_raises")
    history = replay(larc_of(case, global_clipnorm=case["config"]["clip_gradients"]), case)
    oracle = oracles.Oracle(
        oracles.larc,
        initial(case),
        single(0.1),
        {"child": oracles.sgd, "eta": 0.01},
        global_clipnorm=1.0,
    )
    assert_follows(history, follow(oracle, case), "float32")


def test_larc_takes_integers_and_refuses_what_it_does_not_know():
    """`param_errors`: an integer was no number, and eta had no default."""
    sgd = {"name": "sgd"}
    assert FILES["larc"]["param_errors"]["calls"] == [
        "{}",
        "larc_eta=1 (int)",
        "larc_mode='foo'",
        "min_update=0 (int)",
        "unknown key 'eta'",
    ]
    assert tf_graft.LARC(sgd).eta == 0.02
    assert (tf_graft.LARC(sgd, eta=1).eta, tf_graft.LARC(sgd, min_update=0).min_update) == (1.0, 0)
    with pytest.raises(ValueError, match=r"^LARC\(mode='foo'\): mode must be one of"):
        tf_graft.LARC(sgd, mode="foo")
    with pytest.raises(TypeError, match=r"^LARC\(eeta=\.\.\.\): .* did you mean eta\?$"):
        tf_graft.LARC(sgd, eeta=0.1)


# Norms.

# Steps whose length is known: (an optimizer without memory, its length relative to the weights).
LENGTHS = {
    "lars": (lambda **o: tf_graft.LARS(0.25, momentum=0, eeta=0.5, **o), 0.125),
    "lars_popular": (
        lambda **o: tf_graft.LARS(0.25, momentum=0, eeta=0.5, classic_momentum=False, **o),
        0.125,
    ),
    "lamb": (lambda **o: tf_graft.LAMB(0.25, beta_1=0, beta_2=0.5, **o), 0.25),
    "larc_scale": (lambda **o: tf_graft.LARC(tf_graft.SGD(0.25), 0.5, "scale", **o), 0.125),
    "larc_clip": (lambda **o: tf_graft.LARC(tf_graft.SGD(0.25), 0.125, **o), 0.125),
}


@pytest.mark.parametrize("size", [1e-3, 1.0, 1e5])
@pytest.mark.parametrize("name", LENGTHS)
def test_a_step_is_as_long_as_the_weights_say(name, size):
    """However long the gradient is; along it, but for LAMB."""
    make, relative = LENGTHS[name]
    if name == "larc_clip" and size < 1:
        relative = None  # its rate is the smaller one
    optimizer, start = make(), weights()["kernel"]
    w, g = tf.Variable(start), gradients(1)[0]["kernel"]
    optimizer.apply([(size * g).astype("float32")], [w])
    step = w.numpy() - start
    length = (
        0.25 * size * np.linalg.norm(g) if relative is None else relative * np.linalg.norm(start)
    )
    np.testing.assert_allclose(np.linalg.norm(step), length, rtol=1e-4)
    if name != "lamb":
        unit = g / np.linalg.norm(g)
        np.testing.assert_allclose(step / np.linalg.norm(step), -unit, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("name", NAMES)
def test_norms_are_of_the_touched_rows(name):
    """The touched rows are a variable of their own, and the others are left alone."""
    sample = BY_NAME[name]
    optimizer, shapes = sample.make(), {"table": (6, 3)}
    table = variables(weights(shapes))["table"]
    touched, rest = [1, 4], [0, 2, 3, 5]
    exact, slots, start = table.numpy()[touched].astype(float), {}, table.numpy()
    for t, g in enumerate(gradients(3, {"table": (3, 3)}), 1):
        optimizer.apply([slices([1, 4, 1], g["table"])], [table])
        block = np.stack([g["table"][0] + g["table"][2], g["table"][1]]).astype(float)
        exact = exact + sample.oracle(block, exact, slots, RATE, t, **sample.own())
        np.testing.assert_allclose(table.numpy()[touched], exact, rtol=2e-6, atol=2e-7)
        np.testing.assert_array_equal(table.numpy()[rest], start[rest])


def test_a_bias_that_starts_at_zero_takes_the_whole_step():
    for make in (
        lambda **o: tf_graft.LARS(0.25, **o),
        lambda **o: tf_graft.LARC(tf_graft.SGD(0.25), **o),
        lambda **o: tf_graft.LARC(tf_graft.SGD(0.25), mode="scale", **o),
    ):
        bias = tf.Variable([0.0, 0.0])
        make().apply([tf.constant([2.0, -4.0])], [bias])
        np.testing.assert_array_equal(bias.numpy(), [-0.5, 1.0])


def test_idle_where_nothing_is_remembered_and_nothing_decays():
    assert tf_graft.LARS(momentum=0).idle
    assert not tf_graft.LARS(momentum=0, weight_decay_rate=0.1).idle
    assert not tf_graft.LARS().idle
    assert tf_graft.LARC(tf_graft.SGD()).idle
    assert not tf_graft.LARC(tf_graft.SGD(momentum=0.9)).idle


# Exclusions.

EXCLUDING = {
    "lars": lambda **o: tf_graft.LARS(0.1, weight_decay_rate=0.1, eeta=0.5, **o),
    "lamb": lambda **o: tf_graft.LAMB(0.1, weight_decay_rate=0.1, **o),
}


@pytest.mark.parametrize(
    "lists", [(["bias"], None), (["bias"], []), ([], ["^kernel$"]), (None, None)]
)
@pytest.mark.parametrize("name", EXCLUDING)
def test_exclusions_are_kept_in_the_config(name, lists):
    """Model Garden's lost them: the copy decayed and adapted what the original left out."""
    given = dict(
        zip(("exclude_from_weight_decay", "exclude_from_layer_adaptation"), lists, strict=True)
    )
    optimizer = EXCLUDING[name](**given)
    copy = type(optimizer).from_config(json.loads(json.dumps(optimizer.get_config())))
    assert copy.get_config()["exclude_from_layer_adaptation"] == lists[1]
    oracle = BY_NAME[name].make_oracle(weights(), single(0.1), **given)
    results = []
    for each in (optimizer, copy):
        model = variables(weights())
        for g in gradients(2):
            each.apply(list(g.values()), list(model.values()))
        results.append({path: v.numpy() for path, v in model.items()})
    for g in gradients(2):
        oracle.apply(g)
    for path, w in results[0].items():
        np.testing.assert_array_equal(w, results[1][path])
        np.testing.assert_allclose(w, oracle.w[path], rtol=2e-6, atol=1e-7, err_msg=path)


def test_the_method_excludes_from_the_decay_inside_too():
    """And from adaptation, where no list of its own was given: the lists are one."""
    optimizers = [EXCLUDING["lars"](), EXCLUDING["lars"](exclude_from_weight_decay=["bias"])]
    optimizers[0].exclude_from_weight_decay(var_names=["bias"])
    results = []
    for optimizer in optimizers:
        model = list(variables(weights()).values())
        optimizer.apply(list(gradients(1)[0].values()), model)
        results.append(state_of(optimizer, *model))
    for name, value in results[1].items():
        np.testing.assert_array_equal(results[0][name], value, err_msg=name)


def test_both_decays_act():
    """`weight_decay_rate` inside the ratio, the common `weight_decay` beside it."""
    optimizer = tf_graft.LARS(0.5, momentum=0, weight_decay_rate=1.0, eeta=0.1, weight_decay=0.25)
    w = tf.Variable([3.0, 4.0])
    optimizer.apply([tf.constant([-3.0, 0.0])], [w])  # g + w is (0, 4); 0.5 * 0.1 * 5 along it
    np.testing.assert_allclose(w.numpy(), [3 - 0.375, 4 - 0.25 - 0.5], rtol=1e-6)


def test_larc_excludes():
    w = [tf.Variable([3.0, 4.0], name="kernel"), tf.Variable([3.0, 4.0], name="bias")]
    optimizer = tf_graft.LARC(
        tf_graft.SGD(1.0), eta=0.1, exclude_from_layer_adaptation=["bias"], sparse="exact"
    )
    copy = tf_graft.deserialize(tf_graft.serialize(optimizer))
    copy.apply([tf.constant([0.0, 100.0])] * 2, w)
    np.testing.assert_allclose(w[0].numpy(), [3.0, 3.5], rtol=1e-6)
    np.testing.assert_allclose(w[1].numpy(), [3.0, -96.0], rtol=1e-6)


# LARC's rate is its optimizer's.


def test_larcs_rate_is_the_optimizers():
    child = tf_graft.SGD(0.5)
    optimizer, w = tf_graft.LARC(child, eta=10.0), tf.Variable([1.0])
    assert float(optimizer.learning_rate.numpy()) == 0.5
    for rate, setter in ((0.25, optimizer), (0.125, child)):
        setter.learning_rate = rate
        optimizer.apply([tf.constant([1.0])], [w])
        assert float(optimizer.learning_rate.numpy()) == rate
        assert float(child.learning_rate.numpy()) == rate
    np.testing.assert_array_equal(w.numpy(), [1 - 0.25 - 0.125])
    rates = [v.path for v in optimizer.variables if v.path.endswith("learning_rate")]
    assert len(rates) == 1


def test_larc_sets_the_rate_it_is_given():
    for child in (tf_graft.SGD(0.5), keras.optimizers.SGD(0.5), "sgd", {"name": "sgd"}):
        optimizer = tf_graft.LARC(child, learning_rate=0.25)
        assert float(optimizer.learning_rate.numpy()) == 0.25
        assert optimizer.get_config()["learning_rate"] == 0.25
    for rate in (-1, "0.1", True):
        with pytest.raises((ValueError, TypeError), match=r"^LARC\(learning_rate="):
            tf_graft.LARC(tf_graft.SGD(), learning_rate=rate)
        with pytest.raises((ValueError, TypeError), match=r"^LARC\(learning_rate="):
            optimizer.learning_rate = rate


def test_larc_under_a_schedule():
    """The optimizer's schedule is what the ratio sees; it counts LARC's updates."""
    schedule = keras.optimizers.schedules.PiecewiseConstantDecay([0], [0.5, 0.0])
    optimizer, w = tf_graft.LARC(tf_graft.SGD(schedule), eta=10.0), tf.Variable([1.0])
    twin = tf_graft.LARC.from_config(optimizer.get_config())
    assert twin.get_config() == optimizer.get_config()
    with pytest.raises(TypeError, match="cannot be set to"):
        optimizer.learning_rate = 0.1
    for _ in range(3):
        twin.apply([tf.constant([1.0])], [w])
    np.testing.assert_array_equal(w.numpy(), [0.5])  # at a rate of zero nothing moves


@pytest.mark.slow
def test_larcs_rate_under_a_plateau():
    model = keras.Sequential([keras.layers.Input([2]), keras.layers.Dense(1)])
    model.compile(tf_graft.LARC(keras.optimizers.SGD(0.5, momentum=0.9)), loss="mse")
    plateau = keras.callbacks.ReduceLROnPlateau("loss", factor=0.5, patience=0, min_delta=1e9)
    x = np.ones([4, 2], "float32")
    history = model.fit(x, x[:, :1], epochs=3, verbose=0, callbacks=[plateau])
    assert history.history["learning_rate"] == [0.5, 0.5, 0.25]
    assert float(model.optimizer.learning_rate.numpy()) == 0.125


def test_larcs_rate_in_update_step():
    optimizer, w = tf_graft.LARC(tf_graft.SGD(1.0), eta=0.1), tf.Variable([3.0, 4.0])
    optimizer.build([w])
    optimizer.update_step(tf.constant([0.0, 1.0]), w, 0.25)  # below 0.1 * 5: not clipped
    np.testing.assert_allclose(w.numpy(), [3.0, 3.75], rtol=1e-6)


# LARC around any optimizer.


@pytest.mark.parametrize("name", ["sgd_momentum", "adam"])
def test_larc_around_keras_equals_around_ours(name):
    sample, results = BY_NAME[name], []
    for child in (sample.make(), sample.make_stock()):
        optimizer, model = tf_graft.LARC(child, eta=0.08), list(variables(weights()).values())
        for g in gradients(3):
            optimizer.apply(list(g.values()), model)
        results.append([v.numpy() for v in model])
    for ours, theirs in zip(*results, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=2e-6, atol=sample.stock_rtol * RATE)


def test_larc_is_saved_and_goes_on():
    def trained(optimizer, model, grads):
        for g in grads:
            optimizer.apply(list(g.values()), list(model.values()))
        return optimizer

    steps, model, store = gradients(4), variables(weights()), {}
    make = BY_NAME["larc_clip"].make
    trained(make(), model, steps[:2]).save_own_variables(store)
    twin, values = make(), {path: v.numpy() for path, v in model.items()}
    again = variables(values)
    twin.build(list(again.values()))
    twin.load_own_variables(store)
    trained(twin, again, steps[2:])
    whole = variables(weights())
    trained(make(), whole, steps)
    for path, v in whole.items():
        np.testing.assert_array_equal(again[path].numpy(), v.numpy(), err_msg=path)


def test_grafts_of_layerwise_optimizers():
    """LARC within a graft, and a graft within LARC."""
    graft = tf_graft.AdaGraft(tf_graft.LARC(tf_graft.SGD(0.5), eta=0.1), tf_graft.LAMB())
    start = np.array([3.0, 4.0], "float32")
    w = tf.Variable(start)
    graft.apply([tf.constant([0.0, 100.0])], [w])
    np.testing.assert_allclose(np.linalg.norm(w.numpy() - start), 0.5, rtol=1e-5)
    outer = tf_graft.LARC(tf_graft.AdaGraft(tf_graft.SGD(0.5), tf_graft.Adam()), eta=0.1)
    w = tf.Variable(start)
    outer.apply([tf.constant([0.0, 100.0])], [w])  # the rate of SGD: a step of `eta * ||w||`
    np.testing.assert_allclose(np.linalg.norm(w.numpy() - start), 0.5, rtol=1e-5)
