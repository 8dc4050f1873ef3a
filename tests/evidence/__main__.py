"""Shows how much of the evidence there is, and makes what is missing, stale or wrong.

    python tests/evidence [SUITE ...] [--run] [--jobs 2] [--seconds 3600] [--jax PYTHON]

A part is stale where code that it rests on has changed since the commit that it checked. `--run`
makes parts until all are made, or the seconds are over; Ctrl-C ends it, too. How a part ended is in
docs/data/evidence.json at once. The exit code is 1 where a part is wrong.
"""

import argparse
import concurrent.futures
import contextlib
import os
import pathlib
import signal
import sys
import threading
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
TESTS = pathlib.Path(__file__).parents[1]
sys.path[:0] = [str(TESTS), str(TESTS.parent)]

from evidence import changes, running, suites  # noqa: E402
from evidence.state import State  # noqa: E402


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("suites", nargs="*", metavar="SUITE", help="all, if none is named")
    parser.add_argument("--run", action="store_true", help="makes what is missing, stale or wrong")
    parser.add_argument("--jobs", type=int, default=1, help="how many parts are made at a time")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="no part begins later")
    parser.add_argument("--jax", default=sys.executable, help="a Python that has jax and libtpu")
    given = parser.parse_args()
    every = suites.suites(running.python_of(given.jax))
    if unknown := set(given.suites) - set(every):
        parser.error(f"no such suite: {', '.join(unknown)}; there are {', '.join(every)}")
    state = State(every, given.suites)
    if given.run:
        if files := changes.uncommitted(["tf_graft", "tests", "configs", "studies"]):
            parser.error(f"commit {', '.join(files)} first: a row names the commit that it checked")
        make(state, given.jobs, time.monotonic() + given.seconds)
    print("\n".join(state.table()))
    return int(state.wrong())


def make(state: State, jobs: int, until: float) -> None:
    """Makes what is to be made, and keeps how each part ended."""
    commit, keeping, processes = changes.head(), threading.Lock(), running.Processes()

    def make_one(name: str, part: str) -> None:
        if processes.stopped or time.monotonic() > until:
            return
        suite = state.suites[name]
        with contextlib.suppress(running.Stopped):
            row = processes.made(suite.parts[part], suite.limit, commit)
            with keeping:
                state.ledger.keep(name, part, row)
                print(f"{name}: {part}: {row.tried} tried, {len(row.wrong)} wrong", flush=True)

    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        waiting = [pool.submit(make_one, name, part) for name, part in state.to_make()]
        try:
            for done in waiting:
                done.result()
        except KeyboardInterrupt:
            for another in (signal.SIGINT, signal.SIGTERM):
                signal.signal(another, signal.SIG_IGN)  # until the processes are gone
            processes.stop()


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    sys.exit(main())
