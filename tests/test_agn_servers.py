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


def cluster_of(case, folder):
    program = str(column_runs.TESTS / "agn_server_cases.py")
    command = [sys.executable, program, case, "--out", str(folder)]
    environment = {"PYTHONPATH": str(column_runs.ROOT)}
    return Cluster(command, {"chief": 1, "worker": 2, "ps": 1}, environment)


def test_two_workers_learn_and_every_round_is_counted(tmp_path):
    with cluster_of("plain", tmp_path) as cluster:
        assert cluster.wait([cluster.chief], 300), "takes longer than 300 s"
        said = "\n".join(cluster.output(task) for task in cluster.tasks)
        assert cluster.ended()[cluster.chief] == 0, said
    print((tmp_path / "result").read_text())


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
