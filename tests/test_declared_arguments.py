"""Arguments that a constructor declares with a type are checked, kept and described."""

import inspect
from typing import TYPE_CHECKING, Annotated, Any, Unpack

import pytest
import tensorflow as tf

from tf_graft.algorithm import (
    AboveZero,
    BelowOne,
    Checked,
    Common,
    Flag,
    Optimizer,
    Slot,
    choice,
    number,
)
from tf_graft.core.arguments.description import described
from tf_graft.schedules import Cyclical

if TYPE_CHECKING:
    from collections import abc, deque


class Declared(Optimizer):
    """Momentum, told in types.

    Args:
        learning_rate: number, at least 0, or schedule.
        decay: how much of the mean is kept.
        epsilon: a term
            of the denominator.
        threshold: a number.
        sign: which sign.
        nesterov: whether to look ahead. Default False, as everywhere.
        **common: see `tf_graft.algorithm.Common`.
    """

    def __init__(
        self,
        learning_rate: Any = 0.25,
        decay: BelowOne = 0.9,
        epsilon: AboveZero = 1e-7,
        threshold: Annotated[float, Checked(number, 4)] = 5.0,
        sign: Annotated[str, Checked(choice, ("plus", "minus"))] = "minus",
        nesterov: Flag = False,
        **common: Unpack[Common],
    ):
        super().__init__(learning_rate, **common)
        self.idle = self.decay == 0  # what was given is there, and checked

    def slots(self):
        return {"mean": Slot()}

    def step(self, g, w, s, lr, t):
        mean = self.decay * s["mean"] + g
        return -lr * mean, {"mean": mean}


class Slower(Declared):
    """A subclass with a default and an argument of its own, which it declares in a string."""

    def __init__(self, learning_rate=0.1, decay=0.99, patience: "BelowOne" = 0.5, **common):
        super().__init__(learning_rate, decay, threshold=6, **common)


class Typed(Declared):
    """A subclass with types that only type checkers know."""

    def __init__(
        self,
        learning_rate: Any = 0.1,
        seen: "deque[float] | None" = None,
        patience: "BelowOne" = 0.5,
        last: "inspect.NoSuchClass | abc.Sized | None" = None,
        **common: Unpack[Common],
    ):
        super().__init__(learning_rate, **common)
        self.seen, self.last = seen, last


class Plain(Declared):
    """A subclass whose constructor knows nothing of the declared arguments."""

    def __init__(self, learning_rate=0.1, **common):
        super().__init__(learning_rate, decay=0.5, **common)


def test_they_are_kept_and_in_the_config():
    optimizer = Declared(decay=0, sign="plus")
    assert optimizer.idle
    assert optimizer.decay == 0.0
    assert optimizer.epsilon == 1e-7
    assert not Declared().idle
    config = optimizer.get_config()
    assert config["sign"] == "plus"
    assert config["threshold"] == 5.0
    again = Declared.from_config(config)
    assert again.get_config() == config
    assert repr(again) == "Declared(learning_rate=0.25, decay=0.0, sign='plus')"


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"decay": 1}, ValueError, r"Declared\(decay=1\): decay must lie in \[0, 1\)"),
        ({"epsilon": 0}, ValueError, r"Declared\(epsilon=0\): epsilon must be finite and above 0"),
        ({"threshold": 3.9}, ValueError, "threshold must be finite and at least 4"),
        ({"sign": "x"}, ValueError, "sign must be one of 'plus', 'minus'"),
        ({"nesterov": 1}, TypeError, "nesterov must be True or False"),
        ({"deacy": 0.5}, TypeError, "did you mean decay"),
    ],
)
def test_they_are_checked(arguments, error, message):
    with pytest.raises(error, match=message):
        Declared(**arguments)


def test_they_are_checked_when_they_are_set_and_fixed_once_built():
    optimizer = Declared()
    with pytest.raises(ValueError, match=r"\[0, 1\)"):
        optimizer.decay = 2
    optimizer.decay = 0.5
    w = tf.Variable([1.0])
    optimizer.apply([tf.constant([1.0])], [w])
    assert w.numpy() == 0.75
    assert optimizer.decay == 0.5
    with pytest.raises(ValueError, match=r"Declared.decay = 0.25: the optimizer was built with"):
        optimizer.decay = 0.25


