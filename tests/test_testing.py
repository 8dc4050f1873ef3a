"""`tf_graft.testing` passes what is right, and each of its guarantees finds a breach of it."""

import contextlib
import io
import pathlib
import re

import numpy as np
import pytest
import tensorflow as tf

import tf_graft as tg
from support import samples
from tf_graft.algorithm import length
from tf_graft.testing import algorithm, check, checking, pipeline, places, saving, trials

GUARANTEES = {
    guarantee.__name__: guarantee
    for module in (algorithm, pipeline, saving, places)
    for guarantee in module.GUARANTEES
}


class Right(tg.Optimizer):
    """Momentum, which each class below breaks in one way."""

    def __init__(self, learning_rate=0.125, beta=0.5, **common):
        super().__init__(learning_rate, **common)
        self.beta = beta

    def slots(self):
        return {"momentum": tg.Slot()}

    def step(self, g, w, s, lr, t):
        m = self.beta * s["momentum"] + g
        return -lr * m, {"momentum": m}


class SetsAttribute(Right):
    def step(self, g, w, s, lr, t):
        self.last = g
        return super().step(g, w, s, lr, t)


class KeepsStateInPython(Right):
    """In a dict, which a trace of `step` does not tell from a constant."""

    def __init__(self, learning_rate=0.125, **common):
        super().__init__(learning_rate, **common)
        self.held = {}

    def step(self, g, w, s, lr, t):
        key = str(g.shape)
        self.held[key] = self.held.get(key, 0) + 1
        return super().step(g / self.held[key], w, s, lr, t)


class CountsCalls(Right):
    calls = 0

    def apply(self, grads, trainable_variables=None):
        self.calls += 1
        super().apply([g * self.calls for g in grads], trainable_variables)


class CallsNumPy(Right):
    def step(self, g, w, s, lr, t):
        same = tf.numpy_function(lambda x: x, [g], g.dtype)
        return super().step(tf.ensure_shape(same, g.shape), w, s, lr, t)


class UsesTheVariableBefore(Right):
    def propose(self, points):
        before = 0.0
        for p in points:
            yield self.step(p.g + before, p.w, p.state(), p.lr, p.t)
            before = length(p.g)


class DropsRepeats(Right):
    def apply(self, grads, trainable_variables=None):
        def once(g):
            if not isinstance(g, tf.IndexedSlices):
                return g
            ids, places = np.unique(g.indices.numpy(), return_index=True)
            return tf.IndexedSlices(tf.gather(g.values, places), tf.constant(ids))

        super().apply([once(g) for g in grads], trainable_variables)


class ActsDense(Right):
    def apply(self, grads, trainable_variables=None):
        super().apply([tf.convert_to_tensor(g) for g in with_shapes(grads)], trainable_variables)


def with_shapes(grads):
    return [
        tf.IndexedSlices(g.values, g.indices, tf.constant([6, 4], tf.int64))
        if isinstance(g, tf.IndexedSlices)
        else g
        for g in grads
    ]


class SaysRowwise(Right):
    def step(self, g, w, s, lr, t):
        return super().step(g / length(g), w, s, lr, t)


class SaysIdle(Right):
    idle = True


class OnlyFloat32(Right):
    def step(self, g, w, s, lr, t):
        return super().step(g * tf.constant(2.0), w, s, lr, t)


class WritesWeights(Right):
    """Adds to the variable in its own precision."""

    def apply(self, grads, trainable_variables=None):
        for g, w in zip(grads, trainable_variables, strict=True):
            w.assign_sub(0.125 * g)


class SwallowsNaN(Right):
    def apply(self, grads, trainable_variables=None):
        grads = [tf.where(tf.math.is_nan(g), 0.0, g) for g in grads]
        super().apply(grads, trainable_variables)


def sets(**options):
    class Ignores(Right):
        def __init__(self, learning_rate=0.125, **common):
            super().__init__(learning_rate, **common)
            for name, value in options.items():
                setattr(self, name, value)

    return Ignores


