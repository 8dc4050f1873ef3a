"""Guarantees of the pipeline around the algorithm, and of wrappers that contain the optimizer."""

from collections.abc import Callable

import numpy as np
import tensorflow as tf

from tf_graft.agn import AGN
from tf_graft.core.optimizer import Optimizer
from tf_graft.grafting import AdaGraft
from tf_graft.scaling import FixedScaler, MixedPrecision
from tf_graft.testing.trials import (
    SHAPES,
    STEPS,
    State,
    Trial,
    gradients,
    same,
    skip_unless_steps_alone,
)
from tf_graft.wrappers import LARC

Make = Callable[..., Optimizer]
SKIPPED = "optimizer/skipped_steps"


def nonfinite(make: Make) -> str:
    """A step with a NaN changes nothing: `"skip"` counts it, and `"raise"` refuses it."""
    spoiled = [{**step, "bias": step["bias"] * np.nan} for step in gradients(1)]
    for mode in ("skip", "raise"):
        trial = Trial(make(nonfinite=mode)).run(gradients(2))
        before = trial.state()
        try:
            trial.run(spoiled)
        except tf.errors.InvalidArgumentError:
            raised = True
        else:
            raised = False
        if raised != (mode == "raise"):
            raise AssertionError(f"nonfinite='{mode}' {'raised' if raised else 'did not raise'}")
        counted = before[SKIPPED] + (mode == "skip")
        same(f"{mode}, before", trial.state(), before | {SKIPPED: counted}, ulps=0)
    return "skip, raise: the state before"


def accumulation(make: Make) -> str:
    """Two micro-steps make one update with the mean of their gradients."""
    halves = []
    for step, other in zip(gradients(), reversed(gradients()), strict=True):
        halves += [{p: sign * other[p] + g for p, g in step.items()} for sign in (1, -1)]
    accumulated = Trial(make(gradient_accumulation_steps=2)).run(halves)
    if int(accumulated.optimizer.iterations) != STEPS:
        raise AssertionError(f"{int(accumulated.optimizer.iterations)} updates, not {STEPS}")
    return same("the means", accumulated.weights(), Trial(make()).run(gradients()).weights())


def clipping(make: Make) -> str:
    """`global_clipnorm` acts on all gradients together, before the algorithm."""
    clipped = []
    for step in gradients():
        norm = np.sqrt(sum(np.sum(g.astype("float64") ** 2) for g in step.values()))
        clipped.append({p: (g * min(1.0, 2.0 / norm)).astype("float32") for p, g in step.items()})
    given = Trial(make(global_clipnorm=2.0)).run(gradients()).weights()
    return same("clipped before", given, Trial(make()).run(clipped).weights(), ulps=100)


def averages(make: Make) -> str:
    """`use_ema` averages the weights, beginning with those after the first step."""
    skip_unless_steps_alone(make)
    optimizer = make(use_ema=True, ema_momentum=0.5)
    trial, expected = Trial(optimizer), State()
    for step in gradients():
        now = trial.run([step]).weights()
        expected = {p: 0.5 * expected[p] + 0.5 * w if expected else w for p, w in now.items()}
    found = dict(zip(SHAPES, (v.numpy() for v in optimizer.synchronized_averages()), strict=True))
    return same("averages of the weights", found, expected)


def in_adagraft(make: Make) -> str:
    """An optimizer grafted on itself takes its own steps."""
    return _alone(make, lambda: AdaGraft(make(name="magnitude"), make(name="direction")))


def in_larc(make: Make) -> str:
    """In a LARC that scales nothing, an optimizer takes its own steps."""
    return _alone(make, lambda: LARC(make(), eta=1e20))


def in_agn(make: Make) -> str:
    """In an AGN that has not yet communicated, an optimizer takes its own steps."""
    return _alone(make, lambda: AGN(make(), communication_period=10 * STEPS))


def in_mixed_precision(make: Make) -> str:
    """With a scaled loss and scaled gradients, an optimizer takes its own steps."""
    skip_unless_steps_alone(make)
    scaled = [{path: 8 * g for path, g in step.items()} for step in gradients()]
    mixed = Trial(MixedPrecision(make(), FixedScaler(8.0))).run(scaled)
    return same("alone", mixed.weights(), Trial(make()).run(gradients()).weights())


def _alone(make: Make, wrapper: Callable[[], Optimizer]) -> str:
    skip_unless_steps_alone(make)
    steps = gradients()
    return same("alone", Trial(wrapper()).run(steps).weights(), Trial(make()).run(steps).weights())


GUARANTEES = (
    *(nonfinite, accumulation, clipping, averages),
    *(in_adagraft, in_larc, in_agn, in_mixed_precision),
)
