"""Schedules, each with its float64 oracle; and what OpenSeq2Seq computed."""

import json
import math
from pathlib import Path

import keras

from tf_graft.schedules import (
    CosineRestarts,
    Cyclical,
    CyclicalMomentum,
    ExpDecay,
    FixedLR,
    InvPolyDecay,
    Noam,
    OneCycle,
    PiecewiseConstant,
    PolyDecay,
    PowerDecay,
    PowerLinearDecay,
    Sequence,
    StepCosine,
    TransformerSchedule,
    Warmup,
    WarmupStableDecay,
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


def cosine(x):
    """From 1 at 0 to 0 at 1."""
    return math.cos(math.pi * min(max(x, 0.0), 1.0) / 2) ** 2


def line(x):
    return 1 - min(max(x, 0.0), 1.0)


def one_cycle_oracle(t, top, total, share, fall, first, last, three_phase=False):
    peak, end = round(share * total) - 1, total - 1
    if t <= peak:
        return top + (first - top) * fall(t / peak)
    back, value = (2 * peak, first) if three_phase else (end, last)
    if t <= back or not three_phase:
        return top * fall((t - peak) / (back - peak)) + value * (
            1 - fall((t - peak) / (back - peak))
        )
    return first * fall((t - back) / (end - back)) + last * (1 - fall((t - back) / (end - back)))


def cyclical_oracle(t, base, top, up, down, scale=lambda t, cycle: 1.0):
    cycle, s = divmod(t, up + down)
    height = s / up if s < up else (up + down - s) / down
    return base + (top - base) * height * scale(t, cycle)


def restarts_oracle(t, lr, length, t_mul=1, m_mul=1.0, floor=0.0):
    cycle = 0
    if t_mul == 1:
        cycle, t = divmod(t, length)
    while t >= length:
        t, length, cycle = t - length, length * t_mul, cycle + 1
    return floor + (lr - floor) * m_mul**cycle * cosine(t / length)


def stable_oracle(t, lr, total, decay, warmup=0, floor=0.0, fall=line):
    x = min(max((t - (total - decay)) / decay, 0.0), 1.0)
    return (
        min(t / warmup, 1.0) * (floor + (lr - floor) * fall(x))
        if warmup
        else (floor + (lr - floor) * fall(x))
    )


def power_oracle(t, lr, power, offset=0, top=math.inf):
    if t <= offset and top < math.inf:
        return top
    return min(top, lr * max(t - offset, 1) ** power)


def power_linear_oracle(t, lr, total, power, length, offset):
    return power_oracle(t, lr, power, offset) * line((t - offset - total + length) / length)


def step_cosine_oracle(t, boundaries, values, offset=0):
    begin = 0
    for boundary, high, low in zip(boundaries, values, [*values[1:], 0.0], strict=True):
        if t - offset < boundary:
            return low + (high - low) * cosine((t - offset - begin) / (boundary - begin))
        begin = boundary
    return 0.0


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
    "one_cycle": (
        OneCycle(0.3, 31),
        lambda t: one_cycle_oracle(t, 0.3, 31, 0.3, cosine, 0.012, 0.0000012),
    ),
    "one_cycle_all": (
        OneCycle(0.3, 301, 0.4, "linear", 10, 100, True),
        lambda t: one_cycle_oracle(t, 0.3, 301, 0.4, line, 0.03, 0.0003, True),
    ),
    "one_cycle_long": (
        OneCycle(0.3, 9_000_000, 0.2),
        lambda t: one_cycle_oracle(t, 0.3, 9_000_000, 0.2, cosine, 0.012, 0.0000012),
    ),
    "cyclical": (Cyclical(0.1, 0.3, 4), lambda t: cyclical_oracle(t, 0.1, 0.3, 4, 4)),
    "cyclical_halved": (
        Cyclical(0.1, 0.3, 4, 7, "triangular2"),
        lambda t: cyclical_oracle(t, 0.1, 0.3, 4, 7, lambda t, cycle: 0.5**cycle),
    ),
    "cyclical_exp": (
        Cyclical(0.1, 0.3, 4, 7, "exp_range", 0.999999),
        lambda t: cyclical_oracle(t, 0.1, 0.3, 4, 7, lambda t, cycle: 0.999999**t),
    ),
    "momentum_of_one_cycle": (
        CyclicalMomentum(OneCycle(0.3, 31, three_phase=True), 0.8, 0.9),
        lambda t: 1.7 - one_cycle_oracle(t, 0.9, 31, 0.3, cosine, 0.8, 0.8, True),
    ),
    "momentum_of_cyclical": (
        CyclicalMomentum(Cyclical(0.1, 0.3, 4), 0.8, 0.9),
        lambda t: 1.7 - cyclical_oracle(t, 0.8, 0.9, 4, 4),
    ),
    "restarts": (
        CosineRestarts(0.3, 9, min_lr=0.01),
        lambda t: restarts_oracle(t, 0.3, 9, floor=0.01),
    ),
    "restarts_all": (
        CosineRestarts(0.3, 2, 6, 0.9, 0.01),
        lambda t: restarts_oracle(t, 0.3, 2, 6, 0.9, 0.01),
    ),
    "stable": (WarmupStableDecay(0.3, 30, 9), lambda t: stable_oracle(t, 0.3, 30, 9)),
    "stable_cosine": (
        WarmupStableDecay(0.3, 300_003, 1000, 5, 0.01, "cosine"),
        lambda t: stable_oracle(t, 0.3, 300_003, 1000, 5, 0.01, cosine),
    ),
    "stable_sqrt": (
        WarmupStableDecay(0.3, 30, 12, 5, 0.01, "sqrt"),
        lambda t: stable_oracle(t, 0.3, 30, 12, 5, 0.01, lambda x: 1 - math.sqrt(x)),
    ),
    "power": (PowerDecay(0.3), lambda t: power_oracle(t, 0.3, -0.5)),
    "power_all": (PowerDecay(0.3, -0.8, 9, 0.2), lambda t: power_oracle(t, 0.3, -0.8, 9, 0.2)),
    "power_linear": (
        PowerLinearDecay(0.3, 200, -0.8, 0.5, 9),
        lambda t: power_linear_oracle(t, 0.3, 200, -0.8, 100, 9),
    ),
    "power_alone": (
        PowerLinearDecay(0.3, 200, linear_fraction=0.0),
        lambda t: power_oracle(t, 0.3, -0.5),
    ),
    "step_cosine": (
        StepCosine([9, 300_000], [0.3, 0.1], 4),
        lambda t: step_cosine_oracle(t, [9, 300_000], [0.3, 0.1], 4),
    ),
    "sequence": (
        Sequence([Warmup(0.3, 5), PolyDecay(2.0, 10), 0.01], [7, 15]),
        lambda t: min(t / 5, 1) * 0.3 if t < 7 else straight(t - 7) if t < 15 else 0.01,
    ),
    "sequence_keras": (
        Sequence([0.3, CosineDecay(2.0, 10, alpha=0.1)], [7]),
        lambda t: 0.3 if t < 7 else 0.2 + 1.8 * cosine((t - 7) / 10),
    ),
}
# Keras' schedules compute in float32, and take one step at a time.
KERAS_INSIDE = ("warmup_keras", "sequence_keras")
