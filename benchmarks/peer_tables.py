"""The steps on one table of which each gradient touches a few rows, by all libraries.

A library is imported when it is measured, and uses as many threads as TensorFlow. Every step takes
the ids of other rows, which no cache contains if the table is large.
"""

import functools
import itertools
import os
from collections.abc import Callable, Collection
from typing import Any, NamedTuple

import numpy as np

from benchmarks import process
from benchmarks.cases import RATE, SCALE, Candidate, Step

WIDTH, BATCHES, IDS_OF_A_STEP = 16, 64, 4096

TORCH: dict[str, tuple[str, dict[str, Any]]] = {
    "Adam": ("SparseAdam", {}),
    "Adagrad": ("Adagrad", {"initial_accumulator_value": 0.1}),
}
# Names of its enumeration. On a CPU it has no Adam.
FBGEMM = {"Adagrad": "EXACT_ADAGRAD", "RowWiseAdagrad": "EXACT_ROWWISE_ADAGRAD"}
OPTAX = {"Adam": "adam", "Adagrad": "adagrad"}


def ids(rows: int) -> np.ndarray:
    """Returns the ids of each step."""
    return np.random.default_rng(0).integers(0, rows, [BATCHES, IDS_OF_A_STEP])


def of_torch(name: str, rows: int) -> Candidate:
    """Prepares an optimizer of torch, which sums the gradients of repeated ids in its step."""
    torch = _torch()
    weight = torch.nn.Parameter(torch.from_numpy(_normal(rows)))
    batches, values = torch.from_numpy(ids(rows)).unsqueeze(1), torch.from_numpy(_normal())
    cls, given = TORCH[name]

    def start() -> Step:
        optimizer = getattr(torch.optim, cls)([weight], RATE, **given)
        turns = itertools.cycle(batches)

        def step() -> None:
            weight.grad = torch.sparse_coo_tensor(next(turns), values, weight.shape)
            optimizer.step()

        return step

    return Candidate(start, lambda: [weight.detach()])


def of_fbgemm(name: str, rows: int) -> Candidate:
    """Prepares a table of FBGEMM, which updates it while it goes backward.

    So a step is a look-up too. Each id is a bag of its own: that is FBGEMM's fastest look-up.
    """
    torch = _torch()
    from fbgemm_gpu import split_table_batched_embeddings_ops_training as fbgemm
    from fbgemm_gpu.split_embedding_configs import EmbOptimType

    place = fbgemm.EmbeddingLocation.HOST, fbgemm.ComputeDevice.CPU
    table = fbgemm.SplitTableBatchedEmbeddingBagsCodegen(
        [(rows, WIDTH, *place)],
        optimizer=EmbOptimType[FBGEMM[name]],
        learning_rate=RATE,
        eps=1e-7,
    )
    (weight,) = table.split_embedding_weights()
    weight.copy_(torch.from_numpy(_normal(rows)))
    batches, values = torch.from_numpy(ids(rows)), torch.from_numpy(_normal())
    bags = torch.arange(IDS_OF_A_STEP + 1)

    def start() -> Step:
        turns = itertools.cycle(batches)
        return lambda: table(next(turns), bags).backward(values)

    return Candidate(start, lambda: [weight])


def of_optax(name: str, rows: int) -> Candidate:
    """Prepares an optimizer of optax, whose gradients are dense; a step makes its gradient."""
    import jax
    import optax

    kept = {"weight": jax.numpy.asarray(_normal(rows))}
    batches, values = [jax.numpy.asarray(batch) for batch in ids(rows)], _normal()

    def start() -> Step:
        optimizer = getattr(optax, OPTAX[name])(RATE)
        kept["state"] = optimizer.init(kept["weight"])
        turns, given = itertools.cycle(batches), jax.numpy.asarray(values)

        @functools.partial(jax.jit, donate_argnums=(0, 1))
        def apply(weight: Any, state: Any, touched: Any, values: Any) -> Any:
            gradient = jax.numpy.zeros_like(weight).at[touched].add(values)
            updates, state = optimizer.update(gradient, state, weight)
            return optax.apply_updates(weight, updates), state

        def step() -> None:
            kept["weight"], kept["state"] = apply(kept["weight"], kept["state"], next(turns), given)
            jax.block_until_ready(kept["weight"])

        return step

    return Candidate(start, lambda: [kept["weight"]])


def of_keras(which: str, name: str, rows: int) -> Candidate:
    """Prepares ours or stock Keras' optimizer."""
    with process.without_messages():  # of TensorFlow, on every machine
        from benchmarks import given

    return given.on_table(which, name, rows)


class Steps(NamedTuple):
    """A library's steps.

    `rules` are the names of the optimizers that it has, `most` is the size of the largest table
    that is measured, and `touches` is the number of steps before the first that is measured: the
    system gives out memory when it is touched for the first time, and then in large pages.
    """

    rules: Collection[str]
    most: int
    touches: int
    prepare: Callable[[str, int], Candidate]


ALL = 10**7
STEPS = {
    "ours": Steps(
        ("Adam", "Adagrad", "RowWiseAdagrad"), ALL, BATCHES, functools.partial(of_keras, "ours")
    ),
    "stock": Steps(("Adam", "Adagrad"), ALL, 1, functools.partial(of_keras, "stock")),
    "torch": Steps(TORCH, ALL, BATCHES, of_torch),
    "fbgemm": Steps(FBGEMM, ALL, BATCHES, of_fbgemm),
    "optax": Steps(OPTAX, 10**6, 1, of_optax),
}


def prepared(library: str, name: str, rows: int) -> Candidate:
    """Prepares a library's version of an optimizer on a table, with its first steps in `start`."""
    steps = STEPS[library]
    candidate = steps.prepare(name, rows)

    def start() -> Step:
        step = candidate.start()
        for _ in range(steps.touches):
            step()
        return step

    return candidate._replace(start=start)


def _torch() -> Any:
    # Otherwise its threads would still be spinning in the turn of the next candidate.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    import torch

    torch.set_num_threads(process.cores())
    torch.sparse.check_sparse_tensor_invariants.disable()  # as by default, but without a warning
    return torch


def _normal(rows: int = IDS_OF_A_STEP) -> np.ndarray:
    """Makes a table, or the gradients of a step."""
    return SCALE * np.random.default_rng(1).standard_normal([rows, WIDTH], dtype="float32")
