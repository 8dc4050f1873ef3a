"""Whole training steps of three models: plain, compiled, in half precision, replicated, wrapped."""

import functools
from collections.abc import Callable, Iterable
from typing import Any

import tensorflow as tf

from benchmarks.cases import Candidate, Case, Choice
from benchmarks.models import MODELS
from benchmarks.optimizers import (
    PLAIN,
    Make,
    adagraft,
    agn,
    larc,
    mixed_precision,
    multi,
    multi_all_on,
)
from benchmarks.training import training

SHORT = ("Transformer", "Embeddings")  # the models for which a usual run has time
POLICIES = ("mixed_bfloat16", "mixed_float16")


WRAPPERS: dict[str, Make] = {
    "AdaGraft": adagraft,
    "MixedPrecision": mixed_precision,
    "AGN": agn,
    "LARC": larc,
    "MultiOptimizer": multi,
    "MultiOptimizer, all on": multi_all_on,
}
SELDOM = (
    "MultiOptimizer",
    "MultiOptimizer, all on",
)  # of the wrappers, measured only when asked for


def plain(_: Choice) -> Iterable[Case]:
    """Makes a case of each model and optimizer, as `compile` does by default."""
    for model in MODELS:
        for name in PLAIN:
            usual = name == "Adam" or (name == "SGD, momentum" and model in SHORT)
            yield _case(model, name, usual=usual)


def xla(_: Choice) -> Iterable[Case]:
    """Makes the same cases, compiled by XLA."""
    for model in MODELS:
        for name in PLAIN:
            usual = name == "Adam" and model in SHORT
            yield _case(model, name, compiled=True, usual=usual)


def half(_: Choice) -> Iterable[Case]:
    """Makes cases of Keras' policies of mixed precision, and of `MixedPrecision` in float16."""
    for model in MODELS:
        usual = model == SHORT[0]
        for policy in POLICIES:
            yield _case(model, "Adam", title=f"{model}, {policy}", policy=policy, usual=usual)
        title = f"{model}, MixedPrecision"
        yield _case(model, "Adam", mixed_precision, title=title, policy=POLICIES[1], usual=usual)


def replicas(_: Choice) -> Iterable[Case]:
    """Makes cases of two replicas; the process must have two logical CPUs."""
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    for model in MODELS:
        yield _case(model, "Adam", usual=model in SHORT, strategy=strategy)
        title, usual = f"{model}, AGN of Adam", model == SHORT[0]
        yield _case(model, "Adam", agn, title=title, usual=usual, strategy=strategy)


def wrappers(_: Choice) -> Iterable[Case]:
    """Makes cases of each wrapper, compared with stock Keras' Adam or SGD alone."""
    for model in MODELS:
        for name, make in WRAPPERS.items():
            inner = "SGD, momentum" if name == "LARC" else "Adam"
            title = f"{model}, {name} of {inner}"
            usual = model == SHORT[0] and name not in SELDOM
            yield _case(model, inner, make, title=title, usual=usual)


def _case(
    model: str,
    name: str,
    ours: Make | None = None,
    *,
    title: str = "",
    usual: bool = True,
    **given: Any,
) -> Case:
    """Makes the case of a model trained by one of `PLAIN`, or by `ours` and by stock Keras'."""
    task = MODELS[model]()
    makers = {"ours": ours or PLAIN[name].ours, "stock": PLAIN[name].stock}
    candidates: dict[str, Callable[[], Candidate]] = {
        which: functools.partial(training, task, make, **given)
        for which, make in makers.items()
        if make
    }
    return Case(title or f"{model}, {name}", candidates, usual=usual)
