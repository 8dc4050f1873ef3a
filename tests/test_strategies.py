"""Every optimizer and option under every strategy of `tf.distribute`, held against the oracle.

G16, G29, G30, G32. `matrix.py` fills every cell; here are those that a change is likely to break.
Columns run in processes of their own, several in one start. Two replicas in one process:
`test_replicas.py`; a mesh of one process: `test_mesh.py`.
"""

import functools

import keras
import numpy as np
import pytest
import tensorflow as tf

import tf_graft
from support import cells, column_runs, samples
from support.column_runs import Part
from support.model_rows import MORE, SOME, WRAPPERS
from tf_graft.processes.cluster import Cluster

KINDS = [sample.name for sample in samples.SAMPLES if not sample.slow]
MATRICES = ["muon", "normuon", "hyperball"]
FACTORS = ["shampoo", "kl_shampoo", "soap"]
SLOW = pytest.mark.slow
KILLS = 2  # each costs a start of TensorFlow


def assert_right(lines, part):
    """A cell for each that was wanted; none of them wrong, and refusals only where known."""
    wanted = samples.spread(part.names, part.options, part.every)
    assert {(line["sample"], line["option"]) for line in lines} == {
        (name, option) for name, chosen in wanted.items() for option in chosen
    }
    for line in lines:
        where = f"{line['column']}: {line['sample']}, {line['option']}"
        if line["refusal"]:
            assert cells.known_refusal(line["refusal"]), f"{where}: {line['refusal']}"
        else:
            assert line["error"] <= 1, f"{where}: {line['error']:.1f} times what is allowed"


def in_turn(column, names, turn=0, through="apply"):
    """An option for each name: another with each turn."""
    options = list(cells.OPTIONS)
    return Part(column, names, options[turn:] + options[:turn], len(options), through)


in_models = functools.partial(in_turn, through="model")


# What each start of processes computes. One device: `test_equations.py`, `test_model_matrix.py`.
RARE = ("2_replicas", "4_replicas", "2_workers", "every_kind_on_shards", "models_on_2_clients")
STARTS = {
    "2_replicas": [in_models("2_replicas", [*MORE[1::2], *WRAPPERS[::2]], 8)],
    "4_replicas": [
        Part("4_replicas", ["adagrad", "lars"], ["together", "not_finite"]),
        in_models("4_replicas", WRAPPERS[1:2], 2),
    ],
    "2_workers": [
        in_turn("2_workers", KINDS[1::2]),
        Part("2_workers_function", ["adam"], ["together", "not_finite"]),
        in_models("2_workers", ["momentum", *WRAPPERS[1:3]], 6),
    ],
    "parameter_server": [
        Part("parameter_server", KINDS, ["plain", "together", "not_finite"], 6),
        in_models("parameter_server", [*SOME[::2], *WRAPPERS[1:]], 10),
    ],
    "shards": [  # plain slots, norms, a wrapper, Keras' own, a graft, exclusions
        Part("shards", ["adagrad", "lamb"], ["together"]),
        Part("shards", ["larc_clip", "wrapped_nadam"], ["clipnorm"]),
        Part("shards", ["adam", "graft_sgd_adam"], ["not_finite"]),
        Part("shards", ["adamw", "lars"], ["weight_decay_excluded"]),
        in_models("shards", [SOME[1], "agn_adam"], 1),
    ],
    "every_kind_on_shards": [
        Part("shards", KINDS, ["together", "clipnorm", "not_finite"], 6),
        in_models("shards", [*SOME[1::2], "layerwise_rates", "agn_adam"], 1),
    ],
    "matrices_on_replicas": [Part("2_replicas", MATRICES, ["together", "decay_inside"])],
    "matrices_on_a_mesh": [
        Part("mesh", MATRICES, ["together", "decay_inside"]),
        Part("mesh", FACTORS, ["together"]),
    ],
    "2_clients": [
        Part("2_clients", ["adam"], ["together", "not_finite"]),
        in_turn("2_clients", ["lamb"], 9),
    ],
    # Of a plain optimizer: `test_mesh_runs.py`.
    "models_on_2_clients": [in_models("2_clients", [WRAPPERS[0], WRAPPERS[3]], 8)],
}


