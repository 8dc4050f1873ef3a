"""What XLA makes of a step: how often it reads a gradient, and that it copies no state."""

import re

import keras
import numpy as np
import pytest
import tensorflow as tf
from packaging.version import Version

import tf_graft as tg

SQUARES_APART = Version("2.22.0rc0")  # from here on XLA writes squares before it adds them up
SHAPES = [(512, 128), (260, 257), (3, 3, 128, 64), (64,)]  # of a whole number of rows, and not


def compiled(optimizer, shapes=SHAPES):
    """The program that XLA runs for an update, as text."""
    weights = [keras.Variable(np.ones(shape, "float32")) for shape in shapes]
    optimizer.build(weights)

    @tf.function(jit_compile=True)
    def step(*gradients):
        optimizer.apply(gradients, weights)

    inputs = [tf.ones(shape) for shape in shapes]
    step(*inputs)
    return step.experimental_get_compiler_ir(*inputs)(stage="optimized_hlo")


def computation(program, name):
    """The lines of one computation of a program."""
    (found,) = re.findall(rf"^(?:ENTRY )?{re.escape(name)} .*?^}}", program, re.M | re.S)
    return found.splitlines()


def entry(program):
    return computation(program, re.search(r"^ENTRY (\S+)", program, re.M).group(1))


def applied(program):
    """The lines of the branch that is taken where the gradients are finite."""
    return computation(program, re.search(r"true_computation=(\S+?)[,\s]", program).group(1))


def readers(lines, number):
    """The shapes of what is computed from one argument of a program."""
    text = "\n".join(lines)
    (name,) = re.findall(rf"(%\S+) = \S+ parameter\({number}\)", text)
    computed = r" = (\S+?)(?:{\S*)? (?!tuple|conditional|bitcast)[\w-]+\("
    return re.findall(rf"{computed}[^)]*{re.escape(name)}\b", text)


def copied(lines):
    """The shapes of what is copied."""
    return re.findall(r" = (f32\[[\d,]+\])\S* copy\(", "\n".join(lines))


MADE = {
    "SGD": lambda **o: tg.SGD(0.1, momentum=0.9, **o),
    "Adagrad": lambda **o: tg.Adagrad(0.1, **o),
    "Adam": lambda **o: tg.Adam(0.1, **o),
    "AdamW": lambda **o: tg.AdamW(0.1, **o),
    "clipped": lambda **o: tg.Adam(0.1, global_clipnorm=1.0, **o),
    "AdaGraft": lambda **o: tg.AdaGraft(tg.Adam(0.1), tg.SGD(0.1), **o),
}


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    ["SGD", *(pytest.param(name, marks=pytest.mark.slow) for name in MADE if name != "SGD")],
)
def test_a_checked_step_copies_no_weight_and_no_slot(name):
    """A branch that XLA turned into selects would copy all that it writes."""
    program = compiled(MADE[name]())
    assert copied(entry(program)) + copied(applied(program)) == []


@pytest.mark.slow
@pytest.mark.parametrize("name", ["SGD", "Adam"])
def test_the_check_reads_each_gradient_once(name):
    lines = entry(compiled(MADE[name]()))
    read = [len(readers(lines, number)) for number in range(len(SHAPES))]
    assert read == [1, 2, 1, 1]  # the second in whole rows, and what remains


@pytest.mark.slow
def test_a_large_gradient_is_added_up_by_a_product():
    """One sum over all entries would use no vector instructions on a CPU."""
    lines = entry(compiled(MADE["SGD"](), [(512, 257)]))
    if Version(tf.__version__) < SQUARES_APART:
        assert readers(lines, 0) == ["f32[514]"]
        assert any("dot_fusion" in line and " = f32[514]{" in line for line in lines)
    else:
        assert readers(lines, 0) == ["f32[514,256]"]
        assert any(" = f32[514,1]{1,0} dot(" in line for line in lines)


@pytest.mark.slow
def test_small_gradients_are_added_up_together():
    few, many = (
        len(entry(compiled(MADE["SGD"](), [(rows, 7) for rows in range(2, 2 + count)])))
        for count in (4, 24)
    )
    assert many - few <= 20 * 5  # a gradient, a weight, a slot, and a part of what is joined
