"""Regular expressions of users match as Python's `re` does, and in bounded time."""

import re
import time

import keras
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

import tf_graft as tg
from tf_graft.core import patterns

LEAVES = [*"ab/A", ".", "[ab]", "[^a]", r"\w", r"\d", r"\b", r"\B", "^", "$"]
REPEATS = ["*", "+", "?", "*?", "+?", "??", "{2}", "{0}", "{0,2}", "{1,3}?", "{2,}"]


def grown(inner):
    several = st.lists(inner, min_size=1, max_size=3)
    around = st.sampled_from(["(%s)", "(?i:%s)", "(?=%s)", "(?!%s)", "(?<=%s)", "(?<!%s)", "(%s|)"])
    return st.one_of(
        several.map("".join),
        several.map("|".join),
        st.tuples(inner, st.sampled_from(REPEATS)).map("(?:%s)%s".__mod__),
        st.tuples(around, inner).map(lambda pair: pair[0] % pair[1]),
    )


EXPRESSIONS = st.recursive(st.sampled_from(LEAVES), grown, max_leaves=8)
SLOW = ["(a+)+$", "^(a|a)*$", "(a|aa)+$", "(a*)*b", "(.*a){12}", "a*a*a*a*a*a*a*b", "(x+x+)+y"]
LETTERS = "a" * 80 + "!"


def matches_as_re(expression, text, at_start):
    try:
        search = re.match if at_start else re.search
        expected = search(expression, text) is not None
    except re.error:  # it looks behind, and not by a fixed length
        return
    assert patterns.found(expression, text, at_start) == expected


@settings(max_examples=300, deadline=None)
@given(EXPRESSIONS, st.text("ab/A1", min_size=1, max_size=9), st.booleans())
def test_matches_what_re_matches(expression, text, at_start):
    matches_as_re(expression, text, at_start)


@pytest.mark.rare
@settings(max_examples=2_000, deadline=None)
@given(EXPRESSIONS, st.text("ab/A1\n", min_size=1, max_size=9), st.booleans())
def test_matches_what_re_matches_in_many_cases(expression, text, at_start):
    matches_as_re(expression, text, at_start)


@pytest.mark.slow
@pytest.mark.parametrize("expression", SLOW)
def test_no_expression_takes_forever(expression):
    """Python's `re` takes hours for most of them."""
    began = time.process_time()
    try:
        found = patterns.found(expression.replace("12", "90"), LETTERS)
    except ValueError as error:
        found, said = None, str(error)
    assert time.process_time() - began < 5
    assert not found
    if found is None:
        assert said.startswith(f"the pattern {expression!r} takes longer than 1 s to search 'aaa")


USES = {
    "exclude_from_weight_decay": lambda p, v: tg.SGD(
        0.1, weight_decay=0.1, exclude_from_weight_decay=p
    ).build(v),
    "the same of LARC": lambda p, v: tg.LARC("sgd", exclude_from_layer_adaptation=p).build(v),
    "the same of LAMB": lambda p, v: tg.LAMB(0.1, exclude_from_layer_adaptation=p).build(v),
}


@pytest.mark.parametrize("use", USES)
def test_a_long_name_does_not_stop_build(use):
    variable = tf.Variable([1.0], name="a" * 60 + "!")
    optimizer_of = USES[use]
    began = time.process_time()
    with pytest.warns(UserWarning, match="matches none"):
        optimizer_of(["(a+)+$"], [variable])
    assert time.process_time() - began < 10


def test_a_variable_may_be_called_like_a_shard():
    with keras.name_scope("layer"):
        a, b = (keras.Variable([1.0], name=name) for name in ("part_1", "kernel"))
    optimizer = tg.SGD(1.0, weight_decay=0.5)
    optimizer.exclude_from_weight_decay(var_list=[a, b])
    optimizer.apply([tf.zeros([1])] * 2, [a, b])
    assert [a.numpy(), b.numpy()] == [1, 1]
    tg.SGD(learning_rate_multipliers={"part_1": 0.0}).build([a, b])


@pytest.mark.parametrize(
    ("expression", "problem"),
    [
        ("(", "is not a regular expression: missing"),
        (f"{'(' * 5000}a{')' * 5000}", "is not a regular expression: maximum recursion"),
    ],
)
def test_expressions_that_are_refused(expression, problem):
    assert patterns.fault(expression).startswith(problem)
    with pytest.raises(ValueError, match=problem):
        tg.SGD(0.1, exclude_from_weight_decay=[expression])