@pytest.mark.parametrize(
    "parts",
    [
        pytest.param(parts, id=name, marks=pytest.mark.rare if name in RARE else SLOW)
        for name, parts in STARTS.items()
    ],
)
def test_columns_equal_the_oracle(parts):
    for part, lines in zip(parts, column_runs.run(*parts), strict=True):
        assert_right(lines, part)


def test_the_comparison_notices_a_lost_part():
    """The check of the check: one of the four parts of one step is left out."""
    sample, problem = samples.BY_NAME["adam"], cells.Problem()
    model = samples.variables(cells.weights())
    optimizer = sample.make(name="optimizer")
    for number, step in enumerate(cells.sums("plain")):
        lost = cells.parts("plain")[number][3]["bias"] if number == 2 else 0.0
        gradients = [tf.constant(g, tf.float32) for g in step.values()]
        gradients[2] -= lost
        optimizer.apply(gradients, list(model.values()))
    cell = cells.judged(sample, "plain", cells.left_by(optimizer, model), problem)
    assert cell.error > 100
    with pytest.raises(AssertionError, match="times what is allowed"):
        assert_right([cell._asdict() | {"column": "x"}], Part("x", ["adam"], ["plain"]))


def test_the_comparison_notices_a_step_that_is_not_counted():
    sample = samples.BY_NAME["sgd"]
    model = samples.variables(cells.weights())
    optimizer = sample.make(name="optimizer")
    optimizer.build(list(model.values()))
    with pytest.raises(AssertionError, match="counts 0 updates and 0 skipped, right are 3 and 1"):
        cells.judged(sample, "not_finite", cells.left_by(optimizer, model))


# Parameter servers.


def cluster_of(*cases, folder, workers, servers):
    """Runs cases of `server_cases.py`, one after the other."""
    command = column_runs.program("programs.server_cases", *cases, "--out", folder)
    tasks = {"chief": 1, "worker": workers, "ps": servers}
    return Cluster(command, tasks, column_runs.ENVIRONMENT)


def test_shards_are_flat_and_refused_whole():
    parts = [tf.Variable([[1.0], [2.0]], name=f"table/part_{i}") for i in range(2)]
    divided = tf.__internal__.distribute.ShardedVariable(parts, name="table")
    scale = keras.Variable(1.0, name="scale")
    flat = tf_graft.shards([divided, scale])
    assert [id(part) for part in flat] == [id(part) for part in [*parts, scale]]
    optimizer = tf_graft.SGD(0.5)
    with pytest.raises(ValueError, match=r"SGD\.build: 'table' is divided into 2 shards"):
        optimizer.build([divided, scale])
    assert not optimizer.built
    optimizer.apply([tf.ones([2, 1]), 2 * tf.ones([2, 1]), tf.constant(1.0)], flat)
    np.testing.assert_array_equal(parts[1].numpy(), [[0.0], [1.0]])


@SLOW
def test_a_divided_variable_is_refused(tmp_path):
    with cluster_of("refused", folder=tmp_path, workers=1, servers=2) as cluster:
        column_runs.assert_ends(cluster, 200)


@SLOW
def test_two_workers_at_once_are_counted_and_killed_ones_survived(tmp_path):
    """G32: a worker is killed at work, and is started again by whoever started it."""
    with cluster_of("counted", "killed", folder=tmp_path, workers=2, servers=1) as cluster:
        column_runs.kill_workers(cluster, tmp_path, KILLS)
    scheduled, done, kills = map(int, (tmp_path / "result").read_text().split())
    assert kills == KILLS
    assert scheduled <= done <= scheduled + kills
