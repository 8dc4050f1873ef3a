"""Trains a config in this process or task, several times, one after the other.

    python -m programs.interrupted_runs CONFIG NAME[:STEP] ... [KEY=VALUE ...]

Each run goes to the folder NAME beside the config; one with a STEP is asked to stop in it.
"""

import contextlib
import sys
from pathlib import Path

from support.stopping import stopping_at
from tf_graft.training import run
from tf_graft.training.config import load
from tf_graft.training.stop import Stopped


def main(path, *words):
    overrides = [word for word in words if "=" in word]
    for name, _, step in (word.partition(":") for word in words if "=" not in word):
        stopping = stopping_at(int(step)) if step else contextlib.nullcontext()
        with stopping, contextlib.suppress(Stopped):
            run.train(load(path, [f"run.dir={Path(path).parent / name}", *overrides]))


if __name__ == "__main__":
    main(*sys.argv[1:])
