"""Runs on several replicas: stopped in the middle they go on to the bit; none goes on alone."""

import pytest
import tensorflow as tf

from support import column_runs
from tf_graft.processes.cluster import Cluster
from tf_graft.training import place
from tf_graft.training.stop import ProcessLost

CONFIG = """
data: {name: digits, batch_size: 24, train: "train[:432]", test: "test[:96]"}
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


@pytest.mark.parametrize(
    ("optimizer", "overrides", "stops"),
    [
        pytest.param(
            ADAM, ["strategy.devices=3", "data.batch_size=48"], [3, 5, 15], marks=pytest.mark.rare
        ),
        pytest.param(
            AGN, ["strategy.devices=2", 'data.train="train[:144]"'], [3], marks=pytest.mark.slow
        ),
    ],
    ids=["adam", "agn"],
)
def test_replicas_go_on_in_mid_epoch_as_undisturbed(optimizer, overrides, stops, config):
    config.write_text(CONFIG.replace(ADAM, optimizer))
    runs = [*(f"parts:{step}" for step in stops), "parts", "whole"]
    column_runs.run_alone(command(config, *runs, *overrides), column_runs.SECONDS)
    assert_alike(config.parent)


@pytest.mark.parametrize("error", place.LOSSES)
@pytest.mark.parametrize("others", [{"workers": 2}, {"servers": True}])
def test_whoever_loses_another_process_says_so(error, others):
    of_several = place.Place(None, None, True, **others)
    said = r"Another process of this run has ended, .* TensorFlow says: .* is aborted by: gone$"
    with pytest.raises(ProcessLost, match=said), of_several.together():
        raise error(None, None, "Graph execution error:\n\nCollective ops is aborted by: gone\n!")
    alone = place.Place(None, None, True)
    with pytest.raises(error), alone.together():
        raise error(None, None, "gone")


def test_a_barrier_that_a_lost_process_does_not_reach_says_so():
    of_two = place.Place(None, None, True, workers=2)
    said = r"Another process of this run has ended, .* TensorFlow says: Barrier failed because"
    with pytest.raises(ProcessLost, match=said), of_two.together():
        raise tf.errors.InternalError(
            None,
            None,
            "Barrier failed because: task is set to ERROR: UNAVAILABLE: Task /job:worker/replica:0"
            "/task:1 heartbeat timeout. Barrier Id: x:0::0, Task: /job:worker/replica:0/task:1\n\n"
            "RPC: /tensorflow.CoordinationService/Barrier",
        )
    with pytest.raises(tf.errors.InternalError, match="other"), of_two.together():
        raise tf.errors.InternalError(None, None, "other")


class Leaving(place.Place):
    """A place that meets the other processes as often as told, and then finds that one has left."""

    def told(self, number):
        if not meetings.pop(0):
            raise tf.errors.UnavailableError(None, None, "Socket closed")
        return [number]


meetings: list[bool] = []


def test_a_process_that_has_left_after_all_had_ended_is_not_lost():
    of_two = Leaving(None, None, True, workers=2)
    meetings[:] = [True, False]
    with of_two.together():
        pass
    assert not meetings
    meetings[:] = [False]
    with pytest.raises(ProcessLost, match="Socket closed"), of_two.together():
        pass


@pytest.mark.rare
def test_workers_go_on_in_mid_epoch_as_undisturbed(config):
    config.write_text(CONFIG.replace("mirrored", "multi_worker").replace(ADAM, AGN))
    for each in ("parts:3", "parts", "whole"):
        with Cluster(command(config, each), {"worker": 3}, column_runs.ENVIRONMENT) as cluster:
            column_runs.assert_ends(cluster, column_runs.SECONDS)
    assert_alike(config.parent)
