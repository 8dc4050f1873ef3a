"""`tg.multi_worker`: plain `fit` on two real workers learns what one device learns."""

import contextlib

import keras
import pytest
import tensorflow as tf

import tf_graft as tg
from programs import multi_worker_cases
from support import column_runs

# A step of one's own and several steps an execution, on replicas: `test_multi_step.py`.
RARE = ("data_set", "executions")


@pytest.mark.parametrize(
    "names",
    [
        pytest.param(
            [n for n in multi_worker_cases.CASES if n not in RARE], marks=pytest.mark.slow
        ),
        pytest.param(RARE, marks=pytest.mark.rare),
    ],
    ids=["some", "others"],
)
def test_fit_on_workers_equals_one_device(names):
    """That all workers say the same, bit for bit, `lines_of` sees to."""
    lines = column_runs.lines_of(["programs.multi_worker_cases", *names], {"worker": 2}, 200)
    for name, line in zip(names, lines, strict=True):
        expected = multi_worker_cases.CASES[name](contextlib.nullcontext, lambda model: model)
        column_runs.assert_equal(line, expected, name)


@pytest.mark.slow
def test_one_device_stops_where_workers_do():
    """The check of the check: what is compared is what the case is about."""
    case = multi_worker_cases.not_a_number(contextlib.nullcontext, lambda model: model)
    assert case == {"batches": 2, "skipped": 1}
    with pytest.raises(AssertionError, match="skipped"):
        column_runs.assert_equal(case, case | {"skipped": 0})


def test_without_tf_config_nothing_changes(monkeypatch):
    monkeypatch.delenv("TF_CONFIG", raising=False)
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    with strategy.scope():
        model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
        model.compile(tg.SGD(0.1), "mse")
    assert tg.multi_worker(model) is model
    assert "train_step" not in vars(model)


@pytest.mark.parametrize("scope", [contextlib.nullcontext, tf.distribute.MirroredStrategy().scope])
def test_a_model_made_elsewhere_is_refused(scope):
    with scope():
        model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)], name="net")
    with pytest.raises(ValueError, match=r"^multi_worker: the model 'net' was made outside the"):
        tg.multi_worker(model)
