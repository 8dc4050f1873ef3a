"""AGN on parameter servers: two real workers and a server, undisturbed and killed."""

import sys

import column_runs
import pytest

from tf_graft.training.processes import Cluster

pytestmark = pytest.mark.slow
KILLS = 2  # each costs a start of TensorFlow


def cluster_of(case, folder, workers=2):
    program = str(column_runs.TESTS / "agn_server_cases.py")
    command = [sys.executable, program, case, "--out", str(folder)]
    environment = {"PYTHONPATH": str(column_runs.ROOT)}
    return Cluster(command, {"chief": 1, "worker": workers, "ps": 1}, environment)


@pytest.mark.parametrize(("case", "workers"), [("plain", 2), ("followed", 1), ("options", 1)])
def test_case(case, workers, tmp_path):
    """`plain`: two workers learn, and every round is counted. `followed`: one equals the model.
    `options`: one equals AGN in one process, with what AGN is given.
    """
    with cluster_of(case, tmp_path, workers) as cluster:
        assert cluster.wait([cluster.chief], 300), "takes longer than 300 s"
        said = "\n".join(cluster.output(task) for task in cluster.tasks)
        assert cluster.ended()[cluster.chief] == 0, said


def test_killed_workers_lose_their_round_only(tmp_path):
    with cluster_of("killed", tmp_path) as cluster:
        column_runs.kill_workers(cluster, tmp_path, KILLS)
