"""AGN on parameter servers: two real workers and a server, undisturbed and killed."""

import pytest

from support import column_runs
from tf_graft.processes.cluster import Cluster

KILLS = 1  # of the first worker; of both: `test_strategies.py`


def cluster_of(*cases, folder, workers):
    command = column_runs.program("programs.agn_server_cases", *cases, "--out", folder)
    environment = {"PYTHONPATH": str(column_runs.ROOT)}
    return Cluster(command, {"chief": 1, "worker": workers, "ps": 1}, environment)


@pytest.mark.rare
def test_one_worker_does_what_the_model_and_one_process_do(tmp_path):
    """`followed`: it equals the model. `options`: AGN in one process, with what AGN is given."""
    with cluster_of("followed", "options", folder=tmp_path, workers=1) as cluster:
        column_runs.assert_ends(cluster, column_runs.SECONDS)


@pytest.mark.slow
def test_two_workers_learn_and_lose_their_round_only_when_they_are_killed(tmp_path):
    """`short`: a round of fewer batches. `plain`: every round is counted. Then `killed`."""
    with cluster_of("short", "plain", "killed", folder=tmp_path, workers=2) as cluster:
        column_runs.kill_workers(cluster, tmp_path, KILLS)
