"""Runs the programs of `programs`, each in processes of its own and with a time limit."""

import contextlib
import json
import os
import pathlib
import re
import signal
import subprocess
import tempfile
import time
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

import tf_graft
from support import forked
from tf_graft.processes.cluster import Cluster
from tf_graft.training import log

TESTS = pathlib.Path(__file__).parents[1]
ROOT = pathlib.Path(tf_graft.__file__).parents[1]
ENVIRONMENT = {"PYTHONPATH": f"{ROOT}:{TESTS}", "TF_CPP_MIN_LOG_LEVEL": "2"}
SECONDS = 270  # of processes; a slow test has a little more, and then shows what they said
# The tasks of a column that runs as a cluster.
TASKS = {
    "2_workers": {"worker": 2},
    "2_clients": {"worker": 2},
    "parameter_server": {"chief": 1, "worker": 2, "ps": 1},
    "shards": {"chief": 1, "worker": 2, "ps": 2},
}


class Part(NamedTuple):
    """Cells of a column: of the samples and options named, of all where None.

    Attributes:
        column: where they are computed.
        names: samples.
        options: by name.
        every: of how many cells one is computed.
        through: an optimizer's "apply" alone, or a compiled "model".
    """

    column: str
    names: Sequence[str] | None = None
    options: Sequence[str] | None = None
    every: int = 1
    through: str = "apply"


def run(*parts, seconds=SECONDS):
    """The lines of each part; all are computed in the processes that the first one needs."""
    tasks = TASKS.get(parts[0].column)
    if tasks and "ps" in tasks and any(part.through == "model" for part in parts):
        tasks = tasks | {"worker": 1}  # with which the state of AGN's local optimizer stays
    lines = lines_of(["programs.strategy_cases", *map(json.dumps, parts)], tasks, seconds)
    return [[line for line in lines if line["part"] == i] for i in range(len(parts))]


def program(module, *arguments, python=None):
    """The command that runs a module of the tests, of which all import TensorFlow."""
    return [python or forked.python(), "-m", module, *map(str, arguments)]


def lines_of(arguments, tasks, seconds, python=None):
    """What a program writes, alone or as a cluster of tasks: the lines that all agree on."""
    with tempfile.TemporaryDirectory() as folder:
        command = program(*arguments, "--out", folder, python=python)
        if tasks:
            with Cluster(command, tasks, ENVIRONMENT) as cluster:
                assert_ends(cluster, seconds)
        else:
            run_alone(command, seconds)
        return read(pathlib.Path(folder))


def assert_ends(cluster, seconds):
    """The chief, where there are servers, or every worker ends well; others end with them."""
    awaited = [cluster.chief] if "ps" in cluster.spec else cluster.tasks
    until = time.monotonic() + seconds
    while not cluster.wait(awaited, 1):
        # whoever waits for one that has failed may wait for long
        if any(cluster.ended().values()) or time.monotonic() > until:
            break
    codes = {task: cluster.ended().get(task) for task in awaited}
    said = "\n".join(cluster.output(task) for task in cluster.tasks)
    assert all(code == 0 for code in codes.values()), f"{codes} after {seconds} s or less\n{said}"


def run_alone(command, seconds, **environment):
    """What one process says, which is killed with all it started when it takes too long."""
    process = subprocess.Popen(
        command,
        env=os.environ | ENVIRONMENT | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        said, _ = process.communicate(timeout=seconds)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode == 0, said[-5000:]
    return said


def assert_equal(mine, its, where="", rtol=2e-6):
    """Of the same structure, within what another order of sums makes."""
    if isinstance(mine, dict):
        assert mine.keys() == its.keys(), where
        for name in mine:
            assert_equal(mine[name], its[name], f"{where} {name}", rtol)
    elif isinstance(mine, list) and isinstance(mine[0], dict):
        for number, (one, other) in enumerate(zip(mine, its, strict=True)):
            assert_equal(one, other, f"{where} {number}", rtol)
    else:
        np.testing.assert_allclose(mine, its, rtol=rtol, atol=2e-6, err_msg=where)


def assert_logs_agree(path, other, rtol=1e-5):
    """Two logs of a run have the same rows, within what another order of sums makes."""
    columns, others = log.read(path), log.read(other)
    assert list(columns) == list(others)
    for name, values in columns.items():
        np.testing.assert_allclose(values, others[name], rtol=rtol, err_msg=name)


def passed(*cases, marked="slow or not slow", seconds=SECONDS):
    """How many of the cases in these files ran and passed; none may fail."""
    options = ["-n", "0", "-p", "no:cacheprovider", "--no-header", "--tb=short"]
    files = [TESTS / name for name in cases]
    command = program("pytest", *options, f"--rootdir={TESTS.parent}", "-m", marked, *files)
    return int(re.search(r"(\d+) passed", run_alone(command, seconds))[1])


def read(folder):
    """The chief's lines; every other worker computed the same bit for bit.

    A cell's error is the largest of all workers.
    """
    logs = {
        file.stem: [json.loads(line) for line in file.read_text().splitlines()]
        for file in sorted(folder.glob("*.jsonl"))
    }
    lines = logs.pop("chief_0" if "chief_0" in logs else "worker_0")
    for other, its in logs.items():
        for mine, theirs in zip(lines, its, strict=True):
            if isinstance(mine, dict) and "error" in mine:
                errors = mine["error"], theirs.pop("error")
                mine["error"] = max(errors, key=lambda error: error or 0.0)
                theirs["error"] = mine["error"]
            assert mine == theirs, f"{other} computed something else: {theirs}, not {mine}"
    return lines


def kill_workers(cluster, folder, kills, seconds=SECONDS):
    """Kills one of two workers at work so many times, and starts it again; waits for the end.

    The chief writes into `scheduled` how far it is, and ends once it finds `stop`.
    """
    seen, until = 0, time.monotonic() + seconds
    for number in range(kills):
        # the last kill has been survived when it goes on
        while (scheduled := number_in(folder / "scheduled")) <= seen:
            assert time.monotonic() < until, f"{number} kills in {seconds} s"
            assert cluster.chief not in cluster.ended(), cluster.output(("worker", 0))
            time.sleep(0.01)
        seen, task = scheduled, ("worker", number % 2)
        cluster.send(signal.SIGKILL, [task])
        cluster.start(task)
    (folder / "stop.part").write_text(str(kills))
    (folder / "stop.part").rename(folder / "stop")
    assert cluster.wait([cluster.chief], max(0, until - time.monotonic()))
    assert cluster.ended()[cluster.chief] == 0, cluster.output(("worker", 0))


def number_in(path):
    """The number that a file holds, which may not be there yet, or half written."""
    with contextlib.suppress(FileNotFoundError, ValueError):
        return int(path.read_text())
    return 0
