"""The same steps by other libraries, where these are installed: torch's fused ones, optax's jitted.

A library is imported when it is first measured, and takes as many threads as TensorFlow.
"""

import functools
import importlib.util
import os
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tf_graft.bench.cases import Candidate, Step
from tf_graft.bench.optimizers import OPTIMIZERS, RATE
from tf_graft.bench.results import cores

NEEDED = {"torch": ("torch",), "optax": ("optax", "jax")}
SCALE = 0.01
# The class, its arguments, and whether the gradients are clipped by their common norm.
TORCH: dict[str, tuple[str, dict[str, Any], bool]] = {
    "SGD, momentum": ("SGD", {"momentum": 0.9, "fused": True}, False),
    "Adagrad": ("Adagrad", {"initial_accumulator_value": 0.1, "fused": True}, False),
    "RMSprop": ("RMSprop", {"alpha": 0.9, "foreach": True}, False),  # it has no fused one
    "Adam": ("Adam", {"fused": True}, False),
    "AdamW": ("AdamW", {"fused": True}, False),
    "Adam, global_clipnorm": ("Adam", {"fused": True}, True),
    "Adadelta": ("Adadelta", {"rho": 0.95, "foreach": True}, False),
}
OPTAX: dict[str, Callable[[Any], Any]] = {
    "SGD, momentum": lambda optax: optax.sgd(RATE, momentum=0.9),
    "Adagrad": lambda optax: optax.adagrad(RATE),
    "RMSprop": lambda optax: optax.rmsprop(RATE),
    "Adam": lambda optax: optax.adam(RATE),
    "AdamW": lambda optax: optax.adamw(RATE),
    "Adam, global_clipnorm": lambda optax: optax.chain(
        optax.clip_by_global_norm(1.0), optax.adam(RATE)
    ),
    "Adam, accumulation": lambda optax: optax.MultiSteps(optax.adam(RATE), 2),
    "LAMB": lambda optax: optax.lamb(RATE),
    "LARS": lambda optax: optax.lars(RATE),
    "NovoGrad": lambda optax: optax.novograd(RATE),
    "Adadelta": lambda optax: optax.adadelta(RATE),
}


def missing() -> list[str]:
    """Says, of each library that is not installed, that its column stays empty."""
    return [
        f"{name} is not installed, and is not measured: pip install {' '.join(packages)}."
        for name, packages in NEEDED.items()
        if not _installed(name)
    ]


def candidates(name: str, shapes: Sequence[tuple[int, ...]]) -> dict[str, Callable[[], Candidate]]:
    """Returns what the installed libraries have of an optimizer of `OPTIMIZERS`."""
    found: dict[str, Callable[[], Candidate]] = {}
    if name in TORCH and _installed("torch"):
        found["torch"] = functools.partial(_of_torch, name, shapes)
    if name in OPTAX and _installed("optax"):
        found["optax"] = functools.partial(_of_optax, name, shapes)
    return found


def _installed(name: str) -> bool:
    return all(importlib.util.find_spec(package) for package in NEEDED[name])


def _of_torch(name: str, shapes: Sequence[tuple[int, ...]]) -> Candidate:
    # Else its threads would still be spinning in the turn of the next candidate.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    import torch

    torch.set_num_threads(cores())
    weights = [torch.nn.Parameter(torch.from_numpy(value)) for value in _values(shapes, 0)]
    for weight, gradient in zip(weights, _values(shapes, 1), strict=True):
        weight.grad = torch.from_numpy(gradient)
    cls, given, clipped = TORCH[name]

    def start() -> Step:
        optimizer = getattr(torch.optim, cls)(weights, RATE, **given)

        def step() -> None:
            if clipped:
                torch.nn.utils.clip_grad_norm_(weights, 1.0)
            optimizer.step()

        return step

    return Candidate(start, lambda: [weight.detach() for weight in weights])


def _of_optax(name: str, shapes: Sequence[tuple[int, ...]]) -> Candidate:
    import jax
    import optax

    kept = {"weights": [jax.numpy.asarray(value) for value in _values(shapes, 0)]}
    gradients = [jax.numpy.asarray(value) for value in _values(shapes, 1)]

    def start() -> Step:
        optimizer = OPTAX[name](optax)
        state = {"": optimizer.init(kept["weights"])}

        @functools.partial(jax.jit, donate_argnums=(0, 1))
        def apply(weights: Any, state: Any, gradients: Any) -> Any:
            updates, state = optimizer.update(gradients, state, weights)
            return optax.apply_updates(weights, updates), state

        def step() -> None:
            for _ in range(OPTIMIZERS[name].calls):
                kept["weights"], state[""] = apply(kept["weights"], state[""], gradients)
            jax.block_until_ready(kept["weights"])

        return step

    return Candidate(start, lambda: kept["weights"])


def _values(shapes: Sequence[tuple[int, ...]], seed: int) -> list[np.ndarray]:
    random = np.random.default_rng(seed)
    return [SCALE * random.standard_normal(shape, dtype="float32") for shape in shapes]
