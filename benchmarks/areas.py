"""The areas that can be measured. Their modules, which need TensorFlow, are imported late."""

import importlib
from collections.abc import Iterable
from typing import NamedTuple

from benchmarks.cases import Case, Choice


class Area(NamedTuple):
    """An area; `cases` names a module of this package, and the function there that makes its cases.

    `columns` are the candidates in the order in which they are shown, `ratios` are pairs of
    candidates, and `base` is the candidate that a chart compares with. `quantities` are those of
    `results.UNITS` that are kept.
    """

    title: str
    cases: tuple[str, str]
    columns: tuple[str, ...] = ("ours", "stock")
    ratios: tuple[tuple[str, str], ...] = (("ours", "stock"),)
    base: str = "stock"
    quantities: tuple[str, ...] = ("step", "first call")
    devices: int = 1  # logical CPUs; with several, it is measured in a process of its own

    def of(self, choice: Choice) -> Iterable[Case]:
        """Makes the area's cases."""
        module, function = self.cases
        return getattr(importlib.import_module(f"benchmarks.{module}"), function)(choice)


PEERS = ("ours", "unchecked", "stock", "torch", "optax")
AREAS = {
    "dense": Area("Steps on the 214 tensors of ResNet-50", ("given", "dense"), PEERS),
    "xla": Area("The same steps compiled by XLA", ("given", "xla")),
    "small": Area("Steps on 1,500 tensors of 256 to 4,096 entries", ("given", "small"), PEERS),
    "first": Area(
        "First calls on the 214 tensors of ResNet-50",
        ("given", "first"),
        ("ours", "ours, as traced", "stock", "stock, as traced"),
        quantities=("first call", "build", "trace"),
    ),
    "matrices": Area(
        "Steps on the 24 matrices of a Transformer of width 128",
        ("matrices", "cases"),
        ("ours", "matmul", "stock", "torch", "optax"),
        (("ours", "matmul"),),
        base="matmul",
    ),
    "rows": Area(
        "Updates of fit through an Embedding of 10,000 rows and of 1,000,000",
        ("rows", "cases"),
        ("small", "large", "stock"),
        (("large", "small"), ("stock", "large")),
        base="small",
    ),
    "tables": Area("Row-sparse steps on many tables of 100 to 10,000 rows", ("given", "tables")),
    "sizes": Area(
        "Row-sparse steps on one table, 4,096 ids a step",
        ("given", "sizes"),
        ("ours", "stock", "torch", "fbgemm", "optax"),
        quantities=("step", "first call", "peak memory"),
    ),
    "growth": Area("Steps as the work grows", ("growth", "cases"), devices=8),
    "fit": Area("Training steps of fit", ("fit", "plain")),
    "fit-xla": Area("Training steps of fit compiled by XLA", ("fit", "xla")),
    "half": Area("Training steps of fit in half precision", ("fit", "half")),
    "wrappers": Area("Training steps of fit with wrappers", ("fit", "wrappers")),
    "replicas": Area("Training steps of fit on two replicas", ("fit", "replicas"), devices=2),
}
