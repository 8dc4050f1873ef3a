"""OpenSeq2Seq's recorded trajectories through `tg.optimize_loss`: reproduced, or bettered.

`goldens/openseq2seq.json` holds them. Where one shows a fault, a test says what is right.
"""

import json
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf

import tf_graft as tg
from support.samples import state_of
from tf_graft.schedules import lr_policies

CASES = json.loads((Path(__file__).parent / "goldens" / "openseq2seq.json").read_text())["cases"]

# Intended behaviour, reproduced as it stands.
REPRODUCED = [
    "clip/above_and_below",
    "clip/float16_overflow_safe",
    "clip/none_gradient_no_norm_summary",
    "clip/zero_norm",
    "iter_size/period2_lr_policy",
    "iter_size/period4_skip3_apply1",
    "mp_wrapper/backoff_overflow",
    "mp_wrapper/float32_dtype_ignores_scaling",
    "mp_wrapper/master_keeps_small_updates",
    "mp_wrapper/mixed_dtypes",
    "mp_wrapper/no_scale_momentum",
    "mp_wrapper/saturate_cast",
    "mp_wrapper/sparse_fp16",
    "mp_wrapper/static_scale_adam",
    "optimize_loss/adamw_lr_scaled_decay",
    "optimize_loss/all_summaries",
    "optimize_loss/optimizer_adagrad",
    "optimize_loss/optimizer_adam",
    "optimize_loss/optimizer_rmsprop",
    "optimize_loss/sparse_adam_duplicates",
    "optimize_loss/var_list_freeze",
]
# Those that show a fault; each has a test of its own below.
BETTERED = [
    "clip/scalar_variable",
    "clip/sparse_duplicates",
    "iter_size/driver_pattern_first_call_applies",
    "iter_size/nan_microbatch_plain",
    "iter_size/never_skip",
    "mp_wrapper/static_scale_overflow_not_skipped",
    "novograd/default",
    "novograd/wd_grad_averaging",
]
# TensorFlow 1 took 1 - beta^t from float32 powers.
RTOL = {"Adam": 3e-5, "AdamW": 3e-5}


# Their norms were of repeated rows that were not summed.
UNSUMMED = ("mp_wrapper/sparse_fp16", "optimize_loss/sparse_adam_duplicates")


class Replay:
    """A recorded problem: `sum(gradient * variable)` over all variables is minimized."""

    def __init__(self, name, **changes):
        case = self.case = CASES[name]
        config = dict(case["config"])
        dtypes = case["variable_dtypes"]
        self.variables = {
            path: tf.Variable(np.array(value, float), dtype=dtypes[path], name=path)
            for path, value in case["initial"].items()
        }
        policy = getattr(lr_policies, config.pop("lr_policy"))
        params = config.pop("lr_policy_params")
        config.pop("on_horovod", None)
        frozen = r"v1" if name == "optimize_loss/var_list_freeze" else None
        mixed = name.startswith("mp_wrapper") and "float32_dtype" not in name
        self.config = config | changes
        self.step_once = tg.optimize_loss(
            self.loss,
            list(self.variables.values()),
            learning_rate_decay_fn=lambda step: policy(step, **params),
            dtype="mixed" if mixed else "float32",
            freeze_variables_regex=frozen,
            **self.config,
        )
        self.optimizer = self.step_once.optimizer

    def loss(self, grads):
        total = tf.zeros([])
        for grad, variable in zip(grads, self.variables.values(), strict=True):
            if "sparse" in grad:
                values, ids = grad["sparse"]
                total += tf.reduce_sum(tf.cast(tf.gather(variable, ids), tf.float32) * values)
            elif "dense" in grad:
                total += tf.reduce_sum(
                    tf.cast(tf.convert_to_tensor(variable), tf.float32) * grad["dense"]
                )
        return total

    def feed(self, step):
        def tensors(grad):
            if "sparse" in grad:
                s = grad["sparse"]
                return {"sparse": (array(s["values"]), tf.constant(s["indices"], tf.int64))}
            return {"dense": array(grad["dense"])} if "dense" in grad else {}

        return [tensors(grad) for grad in self.case["steps"][step]["grads"]]

    def __call__(self, step):
        loss, metrics = self.step_once(self.feed(step))
        return float(loss), {name: value.numpy() for name, value in metrics.items()}

    def values(self):
        return {path: v.numpy().astype(float) for path, v in self.variables.items()}


def array(value):
    return tf.constant(np.array(value, float), tf.float32)


def linear(recorded, weights):
    """`sum(gradient * variable)`, in float64."""
    total = 0.0
    for grad, w in zip(recorded["grads"], weights.values(), strict=True):
        if "sparse" in grad:
            w, grad = w[grad["sparse"]["indices"]], {"dense": grad["sparse"]["values"]}
        if "dense" in grad:
            total += (w * np.array(grad["dense"], float)).sum()
    return total


