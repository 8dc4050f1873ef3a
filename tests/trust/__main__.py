"""Makes every attack of the battery, and prints area, tried, wrong.

    python tests/trust [AREA ...] [--every 1]

Each area runs in a process of its own; the exit code is 1 where an attack was not held off.
"""

import argparse
import gc
import pathlib
import subprocess
import sys
import time

TESTS = pathlib.Path(__file__).parents[1]
sys.path[:0] = [str(TESTS), str(TESTS.parent)]

import trust  # noqa: E402
from support import devices  # noqa: E402


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("areas", nargs="*", metavar="AREA", help=f"of {', '.join(trust.AREAS)}")
    parser.add_argument("--every", type=int, default=1, help="one attack in so many")
    chosen = parser.parse_args()
    areas = chosen.areas or list(trust.AREAS)
    if unknown := set(areas) - set(trust.AREAS):
        parser.error(f"no such area: {', '.join(sorted(unknown))}")
    if len(areas) == 1:
        return run(areas[0], chosen.every)
    print(f"{'area':<12}{'tried':>8}{'wrong':>8}{'seconds':>9}", flush=True)
    command = [sys.executable, str(TESTS / "trust"), "--every", str(chosen.every)]
    return max([subprocess.run([*command, area]).returncode for area in areas])


def run(area: str, every: int) -> int:
    """Makes the attacks of one area; prints those that were not held off, then the counts."""
    devices.prepare()  # four logical devices, before anything else
    gc.enable()
    began, tried, wrong = time.monotonic(), 0, 0
    for tried, result in enumerate(trust.made(area, every), 1):  # noqa: B007
        if result.wrong is not None:
            wrong += 1
            print(f"WRONG  {area}: {result.attack}: {result.wrong}", flush=True)
    print(f"{area:<12}{tried:>8}{wrong:>8}{time.monotonic() - began:>9.0f}", flush=True)
    return int(bool(wrong) or not tried)


if __name__ == "__main__":
    sys.exit(main())
