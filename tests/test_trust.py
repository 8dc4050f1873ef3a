"""A part of the battery of attacks (`python tests/trust` makes all of them)."""

import importlib

import pytest
import trust

EVERY = {"files": 25}  # of an area, one attack in so many


@pytest.mark.slow
@pytest.mark.parametrize("area", EVERY)
def test_attacks_are_held_off(area):
    tried, wrong = trust.summary(importlib.import_module(f"trust.{area}").attacks(EVERY[area]))
    assert tried
    assert not wrong