def tolerance(variable, optimizer):
    rtol = RTOL.get(optimizer, 2e-6)
    # a master on a rounding boundary may fall to either side
    magnitude = np.minimum(np.abs(variable.numpy().astype(float)), 65000)
    ulp = np.spacing(magnitude.astype("float16")) if variable.dtype == "float16" else 0
    return rtol, 1e-6 + ulp


@pytest.mark.parametrize("name", REPRODUCED)
def test_reproduces(name):
    replay = Replay(name)
    renamed = {"learning_rate_1": "learning_rate"}
    for number, recorded in enumerate(replay.case["steps"]):
        before = replay.values()
        loss, metrics = replay(number)
        # what was recorded was sometimes read after the update
        np.testing.assert_allclose(loss, linear(recorded, before), rtol=1e-5, atol=1e-4)
        for path, value in replay.values().items():
            expected = np.array(recorded["variables"][path], float)
            rtol, atol = tolerance(replay.variables[path], replay.config["optimizer"])
            assert np.all(np.abs(value - expected) <= atol + rtol * np.abs(expected)), path
        assert int(replay.optimizer.iterations.numpy()) == recorded["others"]["global_step"]
        for tag, expected in (recorded.get("summaries") or {}).items():
            if name.startswith("iter_size") and tag != "learning_rate":
                continue  # it was read before or after the accumulators were emptied
            tag = renamed.get(tag, tag).removesuffix("_0")
            if name.endswith("ignores_scaling") and tag == "loss_scale":
                assert metrics[tag] == 1  # what is in use, where 2^14 was reported
            elif name in UNSUMMED and tag == "global_gradient_norm":
                assert metrics[tag] != pytest.approx(expected, rel=1e-3)
            elif np.isfinite(float(expected)):  # ours tell of an overflow, too: inf or NaN
                atol = 1e-3 if name.startswith("mp_wrapper") else 1e-6
                np.testing.assert_allclose(
                    metrics[tag], expected, rtol=3e-6, atol=atol, err_msg=tag
                )
        state = state_of(replay.optimizer)
        for role, expected in recorded["others"].items():
            if role.startswith("FP32-master-copy") and role.count("/") == 1:
                path = role.removeprefix("FP32-master-copy/")
                rtol, _ = tolerance(replay.variables[path], replay.config["optimizer"])
                touched = recorded["grads"][0].get("sparse", {}).get("indices", ...)
                np.testing.assert_allclose(
                    state[f"{path}/master"][touched],
                    np.array(expected)[touched],
                    rtol=rtol,
                    atol=1e-6,
                )


def test_every_recording_has_its_place():
    assert sorted(CASES) == sorted(REPRODUCED + BETTERED)


def test_the_scale_is_the_recorded_one():
    replay = Replay("mp_wrapper/backoff_overflow")
    for number, recorded in enumerate(replay.case["steps"]):
        replay(number)
        assert float(replay.optimizer.loss_scale()) == recorded["others"]["Variable_2"]


def test_the_comparison_notices_another_rate():
    replay = Replay("optimize_loss/optimizer_adam", optimizer_params={"beta1": 0.8})
    for number in range(3):
        replay(number)
    expected = np.array(replay.case["steps"][2]["variables"]["v0"])
    assert np.abs(replay.values()["v0"] - expected).max() > 1e-3


# Where the recording shows a fault.


def test_scalars_are_clipped():
    """`clip/scalar_variable`: the clipped gradient had another shape than the variable."""
    replay = Replay("clip/scalar_variable")
    replay(0)
    grads = [np.array(g["dense"]) for g in replay.case["steps"][0]["grads"]]
    norm = np.sqrt(sum((g**2).sum() for g in grads))
    for (path, value), g in zip(replay.values().items(), grads, strict=True):
        expected = np.array(replay.case["initial"][path]) - 0.1 * g / norm
        np.testing.assert_allclose(value, expected, rtol=1e-6)


def test_repeated_rows_are_clipped_by_their_sum():
    """`clip/sparse_duplicates`: the norm was of the unsummed values."""
    replay = Replay("clip/sparse_duplicates")
    weights = np.array(replay.case["initial"]["v0"])
    for number, recorded in enumerate(replay.case["steps"]):
        _, metrics = replay(number)
        sparse = recorded["grads"][0]["sparse"]
        dense = np.zeros_like(weights)
        np.add.at(dense, sparse["indices"], np.array(sparse["values"]))
        norm = np.sqrt((dense**2).sum())
        weights -= 0.1 * dense / max(norm, 1)
        np.testing.assert_allclose(replay.values()["v0"], weights, rtol=2e-6)
        np.testing.assert_allclose(metrics["global_gradient_norm"], norm, rtol=1e-6)
        assert norm > 1.05 * recorded["summaries"]["global_gradient_norm"]


