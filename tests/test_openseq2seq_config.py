"""The runner's section `openseq2seq`: what it becomes, and what it refuses."""

from pathlib import Path

import keras
import numpy as np
import pytest

import tf_graft as tg
from tf_graft.schedules import lr_policies
from tf_graft.training import config as configs
from tf_graft.training import configured_optimizer as optimizer
from tf_graft.training import run
from tf_graft.training.config import ConfigError, parse

pytestmark = pytest.mark.usefixtures("prepared_data")

CONFIGS = Path(__file__).parents[1] / "configs"
HEAD = """
data: {name: digits, batch_size: 64, train: "train[:448]", test: "test[:100]"}
model: {name: mlp, units: [16]}
run: {epochs: 4, progress: none}
openseq2seq:
"""
SECTION = {
    "optimizer": "Momentum",
    "optimizer_params": "{momentum: 0.9}",
    "lr_policy": "poly_decay",
    "lr_policy_params": "{learning_rate: 0.1, warmup_steps: 3}",
}


def read(*overrides, **section):
    lines = [f"  {key}: {value}\n" for key, value in (SECTION | section).items() if value]
    return parse(HEAD + "".join(lines), overrides=overrides)


def built(*overrides, per_epoch=7, **section):
    config = read(*overrides, **section)
    return optimizer.build(config, per_epoch, keras.Model), config


def test_names_and_params():
    made, config = built(optimizer="RMSProp", optimizer_params="{decay: 0.5, momentum: 0.25}")
    assert type(made) is tg.RMSprop
    found = (made.rho, made.momentum, made.epsilon, made.initial_velocity)
    assert found == (0.5, 0.25, 1e-10, 1.0)
    assert config.precision.policy == "float32"
    ftrl, _ = built(optimizer="Ftrl", optimizer_params="{learning_rate_power: -0.25}")
    assert ftrl.learning_rate_power == -0.25
    assert type(built(optimizer="NovoGrad", optimizer_params="{beta1: 0.5}")[0]) is tg.NovoGrad


def test_everything_together():
    made, config = built(
        dtype="mixed",
        loss_scaling="Backoff",
        loss_scaling_params="{step_window: 10}",
        max_grad_norm=2,
        iter_size=2,
    )
    assert type(made) is tg.MixedPrecision
    assert type(made.optimizer) is tg.Momentum
    assert made.scaler.step_window == 10
    assert (made.global_clipnorm, made.gradient_accumulation_steps) == (2.0, 2)
    assert config.precision.policy == "mixed_float16"
    assert built(dtype="mixed", loss_scaling=64)[0].scaler.loss_scale == 64
    kept = read("precision.policy=float16", dtype="mixed")
    assert kept.precision.policy == "float16"


@pytest.mark.parametrize(
    ("policy", "params", "iter_size", "expected"),
    [
        # 4 epochs of 7 steps: 28 updates, or 14 of two steps; 3 are the warm-up
        ("poly_decay", {"warmup_steps": 3}, 1, {"begin_decay_at": 3, "decay_steps": 25}),
        ("poly_decay", {"warmup_steps": 3}, 2, {"begin_decay_at": 3, "decay_steps": 11}),
        ("poly_decay", {"warmup_steps": 3.0}, 1, {"begin_decay_at": 3, "decay_steps": 25}),
        (
            "poly_decay",
            {"warmup_steps": "epoch"},
            1,
            {"warmup_steps": 7, "begin_decay_at": 7, "decay_steps": 21},
        ),
        ("poly_decay", {"begin_decay_at": 5.0}, 1, {"begin_decay_at": 5, "decay_steps": 23}),
        ("poly_decay", {"begin_decay_at": "epoch"}, 1, {"begin_decay_at": 7, "decay_steps": 21}),
        (
            "cosine_decay",
            {"begin_decay_at": 5, "warmup_steps": 3, "min_lr": 0.1},
            1,
            {"begin_decay_at": 5, "decay_steps": 23},
        ),
        (
            "exp_decay",
            {"decay_rate": 0.5, "use_staircase_decay": False, "begin_decay_at": 4},
            1,
            {"decay_steps": 24},
        ),
        # what is given is left alone, overlap included
        ("poly_decay", {"warmup_steps": 3, "decay_steps": 20}, 1, {}),
        (
            "piecewise_constant",
            {"boundaries": [1, 2], "decay_rates": [0.5, 0.1]},
            2,
            {"steps_per_epoch": 4},  # 3.5, which OpenSeq2Seq rounds down
        ),
        ("fixed_lr", {}, 1, {}),
        ("transformer_policy", {"d_model": 64, "warmup_steps": 5}, 1, {}),
        ("inv_poly_decay", {"min_lr": 0.01}, 1, {"decay_steps": 28, "begin_decay_at": 0}),
    ],
)
def test_wiring_of_the_rate(policy, params, iter_size, expected):
    params = {"learning_rate": 0.5, **params}
    made, _ = built(
        lr_policy=policy,
        lr_policy_params=str(params).replace("'", "").lower(),
        iter_size=iter_size,
    )
    function = getattr(lr_policies, policy)
    for step in range(30):
        made.iterations.assign(step)
        rate = float(np.asarray(made.learning_rate))
        assert rate == pytest.approx(float(function(step, **(params | expected))), rel=1e-6)


