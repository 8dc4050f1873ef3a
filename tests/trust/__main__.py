"""Makes every attack of the battery, and prints for each area how many were tried and wrong.

    python tests/trust [AREA ...] [--every 1]
    python tests/trust clusters [--kind mesh] [--way one] [--count 20]

Each area runs in a process of its own; the exit code is 1 where an attack was not held off.
"""

import argparse
import gc
import pathlib
import subprocess
import sys
import time
from typing import Any

TESTS = pathlib.Path(__file__).parents[1]
sys.path[:0] = [str(TESTS), str(TESTS.parent)]

import trust  # noqa: E402
from support import devices  # noqa: E402


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("areas", nargs="*", metavar="AREA", help=f"of {', '.join(trust.AREAS)}")
    parser.add_argument("--every", type=int, default=1, help="one attack in so many")
    parser.add_argument("--kind", help="of clusters: mesh, multi_worker, parameter_server")
    parser.add_argument("--way", help="to disturb them: one, all, stopped")
    parser.add_argument("--count", type=int, help="of each kind and way")
    chosen = parser.parse_args()
    areas = chosen.areas or list(trust.AREAS)
    if unknown := set(areas) - set(trust.AREAS):
        parser.error(f"no such area: {', '.join(sorted(unknown))}")
    if len(areas) == 1:
        asked = {name: getattr(chosen, name) for name in ("kind", "way", "count")}
        return run(areas[0], chosen.every, {n: value for n, value in asked.items() if value})
    command = [sys.executable, str(TESTS / "trust"), "--every", str(chosen.every)]
    return max([subprocess.run([*command, area]).returncode for area in areas])


def run(area: str, every: int, asked: dict[str, Any]) -> int:
    """Makes the attacks of one area; prints those that were not held off, then the counts."""
    devices.prepare()  # four logical devices, before anything else
    gc.enable()
    began, tried, wrong = time.monotonic(), 0, 0
    for tried, result in enumerate(trust.made(area, every, **asked), 1):  # noqa: B007
        if result.wrong is not None:
            wrong += 1
            print(f"WRONG  {area}: {result.attack}: {result.wrong}", flush=True)
    seconds = time.monotonic() - began
    print(f"{area}: {tried} tried, {wrong} wrong, in {seconds:.0f} s", flush=True)
    return int(bool(wrong) or not tried)


if __name__ == "__main__":
    sys.exit(main())
