"""The cost of a step, as ratios within one run: loose bounds, which only the wrong cost breaks."""

import gc

import pytest

from tf_graft import bench

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def _leaves_no_tables():
    """Few objects, and a gigabyte."""
    yield
    gc.collect()


@pytest.mark.parametrize("name", ["SGD", "Adam", "AdaGraft of Adam and SGD", "AGN of Adam"])
def test_a_row_sparse_step_costs_what_its_rows_cost(name):
    for times in bench.row_sparse(table=200_000, repeats=15, stock=(), names=(name,)):
        # The table is 20 times the small one; a step that followed it would be far above 3.
        assert times.large < 3 * times.small, times


def test_a_row_sparse_step_beats_one_that_follows_the_table():
    measured = bench.row_sparse(table=400_000, repeats=5, names=("Adam",))
    measured = [times for times in measured if times.stock is not None]
    assert [t.name for t in measured] == ["Adam"]
    assert all(t.stock > 20 * t.large for t in measured), measured


def test_a_dense_step_is_faster_than_stock_and_traced_no_slower():
    measured = bench.dense(repeats=6)
    for times in measured:
        assert times.stock > 1.2 * times.unchecked, times
        assert times.checked < times.stock, times
    # A trace is timed once only, so the three together; twice the work would still show.
    assert sum(t.traced for t in measured) < 1.5 * sum(t.stock_traced for t in measured), measured
