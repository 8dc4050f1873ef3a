"""Which of two optimizers acts on a common argument: every cell of the table, and its numbers."""

import itertools
import pathlib
import re

import keras
import numpy as np
import pytest
import tensorflow as tf

import tf_graft as tg
from support import samples
from tf_graft import algorithm as ta
from tf_graft.compose.option_table import COLUMNS, TABLE, Acts

PAGE = pathlib.Path(__file__).parents[1] / "docs" / "guides" / "wrappers.md"
RATES = tg.report.MeasuredRates("constant", {"table": 1.0, "bias": 1.0})
# For each column: the outer optimizer, of what is in it and of common arguments; the attribute that
# the inner one is then found under; and the class that messages show for the inner one.
PAIRS = {
    "around": (lambda inner, **given: tg.LARC(inner, **given), "optimizer"),
    "mixed": (lambda inner, **given: tg.MixedPrecision(inner, **given), "optimizer"),
    "local": (lambda inner, **given: tg.AGN(inner, **given), "optimizer"),
    "center": (
        lambda inner, **given: tg.AGN(tg.SGD(1.0), center_optimizer=inner, **given),
        "center_optimizer",
    ),
    "composed": (lambda inner, **given: tg.AdaGraft("sgd", inner, **given), "direction_optimizer"),
    "parts": (lambda inner, **given: tg.MultiOptimizer({".*": inner}, **given), "part"),
    "matrices": (lambda inner, **given: tg.Muon(others=inner, **given), "others"),
    "keras": (lambda inner, **given: tg.wrap(inner, **given), "optimizer"),
}
# Two values of each argument, neither of them the default.
VALUES = {
    "weight_decay": (0.125, 0.25),
    "exclude_from_weight_decay": (["bias"], ["table"]),
    "weight_decay_mode": (tg.CautiousDecay(), tg.CorrectedDecay(1.0)),
    "clipnorm": (1.0, 2.0),
    "clipvalue": (1.0, 2.0),
    "global_clipnorm": (1.0, 2.0),
    "use_ema": (True, True),
    "ema_momentum": (0.5, 0.75),
    "ema_overwrite_frequency": (2, 3),
    "loss_scale_factor": (2.0, 4.0),
    "gradient_accumulation_steps": (2, 3),
    "name": ("one", "other"),
    "jit_compile": (True, False),
    "sparse": ("exact", "exact"),
    "nonfinite": ("raise", "apply"),
    "learning_rate_multipliers": ({"table": 0.5}, {"table": 0.25}),
    "count_rows": ({"table": 0.5}, {"table": 0.25}),
    "clip_rows": ({"table": 0.5}, {"table": 0.25}),
    "state_dtype": ("bfloat16", "bfloat16+8"),
    "master_weights": (False, False),
}
KERAS_HAS = {*VALUES} - {
    *("jit_compile", "sparse", "nonfinite"),
    *(
        "exclude_from_weight_decay",
        "weight_decay_mode",
        "learning_rate_multipliers",
        "count_rows",
        "clip_rows",
        "state_dtype",
        "master_weights",
    ),
}
KEPT_AS = {"exclude_from_weight_decay": "decay_exclusions"}


def test_the_table_has_every_argument():
    assert set(TABLE) == set(samples.COMMON_NAMES)
    assert set(VALUES) | {"mesh"} == set(TABLE)
    assert all(len(row) == len(COLUMNS) for row in TABLE.values())
    assert set(PAIRS) == set(COLUMNS)


def held(optimizer, name):
    return getattr(optimizer, KEPT_AS.get(name, name))


def inner_class(column):
    return keras.optimizers.SGD if column == "keras" else tg.SGD


