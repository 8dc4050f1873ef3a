"""Optimizers in a compiled Keras model, through `fit`, in every execution: against the oracle.

`matrix.py` fills every cell, `test_strategies.py` some in each execution; here are a few, and the
checks of the check: that the gradient by hand is the model's, and that what is allowed lets no
mistake through.
"""

import numpy as np
import pytest
import tensorflow as tf

from support import cells, model_cells, model_columns, model_rows, samples
from support.model_rows import SOME, WRAPPERS
from tf_graft.core.pipeline import engine, scale
from tf_graft.core.tensors import numerics, rows
from tf_graft.core.types import UniqueRows


def cell(name, option, run_eagerly=True):
    place = model_columns.OneDevice(run_eagerly=run_eagerly, jit_compile=False)
    return place.cell(name, option, "")[0]


@pytest.mark.parametrize(
    ("name", "option"),
    [
        ("adam", "together"),
        ("agn_updates", "plain"),
        ("agn_adam", "not_finite"),
        ("agn_mixed", "not_finite"),
        ("mixed_backoff", "not_finite"),
        ("layerwise_rates", "accumulation"),
    ],
)
def test_fit_equals_the_oracle(name, option):
    assert cell(name, option).error <= 1


# The checks of the check.


@pytest.mark.parametrize(("dtype", "off"), [("float64", 1e-13), ("float32", model_cells.NOISE / 2)])
def test_the_gradient_by_hand_is_the_models(dtype, off):
    """And what float32 makes of it is less than what is allowed for."""
    model = model_cells.model(dtype)
    for seed in range(2):
        first = samples.weights(model_cells.SHAPES, dtype, seed)
        model.set_weights(list(first.values()))
        for batch in model_cells.batches("plain"):
            with tf.GradientTape() as tape:
                targets, weights = (x.astype(dtype) for x in (batch.targets, batch.weights))
                loss = model_cells.LOSS(dtype=dtype)(targets, model(batch.ids), weights)
            found = map(tf.convert_to_tensor, tape.gradient(loss, model.trainable_variables))
            w = {path: value.astype("float64") for path, value in first.items()}
            right = model_cells.each_examples(w, batch, np.arange(6))
            for g, each in zip(found, right.values(), strict=True):
                largest = np.abs(each).sum(0).max()
                np.testing.assert_allclose(g.numpy(), each.sum(0), rtol=0, atol=off * largest)


def test_ids_repeat_and_every_part_touches_the_same_rows():
    for batch in model_cells.batches("plain"):
        for part in np.split(batch.ids, cells.PARTS):
            assert set(part.flat) == set(model_cells.TOUCHED)
            assert part.size > len(model_cells.TOUCHED)


@pytest.mark.parametrize("shards", [1, 2])
def test_the_kernels_gradient_is_far_from_singular(shards):
    problem = model_cells.Problem(shards=shards)
    row = model_rows.ROWS["soap"]
    oracle = row.oracle(model_cells.start(row, "plain", shards), "plain", problem)
    (share,) = model_cells.shares(row, oracle, 0, "plain", problem, model_cells.exact)
    kernels = [g for path, g in share.items() if path.endswith("kernel")]
    assert len(kernels) == shards
    assert all(np.linalg.cond(g) < 100 for g in kernels)


@pytest.mark.parametrize("shards", [1, 2])
@pytest.mark.parametrize("name", [*SOME, *WRAPPERS, "muon", "soap", "kl_soap"])
def test_what_is_allowed_is_little(name, shards):
    """Of how far a variable moves."""
    problem = model_cells.Problem(shards=shards)
    for option in ("plain", "together", "not_finite", "exact"):
        assert model_cells.sharpness(name, option, problem) < 1e-2, option


@pytest.mark.parametrize("option", ["plain", "weight_decay"])
def test_nadam_by_hand_is_keras(option, monkeypatch):
    """But for what Keras computes in float32 all the same."""
    sample = samples.BY_NAME["wrapped_nadam"]
    ours = cells.expected(sample, option, cells.USUAL)
    monkeypatch.delitem(cells.ALGORITHMS, "wrapped_nadam")
    for path, right in cells.expected(sample, option, cells.USUAL).weights.items():
        np.testing.assert_allclose(ours.weights[path], right, rtol=0, atol=2e-8)


def forget_to_sum_rows(monkeypatch):
    def coalesced(gradient, *_, **__):
        sparse = isinstance(gradient, tf.IndexedSlices)
        return UniqueRows(gradient.values, gradient.indices) if sparse else gradient

    monkeypatch.setattr(rows, "coalesced", coalesced)


def halve_a_sum(monkeypatch):
    take = engine.accumulation.take

    def too_small(gradient, parameter):
        total = take(gradient, parameter)
        return numerics.like(total, numerics.values(total) / 2)

    monkeypatch.setattr(engine.accumulation, "take", too_small)


def clip_by_half(monkeypatch):
    clipped = engine.clipping.clipped
    monkeypatch.setattr(
        engine.clipping, "clipped", lambda u, v, n, all_: clipped(u, v, n, all_ and all_ / 2)
    )


def lose_a_scale(monkeypatch):
    monkeypatch.setattr(scale.Scaling, "divisor", lambda self: None)


BREAKS = [
    (forget_to_sum_rows, "adagrad", "plain"),
    (halve_a_sum, "adagrad", "accumulation"),
    (clip_by_half, "adagrad", "global_clipnorm"),
    (lose_a_scale, "adagrad", "loss_scale"),
]


@pytest.mark.parametrize(("spoil", "name", "option"), BREAKS)
def test_a_mistake_is_a_red_cell(spoil, name, option, monkeypatch):
    spoil(monkeypatch)
    assert cell(name, option).error > 2  # red is above 1


def test_a_row_that_moves_without_an_id_is_noticed(monkeypatch):
    make = samples.BY_NAME["adam"].make
    moved = model_rows.ROWS["adam"]._replace(make=lambda **o: make(sparse="exact", **o))
    monkeypatch.setitem(model_rows.ROWS, "adam", moved)
    with pytest.raises(AssertionError, match="a row that no id touches"):
        cell("adam", "weight_decay")


def test_what_fails_is_a_cell(monkeypatch):
    def fail(**options):
        raise RuntimeError("it broke")

    monkeypatch.setitem(model_rows.ROWS, "adam", model_rows.ROWS["adam"]._replace(make=fail))
    ((found, _),) = model_columns.filled(model_columns.OneDevice(), "adam", ["plain"])
    assert found[""].refusal == "RuntimeError: it broke"
    assert not cells.known_refusal(found[""].refusal)


def test_the_sentence_of_a_refusal_is_found():
    said = "AGN.round: a round on a worker of parameter servers keeps no loss scale; give it none."
    within = (
        f"in user code:\n\n    File 'a.py', line 1, in f\n        g()\n\n    ValueError: {said}\n"
    )
    assert model_columns.sentence(said) == model_columns.sentence(within) == said
    assert cells.known_refusal(said)
