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
    # It would be about as long, if it followed the table; it is 11 to 25 times shorter.
    assert all(t.stock > 5 * t.large for t in measured), measured


def test_a_dense_step_is_faster_than_stock_and_traced_no_slower():
    measured = bench.dense(repeats=6)

    def of_all(name):
        """One of them alone, of a step or two, is at the mercy of what else the machine does."""
        return sum(getattr(times, name) for times in measured)

    assert of_all("stock") > 1.2 * of_all("unchecked"), measured
    assert of_all("stock") > of_all("checked"), measured
    # A trace is timed once only; twice the work would still show.
    assert of_all("traced") < 1.5 * of_all("stock_traced"), measured