@pytest.mark.parametrize(
    ("column", "name"),
    [
        (column, name)
        for column, name in itertools.product(COLUMNS, VALUES)
        if column != "keras" or name in KERAS_HAS
    ],
)
def test_who_acts(column, name):
    acts = TABLE[name][COLUMNS.index(column)]
    make, attribute = PAIRS[column]
    outside, inside = VALUES[name]
    cls = inner_class(column)
    default = held(make(cls(1.0)), name)

    def inner_of(outer):
        return outer.groups[".*"] if column == "parts" else getattr(outer, attribute)

    def refused(**where):
        given = {name: where["outer"]} if "outer" in where else {}
        inner = cls(1.0, **({name: where["inner"]} if "inner" in where else {}))
        with pytest.raises(ValueError, match=rf"{name}=.*give") as error:
            make(inner, **given)
        return str(error.value)

    if acts is Acts.OUTER:
        assert held(make(cls(1.0, **{name: inside})), name) == inside
        assert held(make(cls(1.0, **{name: inside}), **{name: outside}), name) == outside
        if column != "keras":  # of which the pipeline is never used
            taken = make(tg.SGD(1.0, **{name: inside}))
            assert held(inner_of(taken), name) == held(tg.SGD(), name)
    elif acts is Acts.INNER:
        assert held(inner_of(make(tg.SGD(1.0, **{name: inside}))), name) == inside
        both = make(tg.SGD(1.0, **{name: inside}), **{name: outside})
        assert held(inner_of(both), name) == held(both, name) == outside
    elif acts in (Acts.BOTH, Acts.OWN):
        both = make(tg.SGD(1.0, **{name: inside}), **{name: outside} if column != "center" else {})
        assert held(inner_of(both), name) == inside
        assert held(both, name) == (outside if column != "center" else default)
    elif acts in (Acts.OUTSIDE, Acts.SHARED):
        assert held(make(tg.SGD(1.0), **{name: outside}), name) == outside
        assert refused(inner=inside)
        if acts is Acts.SHARED:
            same = make(tg.SGD(1.0, **{name: outside}), **{name: outside})
            assert held(same, name) == outside
    elif acts is Acts.INSIDE:
        assert held(inner_of(make(tg.SGD(1.0, **{name: inside}))), name) == inside
        assert "give it to optimizer" in refused(outer=outside)
    elif acts is Acts.NEITHER:
        assert "SGD" not in refused(outer=outside)
        assert f"SGD({name}=" in refused(inner=inside)
    else:
        assert acts is Acts.EITHER
        assert held(make(cls(1.0, **{name: inside})).optimizer, name) == inside
        assert held(make(cls(1.0), **{name: outside}), name) == outside
        assert refused(outer=outside, inner=inside)


def test_another_way_of_clipping_outside_replaces_the_one_inside():
    outer = tg.MixedPrecision(tg.SGD(clipnorm=1.0), clipvalue=0.5)
    assert (outer.clipvalue, outer.clipnorm) == (0.5, None)
    wrapped = tg.wrap(keras.optimizers.SGD(clipnorm=1.0), global_clipnorm=0.5)
    assert (wrapped.global_clipnorm, wrapped.clipnorm) == (0.5, None)


@pytest.mark.parametrize("make", [tg.LARC, tg.MixedPrecision, tg.AGN, tg.wrap])
def test_an_array_is_refused_in_a_sentence(make):
    child = keras.optimizers.SGD() if make is tg.wrap else "sgd"
    for name in VALUES.keys() - {"name"}:
        with pytest.raises((TypeError, ValueError), match=rf"^\w+\({name}=.*(must|give)"):
            make(child, **{name: np.array([[1.0, 2.0]])})


@pytest.mark.parametrize(
    "make",
    [
        lambda child: tg.MixedPrecision(child),
        lambda child: tg.MixedPrecision(tg.LARC(child)),
        lambda child: tg.AdaGraft(child, "adam"),
        lambda child: tg.AGN(child),
    ],
)
def test_what_is_set_inside_later_is_refused_where_it_would_have_no_effect(make):
    child = tg.SGD(1.0)
    outer = make(child)
    child.clipnorm = 0.5
    with pytest.raises(ValueError, match=r"optimizer=SGD\(clipnorm=0\.5\)\): .*give it to"):
        outer.build([tf.Variable([1.0])])


