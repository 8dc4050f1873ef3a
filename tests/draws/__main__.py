"""Makes random draws, and prints those that are wrong.

    python tests/draws [--first 0] [--count 100] [--seconds 60] [--place eager]

Each draw follows from its number alone. The exit code is 1 where one was wrong.
"""

import argparse
import collections
import gc
import pathlib
import subprocess
import sys
import time

TESTS = pathlib.Path(__file__).parents[1]
sys.path[:0] = [str(TESTS), str(TESTS.parent)]

from support import devices  # noqa: E402

PROCESSES = ("devices", "mesh")


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--seconds", type=float, default=float("inf"), help="stops after so many")
    parser.add_argument("--place", help="where all of them run")
    parser.add_argument("--on", choices=PROCESSES, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.on is None:
        # A mesh takes the devices in a way that replicas in the same process cannot go on.
        command = [sys.executable, *sys.argv]
        return max([subprocess.run([*command, "--on", on]).returncode for on in PROCESSES])
    return run(given)


def run(given) -> int:
    """Makes the draws of one process."""
    devices.prepare()  # four logical devices, before anything else
    gc.enable()
    from draws.draw import Draw

    began, wrong, places = time.monotonic(), 0, collections.Counter()
    for number in range(given.first, given.first + given.count):
        draw = Draw(number, given.place)
        if (draw.place == "mesh") != (given.on == "mesh"):
            continue
        if time.monotonic() - began > given.seconds:
            break
        places[draw.place] += 1
        if message := draw.wrong():
            wrong += 1
            print(f"WRONG  {draw}: {message}", flush=True)
    seconds = time.monotonic() - began
    tried = f"{places.total()} tried, {wrong} wrong, in {seconds:.0f} s"
    print(f"{tried}: {dict(places)}", flush=True)
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
