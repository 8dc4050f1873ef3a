"""Compiles steps of optimizers for TPUs and replays them on CPUs; prints what is wrong.

    python tests/tpu [--jax PYTHON] [--output docs/data/tpu.json] [--do programs,replays,controls]
        [--samples adam,lars] [--options plain,ema] [--wrapped agn] [--chips 1,4] [--every 1]

TensorFlow lowers them in this process; jax and libtpu may be in another environment, whose
interpreter is `--jax`. What is in the output already stays, if it is of the same versions, so that
all of it can be made in several goes. The exit code is 1 where something is wrong.
"""

import argparse
import os
import pathlib
import sys
import tempfile

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
TESTS = pathlib.Path(__file__).parents[1]
sys.path[:0] = [str(TESTS), str(TESTS.parent)]

from tpu.asking import Jax, has_jax  # noqa: E402

PARTS = ("programs", "replays", "controls")


def names(text):
    return text.split(",")


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--jax", default=sys.executable, metavar="PYTHON", help="one that has jax")
    parser.add_argument("--output", type=pathlib.Path, help="a file of JSON to add to")
    parser.add_argument("--do", type=names, default=PARTS, help=f"of {', '.join(PARTS)}")
    parser.add_argument("--samples", type=names, help="rows of the table of optimizers")
    parser.add_argument("--options", type=names)
    parser.add_argument("--wrapped", type=names, help="what wraps them")
    parser.add_argument("--chips", type=lambda text: list(map(int, names(text))), default=(1, 4))
    parser.add_argument("--topology", default="v5e:2x2", help="a slice of TPUs")
    parser.add_argument("--every", type=int, default=1, help="replays one cell in so many")
    given = parser.parse_args()
    if unknown := set(given.do) - set(PARTS):
        parser.error(f"no such part: {', '.join(sorted(unknown))}")
    if not has_jax(given.jax):
        parser.error(f"{given.jax} has no jax and libtpu: pip install 'tf_graft[tpu-compiler]'")
    from tpu.run import Run, unknown_names

    if unknown := unknown_names(given):
        parser.error(f"no such name: {', '.join(unknown)}")
    with Jax(given.jax) as jax, tempfile.TemporaryDirectory() as folder:
        run = Run(jax, pathlib.Path(folder), given)
        for part in given.do:
            getattr(run, part)()
    print(f"{run.tried} tried, {run.wrong} wrong.", flush=True)
    return int(bool(run.wrong) or not run.tried)


if __name__ == "__main__":
    sys.exit(main())