@pytest.mark.parametrize(
    ("make", "changed", "name", "value"),
    [
        (lambda: tg.AdaGraft("adam", "sgd"), "magnitude_optimizer", "sparse", "exact"),
        (lambda: tg.AGN("sgd"), None, "use_ema", True),
        (lambda: tg.AGN("sgd"), None, "state_dtype", "bfloat16"),
        (lambda: tg.AGN("sgd"), "center_optimizer", "sparse", "exact"),
        (lambda: tg.AGN("sgd"), "center_optimizer", "master_weights", False),
    ],
)
def test_what_is_set_later_is_refused_as_if_it_were_given(make, changed, name, value):
    outer = make()
    setattr(getattr(outer, changed) if changed else outer, name, value)
    with pytest.raises(ValueError, match=rf"{name}={value!r}\)+: .*give "):
        outer.build([tf.Variable([1.0])])


@pytest.mark.parametrize(
    ("make", "wrong", "right"),
    [
        (lambda: tg.AGN("sgd"), "sparse", ("exact", "lazy")),
        (lambda: tg.AGN("sgd", center_optimizer="sgd"), "count_rows", (["kernel"], None)),
        (
            lambda: tg.AGN("sgd", center_optimizer="sgd"),
            "learning_rate_multipliers",
            ({"nothing": 2.0}, None),
        ),
    ],
)
def test_agn_can_be_built_after_its_center_was_refused(make, wrong, right):
    """It was half built: the next step had no center to push to."""
    agn, w = make(), tf.Variable([1.0])
    bad, good = right
    setattr(agn.center_optimizer, wrong, bad)
    for _ in range(2):
        with pytest.raises(ValueError, match=wrong):
            agn.apply([tf.constant([1.0])], [w])
    assert not agn.built
    setattr(agn.center_optimizer, wrong, good)
    for _ in range(10):
        agn.apply([tf.constant([1.0])], [w])
    np.testing.assert_allclose(agn.center_values()["Variable"], [0.99], rtol=1e-6)


def test_the_center_follows_what_is_set_on_agn_later():
    agn = tg.AGN("sgd")
    agn.sparse = "exact"
    agn.build([tf.Variable([1.0])])
    assert agn.center_optimizer.sparse == "exact"


def test_what_was_given_inside_of_what_agn_unpacks_is_named_as_it_was_given():
    with pytest.raises(
        ValueError, match=r"^AGN\(optimizer=MixedPrecision\(use_ema=True\)\): the c"
    ):
        tg.AGN(tg.MixedPrecision("sgd", use_ema=True))
    agn = tg.AGN(tg.MixedPrecision("sgd", weight_decay=0.5, clipnorm=2.0))
    assert (agn.weight_decay, agn.optimizer.weight_decay, agn.clipnorm) == (0.5, 0.5, 2.0)


# What decays. A table of three rows of which a gradient of zero touches one, and a bias; two steps
# at a rate of 1. By `sparse`: "exact" decays all rows, "lazy" the touched one.

KEPT = 1 - 0.125  # of a weight, by one decay of 0.125
SGD = {"learning_rate": 1.0}
DECAYING = [
    lambda **given: tg.SGD(**SGD, **given),
    lambda **given: tg.Adagrad(**SGD, **given),
    lambda **given: tg.SGD(**SGD, momentum=0.5, **given),
]


@keras.saving.register_keras_serializable("test_option_table")
class Halving(ta.Around):
    """Halves the gradients."""

    def inner(self, p):
        inner = super().inner(p)
        return inner._replace(g=inner.g / 2)


WRAPPING = {
    "one's own": lambda inner, **given: Halving(inner, **given),
    "LARC": lambda inner, **given: tg.LARC(inner, **given),
    "MixedPrecision": lambda inner, **given: tg.MixedPrecision(inner, "backoff", **given),
    "AGN": lambda inner, **given: tg.AGN(inner, None, 3, tg.SGD(1.0), **given),
    "AGN of MixedPrecision": lambda inner, **given: tg.AGN(
        tg.MixedPrecision(inner), None, 3, tg.SGD(1.0), **given
    ),
    "LayerwiseRates": lambda inner, **given: tg.LayerwiseRates(inner, RATES, **given),
    "MixedPrecision of LARC": lambda inner, **given: tg.MixedPrecision(tg.LARC(inner), **given),
}
EXCLUDED = {"exclude_from_weight_decay": ["bias"]}


