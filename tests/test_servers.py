"""Runs on parameter servers: what they refuse and leave behind, and that they survive a worker."""

import sys
import time

import pytest

from support import column_runs
from tf_graft.processes.cluster import Cluster
from tf_graft.training import place
from tf_graft.training.config import ConfigError, parse

CONFIG = """
data: {name: digits, batch_size: 48, train: "train[:432]", test: "test[:96]"}
model: {name: mlp, units: [8]}
strategy: {name: parameter_server}
run: {dir: run, epochs: 30, progress: none, tensorboard: false}
"""
LOCAL = "{name: sgd, learning_rate: 0.1}"
OPTIMIZERS = {
    "steps": LOCAL,
    "rounds": f"{{name: agn, communication_period: 3, optimizer: {LOCAL}}}",
}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (LOCAL, "policy: on parameter servers, mixed_float16 needs the optimizer mixed_precision"),
        (f"{{name: mixed_precision, optimizer: {LOCAL}}}", "TF_CONFIG"),
    ],
)
def test_mixed_float16_needs_an_optimizer_that_scales_the_loss(given, message, monkeypatch):
    monkeypatch.delenv("TF_CONFIG", raising=False)
    config = parse(CONFIG, overrides=[f"optimizer={given}", "precision.policy=mixed_float16"])
    with pytest.raises(ConfigError, match=message):
        place.enter(config)


@pytest.mark.slow
def test_what_runs_leave_behind(tmp_path):
    """Metrics of the model and of the loss scale, evaluation weights, states that load."""
    column_runs.run_alone(
        column_runs.program("programs.server_run_cases", tmp_path),
        column_runs.SECONDS,
        TFDS_DATA_DIR=str(tmp_path / "data"),
    )


@pytest.mark.rare
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_the_chief_ends_without_a_killed_worker(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run.yaml").write_text(f"{CONFIG}optimizer: {OPTIMIZERS[name]}\n")
    command = [sys.executable, "-m", "tf_graft", "train", "run.yaml"]
    tasks = {"chief": 1, "worker": 2, "ps": 1}
    with Cluster(command, tasks, column_runs.ENVIRONMENT) as cluster:
        until = time.monotonic() + 120
        while not list(tmp_path.glob("run/checkpoints/*.index")) and time.monotonic() < until:
            assert not cluster.wait([cluster.chief], 0.1)
        cluster.send(9, [("worker", 1)])
        assert cluster.wait([cluster.chief], 120), "the chief does not end"
        assert cluster.ended()[cluster.chief] == 0
    assert (tmp_path / "run" / "steps.csv").read_text().count("\n") == 1 + 9 * 30
