"""A model on a mesh of two processes learns what it learns on one device."""

import re
import sys

import numpy as np
import pytest
from tensorflow.experimental import dtensor

import tf_graft as tg
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


def share_of(client, devices, dims):
    """The share of one of the clients that have so many devices each of a mesh."""
    ids = np.arange(np.prod(list(dims.values())))
    mine = ids.reshape(-1, devices)[client].tolist()
    names = [f"/job:worker/replica:0/task:{client}/device:CPU:{i}" for i in range(devices)]
    mesh = dtensor.Mesh(list(dims), ids.reshape(list(dims.values())), mine, names)
    return tg.dtensor.client_share(mesh)


@pytest.mark.parametrize(
    ("devices", "dims", "shares"),
    [
        (2, {"batch": 4}, [(2, 0), (2, 1)]),
        (2, {"batch": 2, "model": 2}, [(2, 0), (2, 1)]),
        (2, {"model": 2, "batch": 2}, [(1, 0), (1, 0)]),
        (2, {"model": 2, "batch": 4}, [(2, 0), (2, 1), (2, 0), (2, 1)]),
        (4, {"depth": 2, "batch": 2, "model": 2}, [(1, 0), (1, 0)]),
    ],
)
def test_the_share_of_each_client(devices, dims, shares):
    found = [share_of(client, devices, dims) for client in range(len(shares))]
    assert found == shares


@pytest.mark.parametrize("client", range(3))
def test_shares_that_are_no_equal_parts_are_refused(client):
    with pytest.raises(ValueError, match="3 clients of 2 devices do not divide its 2 places"):
        share_of(client, 2, {"batch": 2, "model": 3})


@pytest.mark.rare
def test_a_model_on_two_clients_equals_one_device(tmp_path):
    """That both say the same, bit for bit, `lines_of` sees to.

    The clients are started, not forked: sets are in another order in each.
    """
    both, across, own, gathered, words, shapes, refusals = column_runs.lines_of(
        ["programs.clients_cases"], {"worker": 2}, 400, python=sys.executable
    )
    assert refusals.keys() == REFUSALS.keys()
    for what, pattern in REFUSALS.items():
        assert re.search(pattern, refusals[what]), refusals[what]
    assert shapes == [[8, 8]] * 3
    assert len(across) == 4
    assert len(words) == 3
    whole = clients_cases.whole_batches(None, tmp_path)
    for found, expected in (
        (both, whole),
        (across, {name: whole[name] for name in across}),
        (own, clients_cases.own_share(None, 22)),
        (words, {name: own[name] for name in words}),
        (gathered, clients_cases.own_share(None, 21)),
    ):
        column_runs.assert_equal(found, expected, rtol=2e-5)