def kept_of(optimizer, rounds=2):
    """What is left of a touched row, of one that no gradient touches, and of a bias."""
    table, bias = tf.Variable(tf.ones([3, 2]), name="table"), tf.Variable([1.0], name="bias")
    for _ in range(rounds):
        optimizer.apply([tf.IndexedSlices(tf.zeros([2, 2]), [1, 1]), tf.zeros([1])], [table, bias])
    return [float(table[1, 0]), float(table[0, 0]), float(bias[0])]


@pytest.mark.parametrize("sparse", ["exact", pytest.param("lazy", marks=pytest.mark.slow)])
@pytest.mark.parametrize("excluded", ["nowhere", "outside", "inside"])
@pytest.mark.parametrize("decays", ["outside", "inside", "both"])
@pytest.mark.parametrize("name", WRAPPING)
def test_decay_on_either_side(name, decays, excluded, sparse):
    for number, make in enumerate(DECAYING):
        outer, inner = {"sparse": sparse}, {}
        if excluded != "nowhere":
            (outer if excluded == "outside" else inner).update(EXCLUDED)
        if decays in ("outside", "both"):
            outer["weight_decay"] = 0.125
        if decays in ("inside", "both"):
            inner["weight_decay"] = 0.5 if decays == "both" else 0.125
        if name.startswith("AGN") and "weight_decay" in outer:
            with pytest.raises(ValueError, match="give it to optimizer"):
                WRAPPING[name](make(**inner), **outer)
            return
        found = kept_of(WRAPPING[name](make(**inner), **outer))
        outside = KEPT if "weight_decay" in outer else 1.0
        if name == "LayerwiseRates":  # its own decay is beside that of the optimizer
            whole = 1 - outer.get("weight_decay", 0.0) - inner.get("weight_decay", 0.0)
            bias = 1.0 if excluded == "outside" else outside if excluded == "inside" else whole
        else:
            whole, bias = KEPT, KEPT if excluded == "nowhere" else 1.0
        idle = whole if sparse == "exact" else 1.0
        np.testing.assert_allclose(found, [whole**2, idle**2, bias**2], rtol=1e-6, err_msg=number)


@pytest.mark.parametrize("excluded", [{}, EXCLUDED], ids=["all", "excluded"])
def test_decay_on_either_side_of_a_graft(excluded):
    """Both children step by their decay alone, and the graft decays beside it."""
    child = {"learning_rate": 1.0, "weight_decay": 0.125}
    graft = tg.AdaGraft(
        tg.SGD(**child), tg.SGD(**child), weight_decay=0.25, sparse="exact", **excluded
    )
    whole = 1 - 0.125 - 0.25
    expected = [whole**2, whole**2, 1.0 if excluded else whole**2]
    np.testing.assert_allclose(kept_of(graft), expected, rtol=1e-6)


@pytest.mark.parametrize("way", ["argument", "method"])
@pytest.mark.parametrize("make", WRAPPING.values(), ids=WRAPPING)
def test_keras_decay_is_excluded_from_outside(make, way):
    inner = keras.optimizers.SGD(1.0, weight_decay=0.125)
    outer = make(inner, sparse="exact", **(EXCLUDED if way == "argument" else {}))
    if way == "method":
        outer.exclude_from_weight_decay(var_names=["bias"])
    np.testing.assert_allclose(kept_of(outer), [KEPT**2, KEPT**2, 1.0], rtol=1e-6)


def test_the_center_does_not_decay_what_is_excluded_outside():
    center = tg.SGD(1.0, weight_decay=0.5)
    agn = tg.AGN(tg.SGD(1.0), None, 1, center, sparse="exact", **EXCLUDED)
    np.testing.assert_allclose(kept_of(agn, 1), [0.5, 0.5, 1.0])


