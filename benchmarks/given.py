"""Steps on given gradients: large tensors, compiled by XLA or not, many small ones, many tables."""

import functools
import itertools
import math
from collections.abc import Callable, Iterable
from typing import Any, TypeAlias

import keras
import numpy as np
import tensorflow as tf

from benchmarks import peer_tables, peers
from benchmarks.cases import SCALE, Candidate, Case, Choice, Shapes, Step
from benchmarks.optimizers import OPTIMIZERS, PLAIN, Make, Named
from benchmarks.peer_tables import BATCHES, IDS_OF_A_STEP, WIDTH

Tensors: TypeAlias = tuple[list[Any], Callable[[], list[Any]]]

XLA = ("SGD, momentum", "Adam", "Adam, global_clipnorm")
# Measured only when asked for.
SELDOM = (
    "LARC of SGD",
    "NovoGrad",
    "Adadelta",
    "Adamax",
    "NAdamW",
    "AdaBelief",
    "RowWiseAdagrad",
    "Adam, Settable",
    "Adafactor",
    "MARS",
    "Yogi",
    "ADOPT",
    "SGDSaI",
    "COCOB",
    "Cautious of Adam",
    "ScheduleFreeSGD",
    "ScheduleFreeRAdam",
)
SMALL = 1500
ENTRIES = (256, 4096)  # of a small tensor
TABLES = (100, 1000)
ROWS, IDS = (100, 10_000), 64  # of a table
SIZES = (10**4, 10**5, 10**6, 10**7)  # rows of a table
ON_SIZES = ("Adam", "Adagrad", "RowWiseAdagrad")


def dense(choice: Choice) -> Iterable[Case]:
    """Makes a case of every optimizer on the tensors of ResNet-50."""
    for name in OPTIMIZERS:
        usual = name not in SELDOM
        yield on(resnet(), name, unchecked=name in PLAIN, beside=choice.peers, usual=usual)


def xla(_: Choice) -> Iterable[Case]:
    """Makes the same cases, compiled."""
    for name in OPTIMIZERS:
        yield on(resnet(), name, compiled=True, usual=name in XLA)


def small(choice: Choice) -> Iterable[Case]:
    """Makes cases of many small tensors."""
    shapes = small_shapes(SMALL)
    for name in OPTIMIZERS:
        # Other libraries only in a full run: the first call of optax takes minutes.
        beside = choice.peers and choice.full
        yield on(shapes, name, beside=beside, usual=name == "Adam")


def first(_: Choice) -> Iterable[Case]:
    """Makes the dense cases, with and without Grappler's passes, and those compiled by XLA."""
    for name in OPTIMIZERS:
        case = on(resnet(), name, usual=name not in SELDOM)
        as_traced = {
            f"{which}, as traced": functools.partial(_as_traced, prepare)
            for which, prepare in case.candidates.items()
        }
        yield case._replace(candidates={**case.candidates, **as_traced}, moved=0)
    for case in xla(Choice()):
        yield case._replace(name=f"XLA: {case.name}", moved=0)


def _as_traced(prepare: Callable[[], Candidate]) -> Candidate:
    """Prepares a candidate whose graph is run as it is traced: Grappler does not optimize it."""
    prepared = prepare()

    def start() -> Step:
        step = prepared.start()

        def unoptimized() -> None:
            tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})
            try:
                step()
            finally:
                tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": False})

        return unoptimized

    return prepared._replace(start=start)


def tables(_: Choice) -> Iterable[Case]:
    """Makes cases of many embedding tables, each of which gets a row-sparse gradient."""
    for count, (name, named) in itertools.product(TABLES, OPTIMIZERS.items()):
        if named.dtype == "float32":
            tensors = functools.partial(_tables, count)
            makers = _makers(named)
            candidates = {
                which: functools.partial(prepared, tensors, make, named.calls)
                for which, make in makers.items()
            }
            usual = name == "Adam" and count == TABLES[0]
            yield Case(f"{count:,} tables, {name}", candidates, usual=usual)


def sizes(choice: Choice) -> Iterable[Case]:
    """Makes cases of one table, each update of which touches other rows."""
    for name, rows in itertools.product(ON_SIZES, SIZES):
        usual = name == "Adam" and rows in (10**4, 10**6)
        candidates = peers.on_table(name, rows, choice.peers)
        yield Case(f"{rows:,} rows, {name}", candidates, usual=usual)


def on_table(which: str, name: str, rows: int) -> Candidate:
    """Prepares ours or stock Keras' optimizer on a table; `peer_tables` measures it."""
    return prepared(functools.partial(_table, rows), _makers(OPTIMIZERS[name])[which])


@functools.cache
def resnet() -> Shapes:
    """Returns the shapes of ResNet-50's 214 tensors."""
    model = keras.applications.ResNet50(weights=None)
    return tuple(tuple(v.shape) for v in model.trainable_variables)


