"""AGN on parameter servers: two real workers and a server, undisturbed and killed."""

import contextlib
import os
import signal
import sys
import time

import column_runs
import pytest

from tf_graft.training.processes import Cluster

pytestmark = pytest.mark.slow
KILLS = 10


def cluster_of(case, folder, workers=2):
    program = str(column_runs.TESTS / "agn_server_cases.py")
    command = [sys.executable, program, case, "--out", str(folder)]
    environment = {"PYTHONPATH": str(column_runs.ROOT)}
    return Cluster(command, {"chief": 1, "worker": workers, "ps": 1}, environment)


@pytest.mark.parametrize(("case", "workers"), [("plain", 2), ("followed", 1)])
def test_case(case, workers, tmp_path):
    """`plain`: two workers learn, and every round is counted. `followed`: one equals the model."""
    with cluster_of(case, tmp_path, workers) as cluster:
        assert cluster.wait([cluster.chief], 300), "takes longer than 300 s"
        said = "\n".join(cluster.output(task) for task in cluster.tasks)
        assert cluster.ended()[cluster.chief] == 0, said


def test_killed_workers_lose_their_round_only(tmp_path):
    with cluster_of("killed", tmp_path) as cluster:
        kills, seen, until = 0, 0, time.monotonic() + 500
        while kills < KILLS:
            assert time.monotonic() < until, f"{kills} kills in 500 s"
            assert cluster.chief not in cluster.ended(), cluster.output(cluster.chief)
            scheduled = 0
            with contextlib.suppress(FileNotFoundError, ValueError):
                scheduled = int((tmp_path / "scheduled").read_text())
            if scheduled <= seen:  # the last kill has been survived when rounds go on
                time.sleep(0.01)
                continue
            seen = scheduled
            task = ("worker", kills % 2)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(cluster.processes[task].pid, signal.SIGKILL)
            cluster.processes[task].wait()
            cluster.start(task)
            kills += 1
        (tmp_path / "stop.part").write_text(str(kills))
        (tmp_path / "stop.part").rename(tmp_path / "stop")
        assert cluster.wait([cluster.chief], 300)
        assert cluster.ended()[cluster.chief] == 0, cluster.output(cluster.chief)
    print((tmp_path / "result").read_text())