class DropsAnArgument(Right):
    def get_config(self):
        config = super().get_config()
        del config["beta"]
        return config


class SavesNothing(Right):
    def save_own_variables(self, store):
        pass

    def load_own_variables(self, store):
        pass


class AveragesRows(Right):
    rowwise = False
    skips_zero_rows = True

    def step(self, g, w, s, lr, t):
        return super().step(g - tf.reduce_mean(g), w, s, lr, t)


class Ascends(Right):
    def step(self, g, w, s, lr, t):
        return super().step(-g, w, s, lr, t)


class NaNFromTheFifth(Right):
    def step(self, g, w, s, lr, t):
        d, slots = super().step(g, w, s, lr, t)
        return tf.where(t < 5, d, float("nan")), slots


class DiffersByReplica(Right):
    def step(self, g, w, s, lr, t):
        replica = tf.distribute.get_replica_context().replica_id_in_sync_group
        return super().step(g * (1 + tf.cast(replica, g.dtype)), w, s, lr, t)


BREAKS = {
    "purity": SetsAttribute,
    "descent": Ascends,
    "functions": KeepsStateInPython,
    "xla": CallsNumPy,
    "padding": AveragesRows,
    "order": UsesTheVariableBefore,
    "repeated_rows": DropsRepeats,
    "exact_rows": SaysIdle,
    "lazy_rows": ActsDense,
    "rowwise": SaysRowwise,
    "idle": SaysIdle,
    "half_precision": WritesWeights,
    "double_precision": OnlyFloat32,
    "nonfinite": SwallowsNaN,
    "accumulation": sets(gradient_accumulation_steps=None),
    "clipping": sets(global_clipnorm=None),
    "averages": sets(ema_momentum=0.75),
    "in_adagraft": CountsCalls,
    "in_larc": CountsCalls,
    "in_agn": CountsCalls,
    "in_mixed_precision": CountsCalls,
    "config": DropsAnArgument,
    "keras_file": SavesNothing,
    "checkpoint": CountsCalls,
    "replicas": DiffersByReplica,
}


def make(cls):
    return lambda **common: cls(**{"name": "trial", **common})


def test_each_guarantee_has_a_breach():
    assert BREAKS.keys() == GUARANTEES.keys()


SLOW = ("keras_file", "replicas", "xla")


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[pytest.mark.slow] * (name in SLOW)) for name in BREAKS],
)
def test_a_breach_is_found(name):
    good = checking.result_of(make(Right), GUARANTEES[name])
    assert good.result == ("skipped" if name == "idle" else "kept"), good.detail
    found = checking.result_of(make(BREAKS[name]), GUARANTEES[name])
    assert found.result == "BROKEN", found


@pytest.mark.slow
def test_the_update_is_named_that_is_not_finite():
    found = checking.result_of(make(NaNFromTheFifth), GUARANTEES["descent"])
    assert found.detail == "after update 5 weights are infinite or NaN"


class AscendsLater(Right):
    """Its second branch has the wrong sign."""

    def step(self, g, w, s, lr, t):
        return super().step(tf.where(t <= 10, g, -g), w, s, lr, t)


class HalfSlot(Right):
    def slots(self):
        return {"momentum": tg.Slot(dtype="float16")}


class ReadsValues(Right):
    def step(self, g, w, s, lr, t):
        return super().step(g * g.numpy().max(), w, s, lr, t)


class DividesBySmall(Right):
    """By what is zero, or nearly, as rounding has it."""

    def step(self, g, w, s, lr, t):
        nothing = tf.exp(g) - tf.exp(g / 2) * tf.exp(g / 2)
        return super().step(g + tf.sign(nothing), w, s, lr, t)


