"""A model on a mesh of two processes learns what it learns on one device."""

import re
import sys

import pytest

from programs import clients_cases
from support import column_runs

REFUSALS = {
    "another seed": r"^distribute: .*: 'up/kernel' begins with other values on client 1",
    "another model": r"has other variables on client 1 than on client 0; every",
    "another batch": r"client 1 is given another batch than client 0, .*set_random_seed with the",
    "another size": r"the clients' shares of a batch have 4, 3 examples; all must have the same",
    "uneven": r"a batch of 3 examples cannot be divided .* 2 devices of 'batch' on this client",
    "fewer batches": r"client 1 is at batch 2, client 0 at batch 0; each client must be given as",
}


@pytest.mark.slow
def test_a_model_on_two_clients_equals_one_device(tmp_path):
    """That both say the same, bit for bit, `lines_of` sees to.

    The clients are started, not forked: sets are in another order in each.
    """
    both, examples, own, gathered, shapes, refusals = column_runs.lines_of(
        ["programs.clients_cases"], {"worker": 2}, 200, python=sys.executable
    )
    assert refusals.keys() == REFUSALS.keys()
    for what, pattern in REFUSALS.items():
        assert re.search(pattern, refusals[what]), refusals[what]
    assert shapes == [[8, 8]] * 3
    whole = clients_cases.whole_batches(None, tmp_path)
    for found, expected in (
        (both, whole),
        (examples, whole),
        (own, clients_cases.own_share(None, 22)),
        (gathered, clients_cases.own_share(None, 21)),
    ):
        column_runs.assert_equal(found, expected, rtol=2e-5)
