"""Runs on several replicas that are stopped in the middle: they go on to the bit."""

import pytest

from support import column_runs
from tf_graft.processes.cluster import Cluster

CONFIG = """
data: {name: digits, batch_size: 12, train: "train[:432]", test: "test[:96]"}
model: {name: mlp, units: [8]}
strategy: {name: mirrored}
optimizer: {name: adam, learning_rate: 0.01}
run: {epochs: 2, checkpoint_every: 5, progress: none, tensorboard: false}
"""
ADAM = "optimizer: {name: adam, learning_rate: 0.01}"
AGN = ADAM.replace("{name", "{name: agn, communication_period: 4, optimizer: {name") + "}"
LOGS = ("steps.csv", "metrics.csv")


@pytest.fixture
def config(tmp_path, prepared_data):
    path = tmp_path / "run.yaml"
    path.write_text(CONFIG)
    return path


def command(config, *words):
    return column_runs.program("programs.interrupted_runs", config, *words)


def assert_alike(folder):
    """What a run that was stopped has written is what one that was not has, byte for byte."""
    for log in LOGS:
        parts, whole = ((folder / name / log).read_bytes() for name in ("parts", "whole"))
        assert parts == whole, log


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", [ADAM, AGN], ids=["adam", "agn"])
@pytest.mark.parametrize("devices", [2, 3])
def test_replicas_go_on_in_mid_epoch_as_undisturbed(devices, optimizer, config):
    config.write_text(CONFIG.replace(ADAM, optimizer))
    runs = ("parts:3", "parts:39", "parts", "whole")
    column_runs.run_alone(command(config, *runs, f"strategy.devices={devices}"), 200)
    assert_alike(config.parent)


@pytest.mark.slow
def test_workers_go_on_in_mid_epoch_as_undisturbed(config):
    config.write_text(CONFIG.replace("mirrored", "multi_worker"))
    for run in ("parts:3", "parts", "whole"):
        with Cluster(command(config, run), {"worker": 3}, column_runs.ENVIRONMENT) as cluster:
            column_runs.assert_ends(cluster, 200)
    assert_alike(config.parent)