@pytest.mark.parametrize("name", ["driver_pattern_first_call_applies", "never_skip"])
def test_every_update_has_all_its_micro_steps(name):
    """The first update used one micro-step of four, or each did, divided by four."""
    replay = Replay(f"iter_size/{name}")
    start, steps = replay.values(), replay.case["steps"]
    total = {path: np.zeros_like(value) for path, value in start.items()}
    for number in range(4):
        if number == len(steps):  # three were recorded: the first comes again
            replay.case = replay.case | {"steps": [*steps, steps[0]]}
        for path, grad in zip(total, replay.case["steps"][number]["grads"], strict=True):
            total[path] += np.array(grad["dense"])
        for path, value in replay.values().items():
            np.testing.assert_array_equal(value, start[path])
        replay(number)
    for path, value in replay.values().items():
        np.testing.assert_allclose(value, start[path] - 0.1 * total[path] / 4, rtol=2e-6, atol=1e-6)
    assert int(replay.optimizer.iterations.numpy()) == 1


def test_a_nan_in_a_micro_step_skips_the_update():
    """`iter_size/nan_microbatch_plain`: it stayed in the accumulator and reached the weights."""
    replay = Replay("iter_size/nan_microbatch_plain")
    start, steps = replay.values(), replay.case["steps"]
    bad = [
        number
        for number, step in enumerate(steps)
        if any(np.isnan(np.array(g["dense"], float)).any() for g in step["grads"])
    ]
    assert len(bad) == 1
    for number in range(len(steps)):
        replay(number)
        if number % 2 and number // 2 == bad[0] // 2:
            assert int(replay.optimizer.skipped_steps.numpy()) == 1
    expected = {path: value.copy() for path, value in start.items()}
    for first in range(0, len(steps), 2):
        if first // 2 == bad[0] // 2:
            continue
        for i, path in enumerate(expected):
            for number in (first, first + 1):
                expected[path] -= 0.1 * np.array(steps[number]["grads"][i]["dense"]) / 2
    for path, value in replay.values().items():
        np.testing.assert_allclose(value, expected[path], rtol=2e-6, atol=1e-6)


def test_a_fixed_scale_is_judged():
    """`mp_wrapper/static_scale_overflow_not_skipped`: the overflow reached the weights."""
    replay = Replay("mp_wrapper/static_scale_overflow_not_skipped")
    skipped = 0
    for number, recorded in enumerate(replay.case["steps"]):
        before = replay.values()
        grads = [np.array(g["dense"], float) for g in recorded["grads"]]
        overflows = any(np.abs(g * 1024).max() > 65504 for g in grads)
        replay(number)
        skipped += overflows
        for path, value in replay.values().items():
            assert np.isfinite(value).all()
            assert (value == before[path]).all() == overflows
    assert skipped == int(replay.optimizer.skipped_steps.numpy()) == 1


@pytest.mark.parametrize("name", ["default", "wd_grad_averaging"])
def test_novograds_second_moment_is_stored(name):
    """`novograd/...`: it was not; the first step is the same, and the later ones are not."""
    case = CASES[f"novograd/{name}"]
    config = case["config"]
    w = {path: np.array(value) for path, value in case["initial"].items()}
    variables = [tf.Variable(value, dtype="float32", name=path) for path, value in w.items()]
    optimizer = tg.NovoGrad(**config)
    m, v = dict.fromkeys(w, 0.0), {}
    for number, recorded in enumerate(case["steps"]):
        grads = {p: np.array(g["dense"]) for p, g in zip(w, recorded["grads"], strict=True)}
        optimizer.apply([tf.constant(g, tf.float32) for g in grads.values()], variables)
        for path, g in grads.items():
            square = (g**2).sum()
            v[path] = 0.98 * v[path] + 0.02 * square if number else square
            u = g / np.sqrt(v[path] + 1e-8) + config.get("weight_decay", 0) * w[path]
            u = 0.05 * u if config.get("grad_averaging") else u
            m[path] = 0.95 * m[path] + u
            w[path] = w[path] - 0.1 * m[path]
        for variable, (path, expected) in zip(variables, w.items(), strict=True):
            np.testing.assert_allclose(variable.numpy(), expected, rtol=5e-6, atol=1e-6)
            far = np.abs(expected - np.array(recorded["variables"][path])).max()
            assert far < 1e-6 if number == 0 else far > 1e-5
    assert isinstance(optimizer, keras.optimizers.Optimizer)
