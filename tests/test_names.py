"""The one rule for names: of optimizers, schedules and loss scalers, and of their arguments."""

import inspect

import pytest

import tf_graft as tg
from tf_graft.core import spelling
from tf_graft.core.arguments import names


def made(name):
    return type(name, (), {"__doc__": f"A {name}.\n\nMore."})


def test_a_later_class_takes_the_place_of_an_earlier_one():
    first, second, other = made("LogMax"), made("Logmax"), made("Other")
    registry = names.Registry("thing", [first, other])
    assert registry.names() == ["log_max", "other"]
    registry.add(second)
    assert registry.get("LOG_max") is registry.get("tf_graft>LogMax") is second
    assert registry.summaries() == {"other": "A Other.", "logmax": "A Logmax."}


def test_aliases_are_found_and_suggest_the_listed_name():
    registry = names.Registry("thing")
    registry.add(made("LongScaler"), "long", "LongScaler")
    registry.add(made("Short"))
    assert registry.get("long_scaler") is registry.get("LONG")
    assert (registry.names(), registry.get("scaler")) == (["long", "short"], None)
    assert str(registry.unknown("get", "LongScalar")) == (
        "get('LongScalar'): there is no such thing; did you mean 'long'?"
    )
    assert "did you mean 'elsewhere'?" in str(registry.unknown("get", "else_where", ["elsewhere"]))
    assert str(registry.unknown("get", "zzz")).endswith("; there are long, short.")


@pytest.mark.parametrize("get", [tg.get, tg.schedules.get], ids=["optimizer", "schedule"])
def test_of_many_names_the_nearest_are_shown(get):
    with pytest.raises(
        ValueError, match=r"; the nearest are \w+, \w+, \w+; .* lists all\.$"
    ) as told:
        get("qqqqqqqqq")
    assert len(str(told.value)) < 200


@pytest.mark.parametrize(
    ("name", "known", "meant"),
    [
        ("adma", ["adamax", "adam"], "adam"),  # two letters exchanged
        ("momentum", ["ema_momentum"], None),  # another argument
        ("lernrate", ["learning_rate", "lr"], None),
        ("learning", ["learning_rate"], "learning_rate"),
    ],
)
def test_what_was_meant(name, known, meant):
    assert spelling.meant(name, known) == meant


def test_arguments_are_refused_in_one_sentence():
    def function(a, b, c=1, **others):
        return a, b, c, others

    parameters = inspect.signature(function).parameters
    names.refuse_missing("it", parameters, ["a", "b"])
    with pytest.raises(ValueError, match=r"^it also needs 'a', 'b'\.$"):
        names.refuse_missing("it", parameters, ["c"])
    names.refuse_unknown("it", ["a", "c"], {"a": 1})
    with pytest.raises(ValueError, match=r"^it does not take 'b', 'd'; it takes a, c\.$"):
        names.refuse_unknown("it", ["a", "c"], {"b": 1, "c": 2, "d": 3})
