"""Updates of `fit` through an `Embedding`, of a small table and of a large one."""

import functools
import itertools
from collections.abc import Callable, Iterable
from typing import Any

import keras
import numpy as np

import tf_graft as tg
from benchmarks.cases import RATE, Candidate, Case, Choice
from benchmarks.optimizers import OPTIMIZERS, PLAIN, Make, agn, mixed_precision, multi
from benchmarks.training import Task, training
from tf_graft.core.types import Config

IDS = 4096  # of a batch
IDS_OF_AN_EXAMPLE = 8
BATCHES = 10
WIDTH = 64
SMALL, LARGE = 10_000, 1_000_000
ZIPF = 1.2

MORE = ("Adadelta", "NovoGrad", "LARS", "LAMB", "LARC of SGD", "AdaGraft", "Lion", "RowWiseAdagrad")
# Measured only when asked for.
SELDOM = (
    "RAdam",
    "NAdamW",
    "AdaBelief",
    "AdEMAMix",
    "Adan",
    "Yogi",
    "ADOPT",
    "Adamax",
    "MARS",
    "SGDSaI",
    "COCOB",
    "Prodigy",
    "Adam, Settable",
    "ScheduleFreeAdamW",
)
EVERY: dict[str, Make] = {
    **{name: OPTIMIZERS[name].ours for name in (*PLAIN, *MORE, *SELDOM)},
    "wrap of Nadam": lambda **options: tg.wrap(keras.optimizers.Nadam(RATE), **options),
    "MixedPrecision of Adam": mixed_precision,
    "AGN of Adam": agn,
    "MultiOptimizer of Adam": multi,
}
ALL_ON: Config = {
    "use_ema": True,
    "weight_decay": 0.01,
    "global_clipnorm": 1.0,
    "gradient_accumulation_steps": 2,
}
NOT_OF_AGN = ("use_ema", "weight_decay")  # arguments of its two optimizers
USUAL_ALL_ON = ("Adam", "AdaGraft")


def cases(_: Choice) -> Iterable[Case]:
    """Makes a case of every optimizer and wrapper, plain and with everything turned on."""
    for on, name in itertools.product((False, True), EVERY):
        options = {
            k: v for k, v in ALL_ON.items() if on and ("AGN" not in name or k not in NOT_OF_AGN)
        }
        make = functools.partial(EVERY[name], **options)
        yield of(
            f"{name}, all on" if on else name,
            make,
            PLAIN[name].stock if name == "Adam" and not on else None,
            usual=name in USUAL_ALL_ON or not (on or name in SELDOM),
        )


def of(name: str, make: Make, stock: Make | None, rows: int = LARGE, usual: bool = True) -> Case:
    """Makes the case of an optimizer on a small table and one of `rows` rows."""
    candidates: dict[str, Callable[[], Candidate]] = {
        "small": functools.partial(training, table(SMALL), make),
        "large": functools.partial(training, table(rows), make),
    }
    if stock:
        candidates["stock"] = functools.partial(training, table(rows), stock)
    return Case(name, candidates, usual=usual)


def table(rows: int) -> Task:
    """Describes a small model with a table, trained on Zipf-distributed ids."""

    def model() -> keras.Model:
        return keras.Sequential(
            [
                keras.Input((IDS_OF_AN_EXAMPLE,), dtype="int64"),
                keras.layers.Embedding(rows, WIDTH),
                keras.layers.GlobalAveragePooling1D(),
                keras.layers.Dense(1),
            ]
        )

    def examples() -> tuple[Any, Any]:
        ids = np.random.default_rng(0).zipf(ZIPF, size=BATCHES * IDS) % rows
        ids = ids.reshape([-1, IDS_OF_AN_EXAMPLE])
        return ids, np.ones([len(ids), 1], "float32")

    return Task(model, examples, IDS // IDS_OF_AN_EXAMPLE, "mse")
