"""Runs on a mesh of several processes: what they learn, save, and survive."""

import csv
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from support import column_runs, forked
from tf_graft.processes.cluster import cluster_spec

CONFIG = """
data: {name: digits, batch_size: 32}
model: {name: mlp, units: [16]}
mesh: {batch: 2, model: 2, shard_slots: true, layouts: {"dense/kernel": [null, model]}}
optimizer: {name: adam, learning_rate: 0.01, global_clipnorm: 1.0}
run: {epochs: 2, seed: 3, checkpoint_every: 30, tensorboard: false, progress: none}
"""


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A folder with a config, and its run in one process of four devices and in two of two.

    The one process takes two starts, one for each epoch.
    """
    folder = tmp_path_factory.mktemp("mesh_runs")
    (folder / "mesh.yaml").write_text(CONFIG)
    for epochs in (1, 2):
        assert finished(folder, "train", "one", f"run.epochs={epochs}") == ""
    assert finished(folder, "launch", "two") == ""
    return folder


def started(folder, command, name, *more):
    return subprocess.Popen(
        [forked.python(), "-m", "tf_graft", command, "mesh.yaml", f"run.dir={name}", *more],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(column_runs.ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finished(folder, command, name, *more, kill=lambda process: None):
    """Runs a command to its end; returns what it said about restarts."""
    process = started(folder, command, name, *more)
    watching = threading.Thread(target=kill, args=(process,))
    watching.start()
    try:
        said, errors = process.communicate(timeout=240)
    finally:
        process.kill()
        watching.join()
    assert process.returncode == 0, said + errors
    return "\n".join(line for line in said.splitlines() if "restarted" in line)


def steps(run):
    with open(run / "steps.csv") as file:
        return np.array([[float(row["step"]), float(row["loss"])] for row in csv.DictReader(file)])


def state(run):
    """Every saved value of the newest state, by name; the origin names the run's own folder."""
    reader = tf.train.load_checkpoint(str(run / "checkpoints"))
    names = [name for name in reader.get_variable_to_shape_map() if name.endswith("VARIABLE_VALUE")]
    return {name: reader.get_tensor(name) for name in names}


def killing(run, task):
    """Returns what kills a task of a launch once the run has saved a state."""

    def kill(launcher):
        until = time.monotonic() + 200
        while not list(run.glob("checkpoints/ckpt-*.index")) and time.monotonic() < until:
            time.sleep(0.05)
        for process in Path("/proc").glob("[0-9]*"):
            try:
                said = (process / "environ").read_text()
            except OSError:
                continue
            mine = f"run.dir={run.name}" in (process / "cmdline").read_text()
            if mine and re.search(rf'"type": "worker", "index": {task}}}', said):
                os.kill(int(process.name), signal.SIGKILL)

    return kill


@pytest.mark.slow
def test_two_processes_learn_what_one_learns(runs):
    np.testing.assert_allclose(steps(runs / "two"), steps(runs / "one"), rtol=1e-6)
    mine, its = state(runs / "two"), state(runs / "one")
    assert mine.keys() == its.keys()
    assert any("optimizer" in name for name in mine)
    for name, value in its.items():
        np.testing.assert_allclose(mine[name], value, rtol=1e-5, atol=1e-6, err_msg=name)


@pytest.mark.rare
def test_a_killed_process_costs_no_bit(runs):
    """It is the first, which the others find one another by; the second: below."""
    said = finished(runs, "launch", "killed", kill=killing(runs / "killed", 0))
    assert said == (
        "The worker 0 was killed by SIGKILL; all are restarted, from the last saved state."
    )
    mine, its = state(runs / "killed"), state(runs / "two")
    for variable, value in its.items():
        np.testing.assert_array_equal(mine[variable], value, err_msg=variable)


@pytest.fixture(scope="module")
def half(runs):
    """The first of two epochs, in two processes."""
    finished(runs, "launch", "half", "run.epochs=1")
    return runs / "half"


@pytest.mark.rare
@pytest.mark.parametrize(
    ("command", "more"),
    [
        ("train", ("mesh=null",)),
        pytest.param(
            "launch",
            ("--workers", "4", "mesh.batch=4", "mesh.model=1", "mesh.shard_slots=false"),
            marks=pytest.mark.rare,
        ),
    ],
)
def test_what_two_processes_saved_goes_on_elsewhere(command, more, half, runs, tmp_path):
    shutil.copytree(half, tmp_path / "moved")
    finished(runs, command, tmp_path / "moved", "run.epochs=2", *more)
    np.testing.assert_allclose(steps(tmp_path / "moved"), steps(runs / "one"), rtol=2e-6)


@pytest.mark.rare
def test_a_process_that_is_left_alone_says_so(runs):
    """As on a cluster, where nobody ends it."""
    alone, lost = two_of("tf_graft", "train", "mesh.yaml", "run.dir=alone", folder=runs)
    code, said = end_of(alone, lost, killing(runs / "alone", 1))
    assert code == 1
    assert "Another process of this run has ended, and this one cannot go on alone" in said
    assert "Traceback" not in said


@pytest.mark.slow
def test_a_process_that_is_stopped_during_a_save_does_not_hold_the_others(tmp_path):
    (tmp_path / "mesh.yaml").write_text(CONFIG)
    stopped, waits = two_of("programs.stopped_while_saving", "train", "mesh.yaml", folder=tmp_path)
    code, said = end_of(waits, stopped)
    assert code == 1
    assert "Another process of this run has ended, and this one cannot go on alone" in said
    assert "Traceback" not in said


def two_of(program, *arguments, folder):
    """Starts a program in two processes that nobody ends; not forked ones, as one may stop."""
    spec, task = cluster_spec({"worker": 2}), {"type": "worker"}
    return [
        subprocess.Popen(
            [sys.executable, "-m", program, *arguments, "run.epochs=50"],
            cwd=folder,
            env=os.environ
            | column_runs.ENVIRONMENT
            | {"TF_CONFIG": json.dumps({"cluster": spec, "task": task | {"index": index}})},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        for index in range(2)
    ]


def end_of(process, other, disturb=lambda process: None):
    """Disturbs the other of two processes; returns how one ends, and what it says."""
    try:
        disturb(other)
        _, said = process.communicate(timeout=150)
    finally:
        for each in (process, other):
            each.kill()
            each.communicate()
    return process.returncode, said
