"""Processes of a cluster are killed or stopped; `tf-graft launch` must end as if undisturbed.

Of parameter servers there is one worker: the order of several workers' steps is nobody's. A step
that it has not answered is taken again, so where it alone is killed, the numbers may differ.
"""

import contextlib
import functools
import itertools
import os
import random
import signal
import sys
import tempfile
import threading
import time
from pathlib import Path

from support import column_runs
from tf_graft.processes.cluster import Cluster
from tf_graft.training import config as configs
from tf_graft.training import launch as launcher
from trust import Result, lives, operations

CONFIG = """
data: {name: digits, batch_size: 48, train: "train[:432]", test: "test[:96]"}
model: {name: mlp, units: [8]}
optimizer: {name: adam, learning_rate: 0.01}
run: {epochs: 12, checkpoint_every: 5, progress: none, tensorboard: false}
"""
# What a config has, and the tasks that it runs in.
KINDS = {
    "mesh": ("mesh: {batch: 2}", {"worker": 2, "ps": 0}),
    "multi_worker": ("strategy: {name: multi_worker}", {"worker": 2, "ps": 0}),
    "parameter_server": ("strategy: {name: parameter_server}", {"worker": 1, "ps": 1}),
}
EACH = 20  # attacks of each way on a kind
WAYS = ("one", "all", "stopped")  # one process is killed, all are, or one is stopped
ENDS = ("steps.csv", "metrics.csv", "summary.json", "model.keras")


class Launched(Cluster):
    """A cluster that tells of itself."""

    now: Cluster | None = None

    def __enter__(self):
        Launched.now = super().__enter__()
        return self


def attacks(every, kind=None, way=None, count=EACH):
    """Yields a `Result` an attack, of one in `every`; all kinds and ways, where none is given."""
    kinds, ways = [kind] if kind else KINDS, [way] if way else WAYS
    turn = itertools.count()
    with tempfile.TemporaryDirectory() as folder, _on_our_path():
        undisturbed = functools.cache(functools.partial(_undisturbed, Path(folder)))
        for number, kind, way in itertools.product(range(count), kinds, ways):
            if next(turn) % every == 0:
                end, seconds = undisturbed(kind)
                yield _attack(Path(folder) / f"{kind}_{number}_{way}", kind, way, end, seconds)


def _undisturbed(folder, kind):
    """What a run leaves that nothing disturbs, and how long it takes."""
    began = time.monotonic()
    code, _ = _launch(folder / kind, kind)
    assert code == 0
    return operations.content(folder / kind), time.monotonic() - began


def _attack(folder, kind, way, end, seconds):
    """Disturbs a run, once: kills after a random part of its time, or stops while it trains."""
    after = random.uniform(seconds / 4, seconds)  # before, the processes import their modules
    hit = []

    def disturb(ended):
        if way == "stopped":  # before, it has no heartbeat
            while not list(folder.glob("checkpoints/*.index")) and not ended.wait(0.05):
                pass
        elif ended.wait(after):
            return
        tasks = Launched.now.tasks
        hit.extend(tasks if way == "all" else [random.choice(tasks)])
        Launched.now.send(signal.SIGSTOP if way == "stopped" else signal.SIGKILL, hit)

    try:
        code, said = _launch(folder, kind, disturb)
        wrong = _difference(operations.content(folder), end, hit) if code == 0 else f"code {code}"
    except launcher.LaunchError as error:
        said, wrong = [], str(error)
    again = sum("restarted" in line for line in said)
    when = "" if way == "stopped" else f" after {after:.1f} s"
    return Result(f"{kind}: {way}, {hit or 'nobody'}{when}, {again} restarts", wrong)


def _difference(found, end, hit):
    """How the end of a run differs from that of another one; None where it does not."""
    if hit == [("worker", 0)] and ("ps", 0) in Launched.now.tasks:
        steps = [files["steps.csv"].count(b"\n") for files in (found, end)]
        return None if steps[0] == steps[1] else f"{steps[0]} steps, not {steps[1]}"
    return lives.difference(*({name: files.get(name) for name in ENDS} for files in (found, end)))


def _launch(folder, kind, disturb=lambda ended: None):
    """Launches a run, while a thread disturbs it; returns the code and what was said."""
    section, tasks = KINDS[kind]
    config = configs.parse(f"{CONFIG}{section}\n")
    path = folder.with_suffix(".yaml")
    path.write_text(f"{CONFIG}{section}\n")
    command = [sys.executable, "-m", "tf_graft", "train", str(path), f"run.dir={folder}"]
    said, ended = [], threading.Event()
    thread = threading.Thread(target=disturb, args=(ended,))
    before, launcher.Cluster = launcher.Cluster, Launched
    thread.start()
    try:
        return launcher.launch(config, command, tasks, said.append), said
    finally:
        launcher.Cluster = before
        ended.set()
        thread.join()


@contextlib.contextmanager
def _on_our_path():
    """Lets the processes that are launched find the package."""
    before = os.environ.copy()
    os.environ |= column_runs.ENVIRONMENT
    try:
        yield
    finally:
        os.environ.clear()
        os.environ |= before
