"""Random optimizers in random places (see `draws`): new ones each day."""

import datetime
import random

import pytest

from draws import trees
from draws.draw import Draw
from support import column_runs

TODAY = datetime.date.today().toordinal() * 100_000  # the first of a day's own draws


@pytest.mark.parametrize("number", range(12))
def test_some_draws(number):
    """The same ones each time."""
    assert Draw(number, "eager").wrong() is None


@pytest.mark.rare
def test_the_draws_of_today():
    command = [column_runs.forked.python(), column_runs.TESTS / "draws", "--first", TODAY]
    limits = ["--count", 100_000, "--seconds", 10]
    said = column_runs.run_alone([*map(str, [*command, *limits])], column_runs.SECONDS)
    assert " 0 wrong, " in said


def test_a_draw_follows_from_its_number():
    first, again, other = Draw(3), Draw(3), Draw(4)
    assert str(first) == str(again) != str(other)


@pytest.mark.parametrize(
    "change",
    [
        lambda spec: spec.given.update(weight_decay=0.5),
        lambda spec: spec.own.update(learning_rate=0.375),
    ],
    ids=["decay", "rate"],
)
def test_another_optimizer_is_noticed(change):
    """A draw is wrong where what is made is not what the truth is told."""
    draw = next(d for d in map(Draw, range(100)) if d.place == "eager" and not d.spec.children)
    expected = draw.expected()
    change(draw.spec)
    draw.expected = lambda: expected
    assert draw.wrong()


def test_draws_reach_what_they_are_for():
    found = [(spec, options) for spec, options in map(trees.drawn, map(random.Random, range(300)))]
    kinds = {each.kind for spec, _ in found for each in spec.everyone()}
    assert kinds == {*trees.LEAVES, "larc", "cautious", "mixed", "agn", "graft", "layerwise"}
    inside = [
        each.given for spec, _ in found for child in spec.children for each in child.everyone()
    ]
    for name in ("weight_decay", "exclude_from_weight_decay", "use_ema", "sparse", "clipnorm"):
        assert any(name in given for given in inside), name
    assert max(len(spec.chain()) for spec, _ in found) >= 4
