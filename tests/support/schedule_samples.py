"""Schedules, each with its float64 oracle; and what OpenSeq2Seq computed."""

import json
import math
from pathlib import Path

import keras

from tf_graft.schedules import (
    ExpDecay,
    FixedLR,
    InvPolyDecay,
    Noam,
    PiecewiseConstant,
    PolyDecay,
    TransformerSchedule,
    Warmup,
)

CosineDecay = keras.optimizers.schedules.CosineDecay
GOLDENS = json.loads((Path(__file__).parents[1] / "goldens" / "lr_policies.json").read_text())[
    "cases"
]
RECORDED = [case for case in GOLDENS if "values" in case]


def fixed_oracle(t, learning_rate):
    return learning_rate


def exp_oracle(t, lr, steps, rate, staircase=False, begin=0, floor=0.0):
    if t < begin:
        return lr
    exponent = (t - begin) // steps if staircase else (t - begin) / steps
    return max(floor, lr * math.exp(exponent * math.log(rate)))


def poly_oracle(t, lr, steps, power=1.0, begin=0, floor=0.0, warmup=0):
    if t < warmup:
        return lr * t / warmup
    start = max(begin, warmup)
    if t < start:
        return lr
    if t >= start + steps:
        return floor
    return floor + (lr - floor) * ((start + steps - t) / steps) ** power


def inv_poly_oracle(t, lr, steps, floor, power=1.0, begin=0, warmup=0):
    if t < warmup:
        return lr * t / warmup
    elapsed = min(max(t - max(begin, warmup), 0), steps)
    speed = ((lr / floor) ** (1 / power) - 1) / steps
    return lr * (1 + speed * elapsed) ** -power


def piecewise_oracle(t, lr, boundaries, factors):
    for boundary, factor in zip(boundaries, [1.0, *factors], strict=False):
        if t <= boundary:
            return lr * factor
    return lr * factors[-1]


def noam_oracle(t, lr, d_model, warmup, cap=math.inf, coefficient=1.0):
    n = t + 1
    rising = n < warmup
    rate = n / warmup**1.5 if rising else 1 / math.sqrt(n)
    return min(cap, lr * coefficient * rate / math.sqrt(d_model))


def warmup_oracle(t, steps, factor, after):
    return factor(t / steps) * after(0) if t < steps else after(t - steps)


def straight(t):
    return poly_oracle(t, 2.0, 10)


SAMPLES = {
    "fixed": (FixedLR(0.3), lambda t: fixed_oracle(t, 0.3)),
    "exp": (ExpDecay(0.3, 7, 0.9), lambda t: exp_oracle(t, 0.3, 7, 0.9)),
    "exp_stairs": (
        ExpDecay(0.3, 7, 0.9, True, 5, 0.1),
        lambda t: exp_oracle(t, 0.3, 7, 0.9, True, 5, 0.1),
    ),
    "exp_long": (
        ExpDecay(0.3, 1, 0.999999, begin_decay_at=1000),
        lambda t: exp_oracle(t, 0.3, 1, 0.999999, begin=1000),
    ),
    "poly": (PolyDecay(0.3, 20), lambda t: poly_oracle(t, 0.3, 20)),
    "poly_all": (
        PolyDecay(0.3, 20, 2.5, 9, 0.02, 4),
        lambda t: poly_oracle(t, 0.3, 20, 2.5, 9, 0.02, 4),
    ),
    "poly_long": (
        PolyDecay(0.3, 20_000_000, 0.5, min_lr=0.02, warmup_steps=12),
        lambda t: poly_oracle(t, 0.3, 20_000_000, 0.5, 0, 0.02, 12),
    ),
    "inv_poly": (InvPolyDecay(0.3, 20, 0.02), lambda t: inv_poly_oracle(t, 0.3, 20, 0.02)),
    "inv_poly_all": (
        InvPolyDecay(0.3, 20, 0.02, 2.5, 4, 9),
        lambda t: inv_poly_oracle(t, 0.3, 20, 0.02, 2.5, 4, 9),
    ),
    "inv_poly_long": (
        InvPolyDecay(0.3, 10**9, 0.0002, 0.5, 15),
        lambda t: inv_poly_oracle(t, 0.3, 10**9, 0.0002, 0.5, 15),
    ),
    "piecewise": (
        PiecewiseConstant(0.3, [3, 9, 300_000], [0.5, 1.5, 0.1]),
        lambda t: piecewise_oracle(t, 0.3, [3, 9, 300_000], [0.5, 1.5, 0.1]),
    ),
    "piecewise_epochs": (
        PiecewiseConstant(0.3, [0.29, 2], [0.5, 0.1], steps_per_epoch=100),
        lambda t: piecewise_oracle(t, 0.3, [29, 200], [0.5, 0.1]),
    ),
    "noam": (Noam(d_model=512, warmup_steps=11), lambda t: noam_oracle(t, 1.0, 512, 11)),
    "noam_all": (
        TransformerSchedule(2.0, d_model=512, warmup_steps=11, max_lr=0.002, coefficient=0.1),
        lambda t: noam_oracle(t, 2.0, 512, 11, 0.002, 0.1),
    ),
    "warmup_number": (Warmup(0.3, 8), lambda t: warmup_oracle(t, 8, lambda x: x, lambda _: 0.3)),
    "warmup_quadratic": (
        Warmup(PolyDecay(2.0, 10), 8, "quadratic", start=0.1),
        lambda t: warmup_oracle(t, 8, lambda x: 0.1 + 0.9 * x * x, straight),
    ),
    "warmup_cosine": (
        Warmup(PolyDecay(2.0, 10), 8, "cosine"),
        lambda t: warmup_oracle(t, 8, lambda x: math.sin(math.pi * x / 2) ** 2, straight),
    ),
    "warmup_exponential": (
        Warmup(PolyDecay(2.0, 10), 8, "exponential", start=0.01),
        lambda t: warmup_oracle(t, 8, lambda x: 10 ** (-2 * (1 - x)), straight),
    ),
    "warmup_in_place": (
        Warmup(PolyDecay(2.0, 10), 8, shift=False),
        lambda t: t / 8 * straight(8) if t < 8 else straight(t),
    ),
    "warmup_twice": (
        Warmup(Warmup(0.3, 3, start=0.5), 4, start=0.5),
        lambda t: 0.3 * (0.25 + t / 16 if t < 4 else min(1.0, 0.5 + (t - 4) / 6)),
    ),
    "warmup_keras": (
        Warmup(CosineDecay(2.0, 10, alpha=0.1), 8),
        lambda t: warmup_oracle(
            t, 8, lambda x: x, lambda n: 1.1 + 0.9 * math.cos(math.pi * min(n, 10) / 10)
        ),
    ),
}
