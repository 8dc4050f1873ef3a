"""Rows that fill up a gradient, where XLA and meshes need static sizes, are nobody's rows.

What an optimizer written outside computes of the touched rows is the same in every execution: with
a rule that is not finite where all slots are zero, and with one that looks across rows.
"""

import functools

import keras
import numpy as np
import pytest
import tensorflow as tf

import tf_graft as tg
from support.outside import Bare, Centered
from support.samples import slices
from tf_graft.core.tensors import rows
from tf_graft.report import MeasuredRates

ROWS = [4, 1, 4, 2]  # with one that repeats, so that XLA adds a row
STEPS = 2


@tg.register
class Normed(tg.Optimizer):
    """Divides by the norm of the gradient, which rows of zeros do not change."""

    rowwise = False
    skips_zero_rows = True

    def step(self, g, w, s, lr, t):
        return -lr * g / tf.norm(g), {}


MADE = {
    "graft": lambda: tg.AdaGraft(Bare(0.1), tg.SGD(1.0)),
    "graft's direction": lambda: tg.AdaGraft(tg.SGD(1.0), Bare(0.1)),
    "graft of Ftrl": lambda: tg.AdaGraft(tg.SGD(1.0), keras.optimizers.Ftrl(0.1)),
    "larc": lambda: tg.LARC(Bare(0.1)),
    "layer-wise rates": lambda: tg.LayerwiseRates(
        Bare(0.1), MeasuredRates("constant", {"table": 2.0})
    ),
    "agn": lambda: tg.AGN(Bare(0.1), communication_period=2),
    "decay": lambda: Bare(0.1, weight_decay=0.5),
    "mean": lambda: Centered(0.1),
    "graft of a mean": lambda: tg.AdaGraft(tg.SGD(1.0), Centered(0.1)),
    "norm": lambda: Normed(0.1),
}


def table_after(make, wrap):
    """What a table holds after some steps of a gradient for ROWS."""
    table = keras.Variable(np.linspace(0.5, 1.0, 12).reshape(6, 2), name="table")
    optimizer = make()
    optimizer.build([table])
    values = tf.constant(np.arange(8.0).reshape(4, 2) + 1, tf.float32)
    step = wrap(lambda values: optimizer.apply([slices(ROWS, values, 6)], [table]))
    for _ in range(STEPS):
        step(values)
    return table.numpy()


@pytest.fixture
def masked(monkeypatch):
    """Rows as a mesh or a TPU shows them: the whole variable, and which rows are touched."""

    def coalesced(gradient, count, masked, layout=None):
        return summed(gradient, count, True, layout)

    summed = rows.coalesced
    monkeypatch.setattr(rows, "coalesced", coalesced)


@pytest.mark.parametrize("made", MADE)
def test_xla_shows_what_eager_execution_shows(made):
    eager = table_after(MADE[made], lambda step: step)
    compiled = table_after(MADE[made], functools.partial(tf.function, jit_compile=True))
    assert np.isfinite(eager).all()
    np.testing.assert_allclose(compiled, eager, 2e-6)


@pytest.mark.parametrize("made", MADE)
def test_masked_rows_show_what_eager_execution_shows(made, request):
    eager = table_after(MADE[made], lambda step: step)
    request.getfixturevalue("masked")
    np.testing.assert_allclose(table_after(MADE[made], lambda step: step), eager, 2e-6)


def test_a_mean_over_rows_is_of_the_whole_variable():
    """As the dense gradient has it: what is shown does not depend on where it runs."""
    start = np.linspace(0.5, 1.0, 12).reshape(6, 2)
    dense = np.zeros([6, 2])
    np.add.at(dense, ROWS, np.arange(8.0).reshape(4, 2) + 1)
    found = table_after(MADE["mean"], lambda step: step)
    np.testing.assert_allclose(found, start - STEPS * 0.1 * (dense - dense.mean()), 1e-6)
