"""One draw: what is made, where it runs, and whether it left what is right."""

import random
import warnings
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf

import tf_graft as tg
from draws import places, trees, truth

SHAPES = {"table": (6, 4), "kernel": (4, 4), "bias": (4,), "scale": ()}
PARTS = 2  # of each step's gradient: replicas have one each
# How often each place is drawn; on a mesh a step is eager, and takes long.
OFTEN = {"eager": 8, "function": 6, "xla": 3, "replicas": 3, "fit": 3, "mesh": 1}
# A step may be off by so much, relative to the largest of a variable.
RTOL = 1e-5
# Half of the distance between two numbers next to each other, relative to them.
ROUNDED = {"float16": 2.0**-11, "bfloat16": 2.0**-8}


class Problem(NamedTuple):
    """What an optimizer is given.

    Attributes:
        weights: by path, with which it begins.
        steps: for each step, for each replica, the gradients by path; those of some may be absent.
        dtype: of the variables.
    """

    weights: dict[str, np.ndarray]
    steps: list[list[dict[str, truth.Gradient]]]
    dtype: str


class Draw:
    """What follows from one number.

    Args:
        number: the number.
        place: where it runs, if that is not drawn.
    """

    def __init__(self, number: int, place: str | None = None):
        r = random.Random(number)
        self.number = number
        self.spec, self.options = trees.drawn(r)
        drawn = r.choices(list(OFTEN), OFTEN.values())[0]
        self.place = place or drawn
        agn = self.spec.kind == "agn"
        halves = [*(["float16", "bfloat16"] if self.place not in ("fit", "mesh") else [])]
        self.dtype = r.choice(
            ["float32"] * 4 + (["float64"] if self.place != "fit" else []) + halves
        )
        self.way = self._way(r, agn)
        self.built = r.random() < 0.5
        infinite = r.random() < 0.2 and not (agn and self.place == "replicas")
        self.problem = self._problem(np.random.default_rng(number), infinite)

    def _way(self, r, agn):
        """How it is saved in mid-run. On replicas a file holds the first one's local copy."""
        ways = [None, "checkpoint", "store", "weights"]
        if self.place in ("replicas", "mesh"):
            ways = [None, "checkpoint"]
        if agn and self.place == "replicas":
            ways = [None]
        return r.choice(ways)

    def _problem(self, random, infinite):
        def numbers(shape):
            return np.round(random.normal(size=shape) * 32) / 64

        steps = []
        for _ in range(int(random.integers(4, 7))):
            rows = [random.integers(0, 5, 2) for _ in range(PARTS)]  # of six, and some repeat
            parts = [
                {
                    path: truth.Gradient(numbers((2, 4)), at)
                    if path == "table"
                    else truth.Gradient(numbers(shape))
                    for path, shape in SHAPES.items()
                }
                for at in rows
            ]
            steps.append(parts if self.place in ("replicas", "fit") else [self._sum(parts)])
        if infinite:
            last = steps[int(random.integers(len(steps)))][-1]
            last["kernel"].values[0, 0] = np.inf
        if self.place != "fit" and random.random() < 0.25:
            steps = [self._without_some(shares, random) for shares in steps]
        weights = {path: np.float32(numbers(shape) * 2) for path, shape in SHAPES.items()}
        return Problem(weights, steps, self.dtype)

    @staticmethod
    def _without_some(shares, random):
        """The same without the gradients of some variables, but not of all."""
        kept = [*random.permutation(list(SHAPES))[: random.integers(1, len(SHAPES) + 1)]]
        return [{path: share[path] for path in SHAPES if path in kept} for share in shares]

    @staticmethod
    def _sum(parts):
        return {path: truth.summed([part[path] for part in parts]) for path in parts[0]}

    def __str__(self):
        saved = f", saved by {self.way}" if self.way else ""
        return f"draw {self.number}: {self.place}, {self.dtype}{saved}: {trees.said(self.spec)}"

    def make(self):
        return tg.wrap(trees.made(self.spec))

    def expected(self):
        """What is right, and the largest step of each variable."""
        replicas = PARTS if self.place == "replicas" else 1
        right = trees.right(self.spec, self.options, self.problem.weights, replicas)
        largest, half = dict.fromkeys(SHAPES, 0.0), len(self.problem.steps) // 2
        for number, shares in enumerate(self.problem.steps, 1):
            before = right.left()
            with np.errstate(all="ignore"):
                right.apply(shares if self.place == "replicas" else [self._sum(shares)])
            for path in SHAPES:
                moved = np.abs(right.left()[f"w/{path}"] - before[f"w/{path}"]).max()
                largest[path] = max(largest[path], moved)
            if self.place == "fit" and number in (half, len(self.problem.steps)):
                right.finalize()
        return right.left(), largest

    def found(self) -> dict[str, Any]:
        """What the package leaves."""
        if self.place != "fit":
            place = places.PLACES[self.place]
            return places.run(place, self.make, self.problem, self.way, self.built)
        model = places.fitted(self.make, self.problem, self.way)
        return places.left(places.Place(), model.optimizer, model.trainable_variables, self.problem)

    def wrong(self) -> str | None:
        """What is wrong; None where nothing is."""
        tf.random.set_seed(self.number)
        keras.backend.clear_session(free_memory=False)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                warnings.filterwarnings("ignore", ".*no gradient for", UserWarning)
                warnings.filterwarnings("ignore", "__array__ implementation", DeprecationWarning)
                found = self.found()
        except Exception as error:  # whatever it raises is wrong
            return f"{type(error).__name__}: {error}"[:600]
        right, largest = self.expected()
        if found.keys() != right.keys():
            return f"it leaves {sorted(found)}, right are {sorted(right)}"
        return next(filter(None, (self._off(n, found[n], right[n], largest) for n in right)), None)

    def _off(self, name, found, right, largest):
        path = name.rpartition("/")[2]
        if path not in SHAPES:
            return None if int(found) == right else f"{name} is {found}, right is {right}"
        computed = "float64" if self.dtype == "float64" else "float32"
        size = np.abs(right).max() + largest[path]
        allowed = len(self.problem.steps) * (np.finfo(computed).eps * size + RTOL * largest[path])
        allowed += 1e-7
        if not name.startswith("average/"):
            allowed += ROUNDED.get(self.dtype, 0.0) * size
        error = np.abs(np.asarray(found, np.float64) - right).max()
        if error <= allowed:
            return None
        return f"{name} is off by {error:.2g} of {allowed:.2g}: {found.tolist()}, {right.tolist()}"