def test_too_many_are_refused_as_python_refuses_them():
    with pytest.raises(TypeError, match=r"Declared.__init__\(\) takes from 1 to 7 positional"):
        Declared(*[0.5] * 9)


def test_subclasses():
    assert Slower().decay == 0.99
    assert Slower().threshold == 6.0
    assert Slower().patience == 0.5
    with pytest.raises(ValueError, match=r"Slower\(patience=1\)"):
        Slower(patience=1)
    assert Plain().decay == 0.5
    assert not isinstance(Declared.decay, float)
    assert Declared.decay is not Slower.patience


def test_types_that_only_type_checkers_know_leave_the_others_checked():
    assert Typed().patience == 0.5
    with pytest.raises(ValueError, match=r"Typed\(patience=1\)"):
        Typed(patience=1)


def test_help_shows_them_with_their_ranges_and_defaults():
    shown = inspect.signature(Declared).parameters
    assert shown["decay"].annotation is float
    assert shown["decay"].default == 0.9
    assert list(shown)[:4] == ["learning_rate", "decay", "epsilon", "threshold"]
    lines = [line.strip() for line in Declared.__doc__.splitlines()]
    assert "learning_rate: number, at least 0, or schedule. Default 0.25." in lines
    assert "decay: how much of the mean is kept. In [0, 1). Default 0.9." in lines
    assert "epsilon: a term of the denominator. Above 0. Default 1e-7." in lines
    assert "threshold: a number. At least 4. Default 5." in lines
    assert "sign: which sign. Default 'minus'." in lines
    assert "nesterov: whether to look ahead. Default False, as everywhere." in lines
    assert any(line.startswith("weight_decay: ") for line in lines)


# Schedules and loss scalers declare theirs likewise.


class Halving(Cyclical):
    """Halves.

    Args:
        peak: the highest rate.
        lowest: the lowest rate.
    """

    def __init__(
        self,
        lowest: Annotated[float, Checked(number, 0, "peak")] = 0.0,
        peak: AboveZero = 1.0,
    ):
        super().__init__(0.0, peak, 2)
        self.max_lr = self.peak / 2


def test_a_bound_may_be_another_argument():
    schedule = Cyclical(0.25, 0.5, 2)
    for name, value in (("base_lr", 0.75), ("max_lr", 0.125)):
        with pytest.raises(ValueError, match=r"^Cyclical\(base_lr=.*\): base_lr must lie in \[0, "):
            setattr(schedule, name, value)
    assert schedule.get_config()["base_lr"] == 0.25
    schedule.max_lr = 0.75
    schedule.base_lr = 0.625
    assert described(schedule) == "Cyclical(base_lr=0.625, max_lr=0.75, step_size_up=2)"
    assert "base_lr: the lowest learning rate. In [0, max_lr]." in Cyclical.__doc__


def test_a_bound_names_an_argument_of_the_constructor():
    with pytest.raises(TypeError, match=r"^Odd: low is bounded by 'peek', but Odd.__init__ has no"):

        class Odd(Cyclical):
            def __init__(self, low: Annotated[float, Checked(number, 0, "peek")], peak: float):
                super().__init__(low, peak, 2)


def test_a_schedule_of_ones_own():
    schedule = Halving(0.25)
    assert (schedule.max_lr, schedule.get_config()) == (0.5, {"lowest": 0.25, "peak": 1.0})
    with pytest.raises(ValueError, match=r"^Halving\(lowest=2\): lowest must lie in \[0, 1\]"):
        schedule.lowest = 2
    with pytest.raises(ValueError, match=r"^Halving\(max_lr=-1\): max_lr must be .*at least 0"):
        schedule.max_lr = -1
    assert inspect.signature(Halving).parameters["peak"].annotation is float
    assert list(inspect.signature(schedule).parameters) == ["step"]
    assert "peak: the highest rate. Above 0. Default 1." in Halving.__doc__