def test_the_translation_is_what_a_run_keeps():
    config = read(dtype="mixed", iter_size=2)
    optimizer.build(config, 7, keras.Model)
    text = configs.dump(config)
    assert "openseq2seq" not in text
    again = parse(text)
    assert configs.differences(config, again, ignore=[]) == []


@pytest.mark.parametrize(
    ("section", "message"),
    [
        (
            {"optimizer": "Adamm"},
            "6: get('Adamm'): there is no such optimizer; did you mean 'adam'?",
        ),
        ({"optimizer_params": "{}"}, "7: Momentum needs 'momentum'."),
        (
            {"optimizer": "Adam", "optimizer_params": "{beta1: 0.8, beta_1: 0.9}"},
            "7: Adam takes 'beta1' or 'beta_1', which are one argument, not both.",
        ),
        ({"optimizer_params": "{momentum: 2}"}, "7: Momentum(momentum=2): momentum must lie"),
        ({"lr_policy": "poly"}, "8: no policy 'poly'; there are fixed_lr,"),
        ({"lr_policy_params": "{warmup_steps: -1}"}, "9: warmup_steps is -1; it must be at least"),
        (
            {"lr_policy_params": "{learning_rate: 0.1, warmup_steps: 1.5}"},
            "9: warmup_steps is 1.5; without decay_steps it must be a whole number or 'epoch'.",
        ),
        (
            {"lr_policy_params": "{learning_rate: 0.1, warmup_steps: 3, begin_decay_at: epoch}"},
            "9: begin_decay_at is 'epoch'; without decay_steps, write both lengths as 'epoch' or",
        ),
        ({"lr_policy_params": "{power: 2.0}"}, "it also needs 'learning_rate'."),
        ({"lr_policy_params": "{learning_rate: 0.1, gamma: 2}"}, "it does not take 'gamma'"),
        ({"lr_polici": "x"}, "unknown key 'lr_polici' in 'openseq2seq'; did you mean 'lr_policy'?"),
        ({"lr_policy": None}, "'lr_policy' is missing in 'openseq2seq'."),
        ({"iter_size": "0"}, "10: iter_size is 0; it should be greater than or equal to 1."),
        ({"dtype": "float17"}, "10: dtype is the text 'float17'; it should be 'mixed' or"),
        ({"larc_params": "{eta: 0.1}"}, "unknown parameter 'eta'; there are larc_eta,"),
        ({"larc_params": "{min_update: 0.1}"}, "larc_eta parameter has to be specified."),
        (
            {"larc_params": "{larc_eta: 0.1}", "max_grad_norm": 1},
            "LARC and gradient norm clipping should not be used together.",
        ),
        ({"dtype": "mixed", "loss_scaling": "Back"}, "there is no such loss scaler"),
        ({"dtype": "mixed", "loss_scaling_params": "{a: 1}"}, "only 'Backoff' and 'LogMax' take"),
    ],
)
def test_refuses(section, message):
    with pytest.raises(ConfigError) as caught:
        built(**section)
    assert message in str(caught.value)
    assert str(caught.value).startswith("<config>:")


def test_refuses_two_optimizers():
    with pytest.raises(ConfigError, match="'optimizer' and 'openseq2seq' exclude one another"):
        parse(HEAD + "  optimizer: SGD\n  lr_policy: fixed_lr\noptimizer: {name: sgd}")


def test_overrides_are_of_the_section():
    made, _ = built("openseq2seq.optimizer_params.momentum=0.5")
    assert made.momentum == 0.5
    with pytest.raises(ConfigError, match=r"^override 'openseq2seq.optimizer_params.momentum=3'"):
        built("openseq2seq.optimizer_params.momentum=3")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")
def test_a_run_logs_the_scale(tmp_path):
    config = read(
        dtype="mixed", loss_scaling="Backoff", loss_scaling_params="{scale_max: 16777216.0}"
    )
    config.run.dir = str(tmp_path / "run")
    summary = run.train(config, say=lambda _: None)
    assert summary["train_skipped_steps"] >= 1
    assert summary["train_loss_scale"] < 2**24
    header = (tmp_path / "run" / "metrics.csv").read_text().splitlines()[0]
    assert "train_loss_scale" in header
    assert "test_loss_scale" not in header
    again = configs.load(tmp_path / "run" / "config.yaml", ["run.epochs=5"])
    resumed = run.train(again, say=lambda _: None)
    assert resumed["epochs"] == 5
    assert resumed["train_skipped_steps"] >= summary["train_skipped_steps"]


def test_configs_in_the_repository():
    config = configs.load(CONFIGS / "digits_openseq2seq.yaml")
    assert type(optimizer.build(config, 44, keras.Model)) is tg.MixedPrecision