@pytest.mark.slow
def test_decay_through_fit():
    """As for a dense gradient: rows of an embedding that no batch has decay, too."""
    model = keras.Sequential([keras.Input([2], dtype="int32"), keras.layers.Embedding(5, 3)])
    model.compile(tg.MixedPrecision(tg.SGD(0.5, weight_decay=0.125), sparse="exact"), "mse")
    (first,) = model.get_weights()
    model.fit(np.zeros([4, 2], "int32"), np.zeros([4, 2, 3]), batch_size=2, verbose=0)
    np.testing.assert_allclose(model.get_weights()[0][1:], first[1:] * (1 - 0.0625) ** 2, rtol=1e-6)


@pytest.mark.parametrize("name", WRAPPING)
def test_what_decays_outside_and_inside_survives_a_config(name):
    outer = {} if name.startswith("AGN") else {"weight_decay": 0.125}
    inner = {"exclude_from_weight_decay": ["bias"]} | ({} if outer else {"weight_decay": 0.125})
    made = WRAPPING[name](tg.SGD(1.0, **inner), sparse="exact", **outer)
    again = tg.deserialize(tg.serialize(tg.deserialize(tg.serialize(made))))
    assert repr(again) == repr(made)
    assert kept_of(again) == kept_of(made)


# The rate in LARC's ratio.


def test_larc_takes_the_rate_that_steps_are_proportional_to():
    """With `eta * ||w|| / ||g||` far below the rate, a step of SGD has the length `eta * ||w||`."""
    layerwise = tg.LayerwiseRates(
        tg.SGD(0.5), tg.report.MeasuredRates("constant", {"w": 0.25}), 0.5
    )
    graft = tg.AdaGraft(tg.SGD(0.25), tg.Adam(), learning_rate=0.5)
    for inner in (tg.SGD(0.25), layerwise, graft, tg.AdaGraft(layerwise_of(0.5), "adam")):
        w = tf.Variable([3.0, 4.0], name="w")
        tg.LARC(inner, eta=0.1).apply([tf.constant([0.0, 100.0])], [w])
        np.testing.assert_allclose(w.numpy(), [3.0, 3.5], rtol=1e-5)


def layerwise_of(rate):
    return tg.LayerwiseRates(tg.SGD(rate), tg.report.MeasuredRates("constant", {"w": 0.5}))


# The page.


def test_the_page_shows_the_table():
    text = PAGE.read_text("utf-8")
    rows = dict(re.findall(r"^\| `(\w+)` \|(.*)\|$", text, re.MULTILINE))
    assert rows.keys() == TABLE.keys() | {"learning_rate"}
    for name, acts in TABLE.items():
        assert [cell.strip() for cell in rows[name].split("|")] == [a.name.lower() for a in acts], (
            name
        )
    for acts in Acts:
        assert f"**{acts.name.lower()}**" in text


@pytest.mark.parametrize(
    ("make", "attribute"),
    [(lambda: tg.LARC("adam"), "optimizer"), (lambda: tg.Muon(0.1), "others")],
)
def test_an_optimizer_inside_cannot_be_replaced(make, attribute):
    wrapper = make()
    setattr(wrapper, attribute, getattr(wrapper, attribute))
    with pytest.raises(AttributeError, match=f"{attribute}: it cannot be replaced; make a new"):
        setattr(wrapper, attribute, tg.SGD())


@pytest.mark.parametrize(
    ("make", "name", "cls"),
    [
        (lambda: tg.LARC(tg.SGD(momentum=tg.Settable(0.9))), "momentum", "SGD"),
        (lambda: tg.MixedPrecision(tg.LARC("adam")), "beta_1", "Adam"),
        (lambda: tg.MultiOptimizer({".*": tg.Adam()}), "beta_2", "Adam"),
        (lambda: tg.Muon(0.1), "beta_1", "AdamW"),
    ],
)
def test_an_argument_of_an_optimizer_inside_is_not_set_on_the_wrapper(make, name, cls):
    wrapper = make()
    message = rf"^{type(wrapper).__name__}\.{name}: {name} is an argument of the {cls} inside; set"
    with pytest.raises(AttributeError, match=message):
        setattr(wrapper, name, 0.5)
    wrapper.note = "an attribute of the user's"
    assert wrapper.note
