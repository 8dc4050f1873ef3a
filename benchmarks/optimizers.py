"""The optimizers whose steps are measured: ours, and stock Keras' with the same arguments."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import keras

import tf_graft as tg
from benchmarks.cases import RATE
from tf_graft.core.types import Config

Make: TypeAlias = Callable[..., Any]


class Named(NamedTuple):
    """An optimizer's makers, and the amount of data that an update must move.

    `state` counts, per weight, the float32 numbers that an update reads and writes: the weight (or
    its master) and the slots. `calls` is the number of gradients that make one update.
    """

    ours: Make
    stock: Make | None
    state: int
    calls: int = 1
    dtype: str = "float32"

    def moved(self, size: int) -> int:
        """Returns the bytes of an update of `size` weights: gradients read, state read, written."""
        return 4 * size * (self.calls + 2 * self.state)


def both(name: str, **given: Any) -> tuple[Make, Make | None]:
    """Returns the makers of ours and of stock Keras' of the same name, with the same arguments.

    The second is None if the installed Keras has no such optimizer.
    """
    stock = getattr(keras.optimizers, {"LAMB": "Lamb", "NAdam": "Nadam"}.get(name, name), None)
    return (
        lambda **options: getattr(tg, name)(RATE, **given, **options),
        stock and (lambda **options: stock(RATE, **given, **options)),
    )


def ours(name: str, rate: float = RATE, **given: Any) -> tuple[Make, None]:
    """Returns the maker of an optimizer that stock Keras does not have."""
    return lambda **options: getattr(tg, name)(rate, **given, **options), None


def larc(**options: Any) -> Any:
    """Makes LARC of SGD with momentum."""
    return tg.LARC(tg.SGD(RATE, momentum=0.9), **options)


def adagraft(**options: Any) -> Any:
    """Makes the graft of Adam's length and the direction of SGD with momentum."""
    return tg.AdaGraft(tg.Adam(RATE), tg.SGD(RATE, momentum=0.9), **options)


def cautious(**options: Any) -> Any:
    """Makes Adam whose steps against the gradient are left out."""
    return tg.Cautious(tg.Adam(RATE), **options)


def graft_of_shampoo(**options: Any) -> Any:
    """Makes the graft of Adam's length and the direction of one-sided Shampoo."""
    return tg.AdaGraft(tg.Adam(RATE), tg.Shampoo(RATE, sides="smaller"), **options)


def settable(**options: Any) -> Any:
    """Makes Adam with a beta_1 that may be set between steps."""
    return tg.Adam(RATE, beta_1=tg.Settable(0.9), **options)


def multi(make: Make = tg.Adam, **options: Any) -> Any:
    """Makes two groups of one optimizer, biases and all other variables."""
    return tg.MultiOptimizer({"bias$": make(), ".*": make()}, **options)


def multi_all_on(**options: Any) -> Any:
    """Makes two groups of Adam with decay, a settable beta_1, and options that act on both."""
    return multi(functools.partial(settable, weight_decay=0.01), **OF_ALL_GROUPS, **options)


def mixed_precision(**options: Any) -> Any:
    """Makes Adam with a loss scale."""
    return tg.MixedPrecision(tg.Adam(RATE), "backoff", **options)


def agn(**options: Any) -> Any:
    """Makes AGN of Adam."""
    return tg.AGN(tg.Adam(RATE), **options)


OF_ALL_GROUPS: Config = {
    "use_ema": True,
    "global_clipnorm": 1.0,
    "gradient_accumulation_steps": 2,
}
PLAIN = {
    "SGD, momentum": Named(*both("SGD", momentum=0.9), state=2),
    "Adagrad": Named(*both("Adagrad"), state=2),
    "RMSprop": Named(*both("RMSprop"), state=2),
    "Adam": Named(*both("Adam"), state=3),
    "AdamW": Named(*both("AdamW"), state=3),
}
OPTIMIZERS = {
    **PLAIN,
    "Adam, global_clipnorm": Named(*both("Adam", global_clipnorm=1.0), state=3),
    "Adam, EMA": Named(*both("Adam", use_ema=True), state=4),
    # Two gradients; weight, slots and sum.
    "Adam, accumulation": Named(*both("Adam", gradient_accumulation_steps=2), state=4, calls=2),
    # A gradient of 2 bytes, a weight of 2 that is written, a master of 4: as many as in float32.
    # Stock Keras' Adam moves nothing with its default beta_2 of 0.999, which is 1 in bfloat16.
    "Adam, bfloat16": Named(*both("Adam", beta_2=0.99), state=3, dtype="bfloat16"),
    "LAMB": Named(*both("LAMB"), state=3),
    "LARS": Named(*ours("LARS"), state=2),
    "LARC of SGD": Named(larc, None, state=2),
    "AdaGraft": Named(adagraft, None, state=4),
    "NovoGrad": Named(*ours("NovoGrad"), state=2),
    "Adadelta": Named(*both("Adadelta"), state=3),
    "Lion": Named(*both("Lion"), state=2),
    "NAdam": Named(*both("NAdam"), state=3),
    "Adamax": Named(*both("Adamax"), state=3),
    "NAdamW": Named(*ours("NAdamW"), state=3),
    "RAdam": Named(*ours("RAdam"), state=3),
    "AdaBelief": Named(*ours("AdaBelief"), state=3),
    "AdEMAMix": Named(*ours("AdEMAMix"), state=4),
    "Adan": Named(*ours("Adan"), state=5),
    "RowWiseAdagrad": Named(*ours("RowWiseAdagrad"), state=1),
    "Adam, Settable": Named(settable, both("Adam")[1], state=3),
    "Adafactor": Named(*both("Adafactor"), state=1),
    "Prodigy": Named(*ours("Prodigy", 1.0, d0=RATE), state=5),
    "MARS": Named(*ours("MARS"), state=4),
    "Yogi": Named(*ours("Yogi"), state=3),
    "ADOPT": Named(*ours("ADOPT"), state=3),
    "SGDSaI": Named(*ours("SGDSaI"), state=2),
    "COCOB": Named(*ours("COCOB", 1.0), state=6),
    "Cautious of Adam": Named(cautious, None, state=3),
    "ScheduleFreeSGD": Named(*ours("ScheduleFreeSGD"), state=2),
    "ScheduleFreeAdamW": Named(*both("ScheduleFreeAdamW"), state=3),
    # Silent, its first five updates would move nothing.
    "ScheduleFreeRAdam": Named(*ours("ScheduleFreeRAdam", silent_sgd_phase=False), state=3),
}
# Those whose steps are products of matrices.
OF_MATRICES: dict[str, tuple[Make, Make | None]] = {
    "Muon": both("Muon"),
    "NorMuon": ours("NorMuon"),
    "Shampoo": ours("Shampoo"),
    "Shampoo, one side": ours("Shampoo", sides="smaller"),
    "SOAP": ours("SOAP"),
    "Graft of Shampoo": (graft_of_shampoo, None),
    "Adam": both("Adam"),
}