def small_shapes(count: int) -> Shapes:
    """Returns the shapes of so many small tensors."""
    sizes = np.random.default_rng(0).integers(ENTRIES[0], ENTRIES[1] + 1, count)
    return tuple((int(size),) for size in sizes)


def on(
    shapes: Shapes,
    name: str,
    *,
    compiled: bool = False,
    unchecked: bool = False,
    beside: bool = False,
    usual: bool = True,
) -> Case:
    """Makes the case of one optimizer on tensors of some shapes.

    Args:
        shapes: the shapes of the tensors.
        name: the optimizer's name in `OPTIMIZERS`.
        compiled: whether XLA compiles the function around the step.
        unchecked: whether ours are measured with `nonfinite="apply"` too.
        beside: whether the other libraries are measured too.
        usual: see `Case`.
    """
    named = OPTIMIZERS[name]
    makers = _makers(named)
    if unchecked:
        makers["unchecked"] = functools.partial(named.ours, nonfinite="apply")
    tensors = functools.partial(tensors_of, shapes, named.dtype)
    candidates: dict[str, Callable[[], Candidate]] = {
        which: functools.partial(prepared, tensors, make, named.calls, compiled)
        for which, make in makers.items()
    }
    if beside:
        candidates |= peers.candidates(name, shapes, named.calls)
    return Case(name, candidates, named.moved(sum(map(math.prod, shapes))), usual)


def _makers(named: Named) -> dict[str, Make]:
    return {"ours": named.ours, **({"stock": named.stock} if named.stock else {})}


def prepared(
    tensors: Callable[[], Tensors], make: Make, calls: int = 1, compiled: bool = False
) -> Candidate:
    """Prepares an optimizer on existing variables and gradients."""
    weights, gradients = tensors()
    optimizer = make()

    @tf.function(jit_compile=compiled or None)
    def apply() -> None:
        optimizer.apply(gradients(), weights)

    def start() -> Step:
        optimizer.build(weights)
        return lambda: [apply() for _ in range(calls)]

    return Candidate(start, lambda: weights, trace=apply.get_concrete_function)


def tensors_of(shapes: Shapes, dtype: str = "float32") -> Tensors:
    """Makes weights of their own for a candidate, `v0` and so on, and gradients that all share.

    Weights that another candidate moves would disagree with their float32 masters at each step.
    """
    kept = _gradients(shapes, dtype)
    return _random(shapes, dtype), lambda: [tf.convert_to_tensor(gradient) for gradient in kept]


@functools.lru_cache(maxsize=1)
def _gradients(shapes: Shapes, dtype: str) -> list[tf.Variable]:
    """Makes gradients, which it costs nothing to read from variables.

    Candidates share them to save memory: TensorFlow keeps the graph of stock Keras' `apply`, with
    every variable in the graph, until the process ends.
    """
    return _random(shapes, dtype)


def _random(shapes: Shapes, dtype: str) -> list[tf.Variable]:
    made = (tf.cast(tf.random.normal(shape, stddev=SCALE), dtype) for shape in shapes)
    return [tf.Variable(value, name=f"v{i}") for i, value in enumerate(made)]


def _table(rows: int) -> Tensors:
    """Makes a table, and a gradient of other rows at each call: no cache has them."""
    shape = rows, WIDTH
    weights = tf.Variable(tf.random.normal(shape, stddev=SCALE))
    batches, turn = tf.Variable(peer_tables.ids(rows)), tf.Variable(0)
    values = tf.Variable(tf.random.normal([IDS_OF_A_STEP, WIDTH], stddev=SCALE))

    def gradients() -> list[tf.IndexedSlices]:
        now = tf.gather(batches, turn.assign_add(1) % BATCHES)
        return [tf.IndexedSlices(tf.convert_to_tensor(values), now, tf.constant(shape))]

    return [weights], gradients


def _tables(count: int) -> Tensors:
    """Makes tables of mixed sizes, and a gradient of some rows for each."""
    random = np.random.default_rng(0)
    rows = np.exp(random.uniform(math.log(ROWS[0]), math.log(ROWS[1]), count)).astype(int)
    weights = [tf.Variable(tf.random.normal([n, WIDTH], stddev=SCALE)) for n in rows]
    ids = [tf.Variable(random.integers(0, n, IDS)) for n in rows]
    values = tf.Variable(tf.random.normal([IDS, WIDTH], stddev=SCALE))

    def gradients() -> list[tf.IndexedSlices]:
        return [
            tf.IndexedSlices(
                tf.convert_to_tensor(values), tf.convert_to_tensor(i), tf.constant(list(w.shape))
            )
            for i, w in zip(ids, weights, strict=True)
        ]

    return weights, gradients
