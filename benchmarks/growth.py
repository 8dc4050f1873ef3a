"""How the cost of an update grows with the work: a case for each amount of a kind of work."""

import functools
from collections.abc import Callable, Iterable
from typing import NamedTuple

import keras
import tensorflow as tf

import tf_graft as tg
from benchmarks.cases import Candidate, Case, Choice, Step
from benchmarks.given import prepared, small_shapes, tensors_of
from benchmarks.optimizers import PLAIN, Make

COUNT = 200  # tensors, unless their number grows
ADAM = PLAIN["Adam"]


class Kind(NamedTuple):
    """A kind of work: its amounts, and what prepares an update of an amount by an optimizer.

    `stock` is the largest amount for which stock Keras is measured, 0 if it has no such thing;
    `usual` is the largest one that is measured if nobody asks for more.
    """

    prepare: Callable[[int, Make], Candidate]
    amounts: tuple[int, ...]
    stock: int
    usual: int


def cases(_: Choice) -> Iterable[Case]:
    """Makes a case of Adam for every amount of every kind of work."""
    for unit, kind in KINDS.items():
        for amount in kind.amounts:
            stock = ADAM.stock if amount <= kind.stock else None
            candidates = {
                which: functools.partial(kind.prepare, amount, make)
                for which, make in {"ours": ADAM.ours, "stock": stock}.items()
                if make
            }
            yield Case(f"{amount:,} {unit}", candidates, usual=amount <= kind.usual)


def _tensors(count: int, make: Make, calls: int = 1) -> Candidate:
    return prepared(functools.partial(tensors_of, small_shapes(count)), make, calls)


def _entries(count: int, make: Make) -> Candidate:
    return prepared(functools.partial(tensors_of, ((count,),)), make)


def _micro_steps(count: int, make: Make) -> Candidate:
    """Prepares an update of several calls; one call needs no accumulation."""
    options = {"gradient_accumulation_steps": count} if count > 1 else {}
    return _tensors(COUNT, functools.partial(make, **options), calls=count)


def _groups(count: int, make: Make) -> Candidate:
    """Prepares an optimizer with groups of as many tensors each."""

    def grouped() -> tg.MultiOptimizer:
        members = [range(i, COUNT, count) for i in range(count)]
        return tg.MultiOptimizer({"|".join(f"^v{n}$" for n in group): make() for group in members})

    return _tensors(COUNT, grouped)


def _wrappers(depth: int, make: Make) -> Candidate:
    """Prepares an optimizer in so many wrappers."""

    def wrapped() -> keras.optimizers.Optimizer:
        return functools.reduce(lambda inner, _: tg.Cautious(inner), range(depth), make())

    return _tensors(COUNT, wrapped)


def _replicas(count: int, make: Make) -> Candidate:
    """Prepares an update of replicas; one is an update without a strategy.

    TensorFlow's collective operations allow one number of replicas in a process.
    """
    strategy = tf.distribute.get_strategy()
    if count > 1:
        devices = [f"CPU:{i}" for i in range(count)]
        strategy = tf.distribute.MirroredStrategy(devices, tf.distribute.ReductionToOneDevice())
    with strategy.scope():
        weights, gradients = tensors_of(small_shapes(COUNT))

    def start() -> Step:
        with strategy.scope():
            optimizer = make()
            optimizer.build(weights)

        def apply() -> None:
            optimizer.apply(gradients(), weights)

        return tf.function(lambda: strategy.run(apply))

    return Candidate(start, lambda: weights)


KINDS = {
    "tensors": Kind(_tensors, (20, 200, 2000, 20_000), stock=2000, usual=2000),
    "entries": Kind(_entries, (10**4, 10**5, 10**6, 10**7, 10**8), stock=10**8, usual=10**7),
    "micro-steps": Kind(_micro_steps, (1, 4, 16, 64), stock=64, usual=64),
    "replicas": Kind(_replicas, (1, 2, 4, 8), stock=8, usual=8),
    "groups": Kind(_groups, (1, 10, 50), stock=0, usual=50),
    "wrappers": Kind(_wrappers, (1, 2, 4), stock=0, usual=4),
}
