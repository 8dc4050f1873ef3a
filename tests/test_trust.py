"""A part of the battery of attacks (`python tests/trust` makes all of them)."""

import pytest

import trust

# Of an area, one attack in so many; none of those on clusters, each of which takes over a minute.
EVERY = {
    **{"gradients": 121, "arguments": 12, "configs": 50, "names": 7},
    **{"files": 180, "kills": 600, "state": 192, "threads": 12},
}


@pytest.mark.slow
@pytest.mark.parametrize("area", EVERY)
def test_attacks_are_held_off(area):
    results = list(trust.made(area, EVERY[area]))
    assert results
    assert not [result for result in results if result.wrong is not None]
