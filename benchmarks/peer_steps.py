"""The steps of other libraries on given gradients: torch's fused ones, optax's jitted.

A library is imported when it is measured, and uses as many threads as TensorFlow.
"""

import functools
import os
from collections.abc import Callable, Collection
from typing import Any, TypeAlias

import numpy as np

from benchmarks.cases import RATE, SCALE, Candidate, Shapes, Step
from benchmarks.process import cores

# The class, its arguments, and whether the gradients are clipped by their common norm.
TORCH: dict[str, tuple[str, dict[str, Any], bool]] = {
    "SGD, momentum": ("SGD", {"momentum": 0.9, "fused": True}, False),
    "Adagrad": ("Adagrad", {"initial_accumulator_value": 0.1, "fused": True}, False),
    "RMSprop": ("RMSprop", {"alpha": 0.9, "foreach": True}, False),  # it has no fused version
    "Adam": ("Adam", {"fused": True}, False),
    "AdamW": ("AdamW", {"fused": True}, False),
    "Adam, global_clipnorm": ("Adam", {"fused": True}, True),
    "Adadelta": ("Adadelta", {"rho": 0.95, "foreach": True}, False),
    # None of these has a fused version.
    "RAdam": ("RAdam", {"foreach": True}, False),
    "NAdam": ("NAdam", {"foreach": True}, False),
    "NAdamW": ("NAdam", {"foreach": True, "decoupled_weight_decay": True}, False),
    "Adamax": ("Adamax", {"foreach": True}, False),
    "Adafactor": ("Adafactor", {"foreach": True}, False),
    "Muon": ("Muon", {}, False),
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
    "Lion": lambda optax: optax.lion(RATE),
    "RAdam": lambda optax: optax.radam(RATE),
    "NAdam": lambda optax: optax.nadam(RATE),
    "NAdamW": lambda optax: optax.nadamw(RATE),
    "Adamax": lambda optax: optax.adamax(RATE),
    "AdaBelief": lambda optax: optax.adabelief(RATE),
    "AdEMAMix": lambda optax: optax.contrib.ademamix(RATE),
    "Adan": lambda optax: optax.adan(RATE),
    "Yogi": lambda optax: optax.yogi(RATE),
    "ADOPT": lambda optax: optax.contrib.adopt(RATE),
    "COCOB": lambda optax: optax.contrib.cocob(),
    "Adafactor": lambda optax: optax.adafactor(RATE),
    "Prodigy": lambda optax: optax.contrib.prodigy(1.0, estim_lr0=RATE),
    "ScheduleFreeSGD": lambda optax: optax.contrib.schedule_free_sgd(RATE),
    "ScheduleFreeAdamW": lambda optax: optax.contrib.schedule_free_adamw(RATE),
    "Muon": lambda optax: optax.contrib.muon(RATE),
}


def of_torch(name: str, shapes: Shapes, _: int) -> Candidate:
    """Prepares an optimizer of torch; none of them accumulates."""
    # Otherwise its threads would still be spinning in the turn of the next candidate.
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


def of_optax(name: str, shapes: Shapes, calls: int) -> Candidate:
    """Prepares an optimizer of optax, in which `calls` gradients make an update."""
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
            for _ in range(calls):
                kept["weights"], state[""] = apply(kept["weights"], state[""], gradients)
            jax.block_until_ready(kept["weights"])

        return step

    return Candidate(start, lambda: kept["weights"])


def _values(shapes: Shapes, seed: int) -> list[np.ndarray]:
    random = np.random.default_rng(seed)
    return [SCALE * random.standard_normal(shape, dtype="float32") for shape in shapes]


Steps: TypeAlias = tuple[Collection[str], Callable[[str, Shapes, int], Candidate]]
STEPS: dict[str, Steps] = {"torch": (TORCH, of_torch), "optax": (OPTAX, of_optax)}


def prepared(library: str, *given: Any) -> Candidate:
    """Prepares a library's version of an optimizer."""
    _, prepare = STEPS[library]
    return prepare(*given)