@pytest.mark.parametrize(
    ("cls", "guarantee", "said"),
    [
        (Ascends, "descent", "a sum of squares rises .* is its sign that of -g?"),
        (AscendsLater, "descent", "a sum of squares rises .* is its sign that of -g?"),
        (HalfSlot, "purity", "the slot 'momentum' is float16, the weights are float32; tf.cast"),
        (ReadsValues, "purity", r"use operations, not \.numpy\(\)"),
        pytest.param(
            *(DividesBySmall, "xla", "XLA rounds otherwise: does step take a sign"),
            marks=pytest.mark.slow,
        ),
        pytest.param(
            *(AveragesRows, "xla", "dense gradients agree, so step looks across rows"),
            marks=pytest.mark.slow,
        ),
    ],
)
def test_what_is_wrong_is_said_with_its_likely_cause(cls, guarantee, said):
    found = checking.result_of(make(cls), GUARANTEES[guarantee])
    assert found.result == "BROKEN", found
    assert re.search(said, found.detail), found.detail


def test_a_refused_optimizer_is_said_once(capsys):
    with pytest.raises(AssertionError, match=r"^HalfSlot is refused: TypeError: HalfSlot\.step"):
        check(HalfSlot)
    assert len(capsys.readouterr().out.splitlines()) == 2


@pytest.mark.parametrize("name", ["padding", "lazy_rows", "averages", "in_larc", "replicas"])
def test_what_does_not_hold_for_agn_is_skipped(name):
    found = checking.result_of(
        lambda **common: tg.AGN(tg.SGD(0.1), communication_period=2, **common), GUARANTEES[name]
    )
    assert (found.result, found.detail) == ("skipped", "it does more than propose steps")


def test_replicas_are_skipped_on_one_device(monkeypatch):
    monkeypatch.setattr(tf.config, "list_logical_devices", lambda kind: [kind])
    found = checking.result_of(make(Right), places.replicas)
    assert found.result == "skipped"
    assert "tf_graft.dtensor.logical_cpus(2)" in found.detail


@pytest.mark.slow
def test_the_table_and_what_is_raised():
    said = io.StringIO()
    with (
        contextlib.redirect_stdout(said),
        pytest.raises(
            AssertionError, match=r"^DropsAnArgument breaks 1 of 25 guarantees:\n  config"
        ),
    ):
        check(DropsAnArgument)
    rows = said.getvalue().splitlines()
    assert rows[0] == "DropsAnArgument: the guarantees of tf_graft"
    assert len(rows) == 26
    assert sum(" BROKEN " in row for row in rows) == 1


@pytest.mark.slow
def test_ours_keep_all():
    sample = samples.BY_NAME["graft_decays_diagnostic"]
    results = check(lambda **common: sample.make(**common))
    assert {result.result for result in results} <= {"kept", "skipped"}


@pytest.mark.rare
@pytest.mark.parametrize("shift", [1, 2, 3])
def test_guarantees_do_not_depend_on_the_numbers_that_are_drawn(monkeypatch, shift):
    drawn = trials.drawn
    monkeypatch.setattr(trials, "drawn", lambda shape, seed: drawn(shape, seed + shift))
    check(Right)


def test_what_the_pages_for_builders_name_is_there():
    root = pathlib.Path(__file__).parents[1]
    pages = ("CONTRIBUTING.md", "docs/architecture.md", "docs/write_an_optimizer.md")
    text = "".join((root / page).read_text("utf-8") for page in pages)
    named = set(re.findall(r"[\w/]+\.py\b|\btests/\w+/", text)) - {"__init__.py"}
    assert len(named) > 20
    for name in named:
        folders = (root, root / "tf_graft", root / "tf_graft" / "training")
        folders += (root / "tf_graft" / "core", root / "tests", root / "tests" / "support")
        assert any((folder / name).exists() for folder in folders), name


def test_testing_is_imported_when_it_is_used():
    assert tg.testing.check is check
    package = pathlib.Path(tg.__file__).parent
    for file in package.rglob("*.py"):
        if file.parent.name != "testing":
            assert not re.search(
                r"^\s*(from|import) tf_graft\.testing", file.read_text("utf-8"), re.M
            )
