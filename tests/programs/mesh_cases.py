"""On a DTensor mesh the state lies where its variables lie, and the numbers are one device's (G31).

Run by `test_mesh.py`, in a process of its own. A 2 x 2 mesh of logical CPUs, which do without
`initialize_accelerator_system`.
"""

import functools

import keras
import numpy as np
import pytest
import tensorflow as tf
from tensorflow.experimental import dtensor

import tf_graft
from support import samples, written
from tf_graft import averages, scaling

NAMES = (
    *("sgd_momentum", "adagrad", "adadelta", "rmsprop_centered_momentum", "adam_amsgrad", "adamw"),
    *("graft_schedules_global", "graft_decays_diagnostic", "wrapped_nadam", "wrapped_lamb"),
)
STEPS = 3
UNSHARDED = dtensor.UNSHARDED
SHAPES = {"rows": (4, 6), "columns": (4, 6), "both": (4, 6), "replicated": (4, 6), "bias": (6,)}
SPECS = {
    "rows": ["x", UNSHARDED],
    "columns": [UNSHARDED, "y"],
    "both": ["x", "y"],
    "replicated": [UNSHARDED, UNSHARDED],
    "bias": ["y"],
}
OPTIONS = {
    "plain": {},
    "unchecked": {"nonfinite": "apply"},
    "clipnorm": samples.OPTIONS["clipnorm"],
    "clipvalue": samples.OPTIONS["clipvalue"],
    "global_clipnorm": samples.OPTIONS["global_clipnorm"],
    "weight_decay": samples.OPTIONS["weight_decay"],
    "ema": samples.OPTIONS["ema"],
    "ema_overwrite": samples.OPTIONS["ema_overwrite"],
    "accumulation": samples.OPTIONS["accumulation"],
    "loss_scale": samples.OPTIONS["loss_scale"],
}


@functools.cache
def mesh() -> dtensor.Mesh:
    devices = [f"CPU:{i}" for i in range(4)]
    return dtensor.create_mesh([("x", 2), ("y", 2)], devices=devices)


def laid_out(value, spec) -> tf.Tensor:
    """A tensor on the mesh."""
    value = np.asarray(value)
    return _laid_out(value.tobytes(), value.dtype, value.shape, tuple(spec))


@functools.cache
def _laid_out(content, dtype, shape, spec):
    """Made once: the cases share their weights and gradients."""
    value = tf.constant(np.frombuffer(content, dtype).reshape(shape))
    everywhere = dtensor.copy_to_mesh(value, dtensor.Layout.replicated(mesh(), len(shape)))
    return dtensor.relayout(everywhere, dtensor.Layout(list(spec), mesh()))


def whole(value) -> np.ndarray:
    """What a variable or tensor on the mesh holds, in one piece."""
    value = value.value if isinstance(value, keras.Variable) else value
    value = tf.convert_to_tensor(value)
    replicated = dtensor.Layout.replicated(mesh(), len(value.shape))
    return dtensor.relayout(value, replicated).numpy()


def raw(variable):
    return variable.value if isinstance(variable, keras.Variable) else variable


def on_mesh(dtype: str = "float32") -> dict[str, dtensor.DVariable]:
    values = samples.weights(SHAPES, dtype)
    return {p: dtensor.DVariable(laid_out(values[p], SPECS[p]), name=p) for p in SHAPES}


def state_on_mesh(optimizer, variables) -> dict[str, np.ndarray]:
    prefix = f"{optimizer.name}/"
    found = {v.path.removeprefix(prefix): whole(v) for v in optimizer.variables}
    return found | {f"model {i}": whole(v) for i, v in enumerate(variables)}


def assert_equals_one_device(optimizer, variables, one, alone) -> None:
    actual = state_on_mesh(optimizer, variables)
    expected = samples.state_of(one, *alone)
    assert actual.keys() == expected.keys()
    for path, value in expected.items():
        np.testing.assert_allclose(actual[path], value, rtol=1e-5, atol=1e-6, err_msg=path)


def run(optimizer, variables, gradients, graph: bool) -> None:
    def step(*gradients):
        optimizer.apply(list(gradients), variables)

    step = tf.function(step) if graph else step
    optimizer.build(variables)
    for values in gradients:
        step(*values)


@pytest.mark.parametrize(
    ("make", "graph"),
    [
        (lambda: tf_graft.ScheduleFreeAdamW(0.1), True),
        pytest.param(
            lambda: tf_graft.ScheduleFreeRAdam(0.1, silent_sgd_phase=False),
            False,
            marks=pytest.mark.slow,
        ),
    ],
    ids=["adamw", "radam"],
)
def test_both_weights_of_schedule_free(make, graph):
    one, many = make(), make()
    alone = [tf.Variable(value, name=path) for path, value in samples.weights(SHAPES).items()]
    variables = list(on_mesh().values())
    gradients = [list(samples.weights(SHAPES, seed=seed).values()) for seed in range(2, 2 + STEPS)]
    for values in gradients:
        one.apply([tf.constant(g) for g in values], alone)
    laid = [[laid_out(g, s) for g, s in zip(gs, SPECS.values(), strict=True)] for gs in gradients]
    run(many, variables, laid, graph)
    assert_equals_one_device(many, variables, one, alone)
    trained = [w.numpy() for w in alone]
    with one.evaluation_weights(), many.evaluation_weights():
        assert_equals_one_device(many, variables, one, alone)
        assert any((w.numpy() != x).any() for w, x in zip(alone, trained, strict=True))
    assert_equals_one_device(many, variables, one, alone)


QUICK = {
    ("sgd_momentum", "global_clipnorm", False),
    ("adagrad", "plain", True),
    ("adamw", "weight_decay", True),
    ("graft_decays_diagnostic", "plain", False),
}
# With the rest, which are chosen in turn, every optimizer and every option is there.
OTHERS = {
    ("adadelta", "unchecked", False),
    ("rmsprop_centered_momentum", "accumulation", False),
    ("adam_amsgrad", "ema", False),
    ("wrapped_nadam", "plain", False),
    ("wrapped_lamb", "plain", False),
    ("wrapped_adafactor", "plain", False),
}


# One in four in a function, which TensorFlow divides anew each time.
ALL = [(option, number % 4 == 0) for number, option in enumerate(OPTIONS)]
SLOW = [
    pytest.param(*case, marks=pytest.mark.slow)
    for case in sorted(
        OTHERS
        | {
            (name, *case)
            for name, cases in samples.spread(NAMES, ALL, every=len(ALL)).items()
            for case in cases
        }
        - QUICK
    )
]


@pytest.mark.parametrize(("name", "option", "graph"), [*sorted(QUICK), *SLOW])
def test_steps_on_a_mesh_equal_one_device(name, option, graph):
    sample, variables = samples.BY_NAME[name], on_mesh()
    optimizer = sample.make(name="optimizer", **OPTIONS[option])
    steps = samples.gradients(STEPS, SHAPES)
    on_devices = [[laid_out(g[p], SPECS[p]) for p in SHAPES] for g in steps]
    run(optimizer, list(variables.values()), on_devices, graph)

    one, alone = sample.make(name="optimizer", **OPTIONS[option]), samples.weights(SHAPES)
    alone = [tf.Variable(value, name=path) for path, value in alone.items()]
    run(one, alone, [[tf.constant(g[p]) for p in SHAPES] for g in steps], graph=False)
    assert_equals_one_device(optimizer, list(variables.values()), one, alone)
    every = OPTIONS[option].get("gradient_accumulation_steps", 1)
    assert int(whole(optimizer.iterations)) == STEPS // every
    for path, variable in variables.items():
        assert variable.layout.sharding_specs == SPECS[path]


@pytest.mark.parametrize(
    ("name", "graph"),
    [
        ("lars", False),
        *(
            pytest.param(*each, marks=pytest.mark.slow)
            for each in (("larc_clip", False), ("lamb", True))
        ),
    ],
)
def test_norms_on_a_mesh_are_of_the_whole_variable(name, graph):
    test_steps_on_a_mesh_equal_one_device(name, "plain", graph)


def test_rows_that_begin_anew_on_a_mesh_equal_one_device():
    variables, steps = on_mesh(), samples.gradients(STEPS, SHAPES)
    options = OPTIONS["ema"] | OPTIONS["accumulation"]
    optimizer, one = (tf_graft.Adam(0.1, name="optimizer", **options) for _ in range(2))
    run(
        optimizer,
        [*variables.values()],
        [[laid_out(g[p], SPECS[p]) for p in SHAPES] for g in steps],
        False,
    )
    alone = {p: tf.Variable(value, name=p) for p, value in samples.weights(SHAPES).items()}
    run(one, [*alone.values()], [[tf.constant(g[p]) for p in SHAPES] for g in steps], False)
    for path in SHAPES:
        weights = np.ones([2, *SHAPES[path][1:]])
        optimizer.reset_rows(variables[path], [1, 3], weights)
        one.reset_rows(alone[path], [1, 3], weights)
        np.testing.assert_array_equal(alone[path].numpy()[[1, 3]], 1)
    assert_equals_one_device(optimizer, variables.values(), one, alone.values())
    found = {v.path: whole(v) for v in optimizer.variables}
    for path in SHAPES:
        momentum = found[f"optimizer/{path}/momentum"]
        assert not np.any(momentum[[1, 3]])
        assert np.all(momentum[[0, 2]] != 0)


@pytest.mark.filterwarnings("ignore:.*no gradient for:UserWarning")
@pytest.mark.parametrize("graph", [False, True])
def test_gradients_of_earlier_micro_steps_take_part_on_a_mesh(graph):
    optimizer, one = (tf_graft.Adam(0.1, gradient_accumulation_steps=2) for _ in range(2))
    variables, steps = on_mesh(), samples.gradients(4, SHAPES)
    alone = {p: tf.Variable(value, name=p) for p, value in samples.weights(SHAPES).items()}
    optimizer.build([*variables.values()])
    one.build([*alone.values()])
    for number, g in enumerate(steps):
        absent = [["rows"], ["both", "bias"], [], ["columns", "rows"]][number]
        laid = {p: None if p in absent else laid_out(g[p], SPECS[p]) for p in SHAPES}

        def step(laid=laid):
            optimizer.apply([*laid.values()], [*variables.values()])

        (tf.function(step) if graph else step)()
        given = [None if p in absent else tf.constant(g[p]) for p in SHAPES]
        one.apply(given, [*alone.values()])
    assert_equals_one_device(optimizer, variables.values(), one, alone.values())


def step_by_rows(optimizer, table, one, alone, graph: bool) -> None:
    """Steps with row-sparse gradients, on a mesh and on one device; each touches other rows."""
    optimizer.build([table])

    def step(values, ids):
        optimizer.apply([tf.IndexedSlices(values, ids)], [table])

    step = tf.function(step) if graph else step
    for number, ids in enumerate([[1, 1], [0, 1], [3, 0]]):
        values = np.random.default_rng(number).normal(size=[2, 6]).astype("float32")
        step(laid_out(values, [UNSHARDED, "y"]), laid_out(np.array(ids), [UNSHARDED]))
        one.apply([tf.IndexedSlices(values, ids)], [alone])


@pytest.mark.parametrize("graph", [pytest.param(False, marks=pytest.mark.slow), True])
def test_rows_that_count_on_a_mesh_equal_one_device(graph):
    """And are clipped. The gradient is row-sparse, and other rows are touched in each step."""
    start = samples.weights(SHAPES)["columns"]
    table = dtensor.DVariable(laid_out(start, SPECS["columns"]), name="table")
    alone = tf.Variable(start, name="table")
    counts = {"table": tf_graft.RowFrequency(4.0, half_life=1.0)}
    options = {"count_rows": counts, "clip_rows": {"table": tf_graft.CowClip(0.1)}}
    optimizer, one = (tf_graft.Adam(0.1, epsilon=1.0, **options) for _ in range(2))
    step_by_rows(optimizer, table, one, alone, graph)
    np.testing.assert_allclose(whole(table), alone, rtol=1e-5, atol=1e-6)
    found = {v.path.rpartition("/")[2]: whole(v).tolist() for v in optimizer.variables}
    assert found["row_updates"] == [2, 2, 0, 1]
    assert found["row_last_update"] == [3, 2, 0, 3]
    np.testing.assert_allclose(found["row_frequency"], [1.5, 1.5, 0.0, 1.0])


def test_the_comparison_notices_one_shard():
    variables = list(on_mesh().values())
    alone = [tf.Variable(value, name=path) for path, value in samples.weights(SHAPES).items()]
    optimizer, one = tf_graft.SGD(0.1, name="optimizer"), tf_graft.SGD(0.1, name="optimizer")
    optimizer.build(variables)
    one.build(alone)
    assert_equals_one_device(optimizer, variables, one, alone)
    change = np.zeros((4, 6), np.float32)
    change[3, 5] = 1e-3
    variables[2].assign_add(laid_out(change, SPECS["both"]))
    with pytest.raises(AssertionError, match="model 2"):
        assert_equals_one_device(optimizer, variables, one, alone)


# Where the state lies.


@pytest.mark.parametrize("option", ["ema", pytest.param("accumulation", marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "name", ["sgd_momentum", pytest.param("adagrad", marks=pytest.mark.slow), "adam_amsgrad"]
)
def test_state_is_laid_out_as_its_variable(name, option):
    sample, variables = samples.BY_NAME[name], on_mesh()
    optimizer = sample.make(name="optimizer", **OPTIONS[option])
    optimizer.build(list(variables.values()))
    assert optimizer.mesh == mesh()
    roles = set()
    for variable in optimizer.variables:
        layout = raw(variable).layout
        assert isinstance(raw(variable), dtensor.DVariable)
        assert layout.mesh == mesh()
        path, _, role = variable.path.removeprefix("optimizer/").rpartition("/")
        if not path:
            assert layout.rank == 0
            continue
        roles.add(role)
        rank = len(variable.shape)
        assert layout.sharding_specs == SPECS[path][:rank], variable.path
        if rank == len(SHAPES[path]):
            assert layout == variables[path].layout
    assert roles >= set(sample.roles(2))
    counters = {v.path for v in optimizer.variables if v.path.count("/") == 1}
    accumulates = "gradient_accumulation_steps" in OPTIONS[option]
    assert len(counters) == 4 + accumulates  # the rate too


FACTORED = {  # where a slot's dimension is the variable's, it lies as that one
    "rows": (["x"], ["unsharded"], ["x", "unsharded"]),
    "columns": (["unsharded"], ["y"], ["unsharded", "unsharded"]),
    "both": (["x"], ["y"], ["x", "unsharded"]),
    "replicated": (["unsharded"], ["unsharded"], ["unsharded", "unsharded"]),
    "bias": ([], ["y"], ["y", "unsharded"]),
}


@pytest.mark.parametrize("graph", [pytest.param(False, marks=pytest.mark.slow), True])
def test_slots_shaped_by_a_function_lie_as_the_dimensions_they_are_of(graph):
    variables, steps = on_mesh(), samples.gradients(STEPS, SHAPES)
    optimizer, one = (written.Factored(0.1, name="optimizer") for _ in range(2))
    on_devices = [[laid_out(g[p], SPECS[p]) for p in SHAPES] for g in steps]
    run(optimizer, list(variables.values()), on_devices, graph)
    alone = [tf.Variable(value, name=p) for p, value in samples.weights(SHAPES).items()]
    run(one, alone, [[tf.constant(g[p]) for p in SHAPES] for g in steps], graph=False)
    assert_equals_one_device(optimizer, list(variables.values()), one, alone)
    found = {v.path: raw(v).layout.sharding_specs for v in optimizer.variables}
    for path, specs in FACTORED.items():
        roles = ("by_row", "by_column", "products")
        assert tuple(found[f"optimizer/{path}/{role}"] for role in roles) == specs


def test_adagrads_accumulator_starts_filled_and_sharded():
    variables = on_mesh()
    optimizer = tf_graft.Adagrad(0.1, initial_accumulator_value=0.5, epsilon=0.25, name="optimizer")
    optimizer.build(list(variables.values()))
    accumulators = [v for v in optimizer.variables if v.path.endswith("/accumulator")]
    assert len(accumulators) == len(SHAPES)
    for accumulator in accumulators:
        np.testing.assert_array_equal(whole(accumulator), np.full(accumulator.shape, 0.75))
    (both,) = [v for v in accumulators if v.path == "optimizer/both/accumulator"]
    shards = [x.shape.as_list() for x in dtensor.unpack(raw(both).read_value())]
    assert shards == [[2, 3]] * 4


@pytest.mark.parametrize(
    "dtype",
    [*(pytest.param(each, marks=pytest.mark.slow) for each in ("float64", "float16")), "bfloat16"],
)
def test_other_precisions_on_a_mesh(dtype):
    values = {"both": samples.weights(SHAPES)["both"]}
    v = dtensor.DVariable(tf.cast(laid_out(values["both"], SPECS["both"]), dtype), name="both")
    alone = tf.Variable(tf.cast(values["both"], dtype), name="both")
    gradient = samples.gradients(1, {"both": (4, 6)})[0]["both"]
    optimizers = [tf_graft.Adam(0.1, name="optimizer") for _ in range(2)]
    run(optimizers[0], [v], [[tf.cast(laid_out(gradient, SPECS["both"]), dtype)]] * STEPS, False)
    run(optimizers[1], [alone], [[tf.cast(gradient, dtype)]] * STEPS, False)
    expected = samples.state_of(optimizers[1], alone)
    actual = state_on_mesh(optimizers[0], [v])
    assert actual.keys() == expected.keys()
    for path, value in expected.items():
        assert actual[path].dtype == value.dtype
        rounding = 1e-2 if "16" in dtype and path.startswith("model") else 1e-5
        np.testing.assert_allclose(
            actual[path].astype("float64"),
            value.astype("float64"),
            rtol=rounding,
            atol=1e-6,
            err_msg=path,
        )


@pytest.mark.parametrize("spec", ["rows", pytest.param("both", marks=pytest.mark.slow)])
def test_weights_without_a_master_have_the_bits_of_one_device(spec):
    start = tf.cast(samples.weights(SHAPES)[spec], tf.bfloat16)
    on_devices = tf.cast(laid_out(tf.cast(start, tf.float32), SPECS[spec]), tf.bfloat16)
    v, alone = dtensor.DVariable(on_devices, name=spec), tf.Variable(start, name=spec)
    options = {"master_weights": False, "state_dtype": "bfloat16", "weight_decay": 0.1}
    optimizer, one = (tf_graft.Adam(1e-3, name="optimizer", **options) for _ in range(2))
    steps = [g[spec] for g in samples.gradients(STEPS, {spec: SHAPES[spec]})]
    run(optimizer, [v], [[laid_out(g, SPECS[spec])] for g in steps], False)
    ids, values = np.array([3, 1, 3]), steps[0][:3]
    sliced = tf.IndexedSlices(laid_out(values, [UNSHARDED] * 2), laid_out(ids, [UNSHARDED]))
    optimizer.apply([sliced], [v])
    run(one, [alone], [*([tf.constant(g)] for g in steps), [samples.slices(ids, values)]], False)
    samples.assert_same_state(state_on_mesh(optimizer, [v]), samples.state_of(one, alone))


@pytest.mark.parametrize("graph", [False, pytest.param(True, marks=pytest.mark.slow)])
@pytest.mark.parametrize("mode", [tf_graft.CautiousDecay(), tf_graft.CorrectedDecay(0.5)], ids=str)
def test_modes_of_weight_decay_on_a_mesh_equal_one_device(mode, graph):
    decay = {"weight_decay": 0.5, "weight_decay_mode": mode}
    optimizer, one = (tf_graft.Adam(0.25, name="optimizer", **decay) for _ in range(2))
    alone = [tf.Variable(value, name=path) for path, value in samples.weights(SHAPES).items()]
    variables = list(on_mesh().values())
    steps = [list(g.values()) for g in samples.gradients(STEPS, SHAPES)]
    run(one, alone, [[tf.constant(g) for g in gs] for gs in steps], False)
    laid = [[laid_out(g, s) for g, s in zip(gs, SPECS.values(), strict=True)] for gs in steps]
    run(optimizer, variables, laid, graph)
    assert_equals_one_device(optimizer, variables, one, alone)


def test_mesh_is_found_or_given_and_not_in_the_config():
    found = tf_graft.Adam(0.1)
    plain = found.get_config()
    found.build(list(on_mesh().values()))
    assert found.mesh == mesh()
    given = tf_graft.Adam(0.1, mesh=mesh())
    for optimizer in (found, given):
        assert optimizer.get_config() == plain
        assert tf_graft.deserialize(tf_graft.serialize(optimizer)).mesh is None


def test_counters_and_rates_are_at_once_on_a_mesh_that_is_given():
    made = [samples.BY_NAME[name].make(mesh=mesh()) for name in (*NAMES, "larc_clip")]
    worker = tf_graft.AGN(tf_graft.Adam(0.1), mesh=mesh())
    mixed = tf_graft.MixedPrecision(tf_graft.Adam(0.1, mesh=mesh()), "backoff")
    for optimizer in (*made, worker, worker.center_optimizer, mixed):
        assert len(optimizer.variables) >= 3
        for variable in (*optimizer.variables, optimizer.iterations):
            assert raw(variable).layout == dtensor.Layout.replicated(mesh(), 0), variable.path
    assert isinstance(raw(made[0].learning_rate), dtensor.DVariable)


def test_the_center_of_divided_variables_is_read():
    variables = on_mesh()
    gradients = [laid_out(np.ones(SHAPES[path], "float32"), SPECS[path]) for path in SHAPES]
    optimizer = tf_graft.AGN(tf_graft.SGD(0.5), communication_period=1)
    optimizer.apply(gradients, list(variables.values()))
    centers = optimizer.center_values()
    assert len(centers) == len(SHAPES)
    for path, before in samples.weights(SHAPES, "float32").items():
        np.testing.assert_array_equal(centers[path], before - np.float32(0.5))


@pytest.mark.parametrize(
    ("make", "graph"),
    [
        (lambda: tf_graft.Adagrad(0.1, initial_accumulator_value=0.5), True),
        (lambda: tf_graft.wrap(keras.optimizers.Adagrad(0.1, 0.5)), False),
        (lambda: tf_graft.wrap(keras.optimizers.Adagrad(0.1, 0.5)), True),
    ],
    ids=["filled", "of_keras", "of_keras, in a function"],
)
def test_slots_of_the_rows_of_a_period_begin_anew_on_a_mesh(make, graph):
    start = samples.weights(SHAPES)["columns"]
    table = dtensor.DVariable(laid_out(start, SPECS["columns"]), name="table")
    alone = tf.Variable(start, name="table")
    optimizer, one = (
        tf_graft.AGN(*(make(), 1, 2, tf_graft.SGD(0.5)), reset_local_state=True, name="optimizer")
        for _ in range(2)
    )
    step_by_rows(optimizer, table, one, alone, graph)
    assert_equals_one_device(optimizer, [table], one, [alone])
    state = state_on_mesh(optimizer, [])
    (accumulator,) = (value for path, value in state.items() if path.endswith("accumulator"))
    np.testing.assert_allclose(accumulator[[1, 2]], 0.5, rtol=1e-6)
    assert np.all(accumulator[[0, 3]] > 0.5001)


def test_a_graft_at_a_rate_of_zero_stays_on_divided_variables():
    variables = on_mesh()
    gradients = [laid_out(np.ones(SHAPES[path], "float32"), SPECS[path]) for path in SHAPES]
    graft = tf_graft.AdaGraft(tf_graft.SGD(0.5), tf_graft.SGD(1.0), learning_rate=0.0)
    graft.apply(gradients, list(variables.values()))
    assert int(graft.iterations.numpy()) == 1
    for path, before in samples.weights(SHAPES, "float32").items():
        np.testing.assert_array_equal(whole(variables[path]), before)


def test_added_variables_are_on_the_mesh():
    class Own(tf_graft.SGD):
        def __init__(self, learning_rate=0.1, **common):
            super().__init__(learning_rate, name="own", **common)
            self.early = self.add_variable((2,), "ones", "float64", name="early")

        def build(self, variables):
            super().build(variables)
            normal = keras.initializers.RandomNormal(seed=1)
            self.late = self.add_variable((3, 2), normal, name="late")
            self.twice = self.add_optimizer_variables(variables, ["a", "b"], ["zeros", "ones"])

    variables, optimizer, alone = on_mesh(), Own(), Own()
    optimizer.build(list(variables.values()))
    alone.build([tf.Variable(v, name=p) for p, v in samples.weights(SHAPES).items()])
    for made in (optimizer.early, optimizer.late):
        assert raw(made).layout == dtensor.Layout.replicated(mesh(), len(made.shape))
    for made in optimizer.twice:
        assert [raw(v).layout for v in made] == [v.layout for v in variables.values()]
    for ours, theirs in zip(optimizer.variables, alone.variables, strict=True):
        assert ours.dtype == theirs.dtype
        np.testing.assert_array_equal(whole(ours), theirs.numpy(), err_msg=ours.path)


def test_given_mesh_for_variables_elsewhere_holds_counters_and_rate():
    """The mesh is the given one, also where the variables do not say."""
    optimizer = tf_graft.Adam(0.1, mesh=mesh(), name="optimizer")
    optimizer.build([])
    assert {v.path.split("/")[-1] for v in optimizer.variables} >= {"iteration", "learning_rate"}
    for variable in optimizer.variables:
        assert raw(variable).layout == dtensor.Layout.replicated(mesh(), 0), variable.path


def test_learning_rate_set_on_a_mesh():
    variables = list(on_mesh().values())
    optimizer = tf_graft.SGD(0.5)
    optimizer.build(variables)
    optimizer.learning_rate = 0.25
    assert raw(optimizer.learning_rate).layout == dtensor.Layout.replicated(mesh(), 0)
    gradients = samples.gradients(1, SHAPES)[0]
    optimizer.apply([laid_out(gradients[p], SPECS[p]) for p in SHAPES], variables)
    expected = samples.weights(SHAPES)["both"] - 0.25 * gradients["both"]
    np.testing.assert_allclose(whole(variables[2]), expected, rtol=1e-6)


def test_schedule_on_a_mesh():
    variables = list(on_mesh().values())
    optimizer = tf_graft.SGD(tf_graft.schedules.PolyDecay(0.5, 4, power=1.0))
    ones = {p: np.ones(s, np.float32) for p, s in SHAPES.items()}
    steps = [[laid_out(ones[p], SPECS[p]) for p in SHAPES]] * 2
    run(optimizer, variables, steps, graph=True)
    expected = samples.weights(SHAPES)["both"] - (0.5 + 0.375)
    np.testing.assert_allclose(whole(variables[2]), expected, rtol=1e-5)


# Decisions.


@pytest.mark.parametrize(
    ("bad", "graph"), [(np.inf, False), pytest.param(np.nan, True, marks=pytest.mark.slow)]
)
def test_a_non_finite_gradient_in_one_shard_changes_nothing(bad, graph):
    variables = list(on_mesh().values())
    optimizer = tf_graft.Adam(0.1, use_ema=True, name="optimizer")
    gradients = samples.gradients(2, SHAPES)
    gradients[1]["both"][3, 5] = bad
    steps = [[laid_out(g[p], SPECS[p]) for p in SHAPES] for g in gradients]
    run(optimizer, variables, steps[:1], graph)
    before = state_on_mesh(optimizer, variables)
    run(optimizer, variables, steps[1:], graph)
    after = state_on_mesh(optimizer, variables)
    assert int(after.pop("skipped_steps")) == 1
    assert int(before.pop("skipped_steps")) == 0
    samples.assert_same_state(after, before)


def test_an_ordinary_tensor_for_a_variable_on_the_mesh_is_refused():
    variables = on_mesh()
    optimizer = tf_graft.SGD(0.1)
    good = {p: laid_out(g, SPECS[p]) for p, g in samples.gradients(1, SHAPES)[0].items()}
    before = {path: whole(v) for path, v in variables.items()}
    slices = tf.IndexedSlices(
        laid_out(np.ones((1, 6), np.float32), [UNSHARDED] * 2), tf.constant([0])
    )
    for bad in (samples.gradients(1, SHAPES)[0]["both"], slices):
        with pytest.raises(TypeError, match="gradient of 'both' is an ordinary tensor"):
            optimizer.apply(list((good | {"both": bad}).values()), list(variables.values()))
    for path, value in before.items():
        np.testing.assert_array_equal(whole(variables[path]), value)


def test_finalize_on_a_mesh():
    variables = list(on_mesh().values())
    optimizer = tf_graft.Adam(0.1, **OPTIONS["ema"], name="optimizer")
    steps = [[laid_out(g[p], SPECS[p]) for p in SHAPES] for g in samples.gradients(2, SHAPES)]
    run(optimizer, variables, steps, graph=False)
    averages = [whole(v) for v in optimizer.synchronized_averages()]
    assert not np.allclose(averages[0], whole(variables[0]))
    optimizer.finalize_variable_values(variables)
    for variable, average in zip(variables, averages, strict=True):
        np.testing.assert_array_equal(whole(variable), average)


@pytest.mark.parametrize(
    ("averages", "graph"),
    [
        (averages.SWA(1, 2), False),
        pytest.param(averages.EMA(0.9, 1, True), True, marks=pytest.mark.slow),
    ],
    ids=["swa", "ema"],
)
def test_momentum_and_averages_in_time_on_a_mesh(averages, graph):
    momentum = keras.optimizers.schedules.PiecewiseConstantDecay([1], [0.5, 0.75])
    options = {"momentum": momentum, "use_ema": averages, "name": "optimizer"}
    steps = samples.gradients(3, SHAPES)
    variables, optimizer = list(on_mesh().values()), tf_graft.SGD(0.1, **options)
    given = [[laid_out(g[p], SPECS[p]) for p in SHAPES] for g in steps]
    run(optimizer, variables, given, graph)
    alone, one = samples.variables(samples.weights(SHAPES)), tf_graft.SGD(0.1, **options)
    alone = list(alone.values())
    run(one, alone, [[tf.constant(g[p]) for p in SHAPES] for g in steps], graph=False)
    assert_equals_one_device(optimizer, variables, one, alone)


# Saving.


def test_store_on_a_mesh_loads_on_one_device_and_back():
    steps = samples.gradients(2, SHAPES)
    variables = list(on_mesh().values())
    optimizer = tf_graft.Adam(0.1, name="optimizer")
    run(optimizer, variables, [[laid_out(g[p], SPECS[p]) for p in SHAPES] for g in steps], False)
    store: dict = {}
    optimizer.save_own_variables(store)
    alone = [tf.Variable(value, name=path) for path, value in samples.weights(SHAPES).items()]
    one = tf_graft.Adam(0.1, name="optimizer")
    one.build(alone)
    one.load_own_variables(store)
    state = samples.state_of(one)
    samples.assert_same_state(state, state_on_mesh(optimizer, []))
    fresh = tf_graft.Adam(0.1, name="optimizer")
    fresh.build(list(on_mesh().values()))
    fresh.load_own_variables(store)
    samples.assert_same_state(state_on_mesh(fresh, []), state)
    assert raw(fresh.iterations).layout == dtensor.Layout.replicated(mesh(), 0)


def test_checkpoint_on_a_mesh(tmp_path):
    steps = samples.gradients(2, SHAPES)
    variables = list(on_mesh().values())
    optimizer = tf_graft.Adam(0.1, name="optimizer")
    run(optimizer, variables, [[laid_out(g[p], SPECS[p]) for p in SHAPES] for g in steps], False)
    path = tf.train.Checkpoint(optimizer=optimizer).write(str(tmp_path / "checkpoint"))
    fresh = tf_graft.Adam(0.1, name="optimizer")
    fresh.build(list(on_mesh().values()))
    tf.train.Checkpoint(optimizer=fresh).read(path).assert_existing_objects_matched()
    samples.assert_same_state(state_on_mesh(fresh, []), state_on_mesh(optimizer, []))


@pytest.mark.parametrize(
    ("name", "graph"),
    [
        ("backoff", False),
        ("logmax", False),
        *(pytest.param(each, True, marks=pytest.mark.slow) for each in ("fixed", "backoff")),
    ],
)
def test_loss_scalers_on_a_mesh_equal_one_device(name, graph):
    scaler = scaling.get(name)
    update = tf.function(scaler.update) if graph else scaler.update
    alone = {role: tf.constant(slot.fill, slot.dtype) for role, slot in scaler.slots().items()}
    on_devices = {role: laid_out(value, []) for role, value in alone.items()}
    for finite, amax in [(True, 4.0), (False, 0.0), (True, 0.5), (True, 0.0), (True, 64.0)]:
        amax = np.float32(amax)
        alone = scaler.update(alone, tf.constant(finite), tf.constant(amax))
        on_devices = update(on_devices, laid_out(finite, []), laid_out(amax, []))
        assert on_devices.keys() == alone.keys()
        for role, value in alone.items():
            assert dtensor.fetch_layout(on_devices[role]) == dtensor.Layout.replicated(mesh(), 0)
            np.testing.assert_allclose(whole(on_devices[role]), value, rtol=1e-6)
        assert float(whole(scaler.scale(on_devices))) == float(scaler.scale(alone))


@pytest.mark.parametrize("graph", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_minimize_on_a_mesh(graph):
    variables = list(on_mesh().values())
    optimizer = tf_graft.MixedPrecision(tf_graft.SGD(0.25), "backoff")
    optimizer.build(variables)
    start = [whole(v) for v in variables]

    def step():
        optimizer.minimize(lambda: tf.add_n([tf.reduce_sum(v * v) for v in variables]), variables)

    (tf.function(step) if graph else step)()
    for variable, before in zip(variables, start, strict=True):
        np.testing.assert_allclose(whole(variable), before / 2, rtol=1e-6)
    assert repr(optimizer).endswith("mesh=Mesh(x=2, y=2))")


# `tf_graft.testing` on a mesh.


class TwiceOnAMesh(tf_graft.SGD):
    def step(self, g, w, s, lr, t):
        return super().step(g if self.mesh is None else 2 * g, w, s, lr, t)


def test_check_on_mesh():
    (result,) = tf_graft.testing.check_on_mesh(tf_graft.Adam, learning_rate=0.1)
    assert result.result == "kept"
    with pytest.raises(AssertionError, match="breaks 1 of 1 guarantees:\n  mesh: one device: '"):
        tf_graft.testing.check_on_mesh(TwiceOnAMesh)


@pytest.mark.parametrize("graph", [pytest.param(False, marks=pytest.mark.slow), True])
def test_a_monitor_measures_what_one_device_measures(graph):
    some = {path: SHAPES[path] for path in ("rows", "both", "bias")}
    (values,) = samples.gradients(1, some)
    given = [laid_out(values[path], SPECS[path]) for path in some]
    alone = [tf.Variable(value, name=path) for path, value in samples.weights(some).items()]
    divided = [
        dtensor.DVariable(laid_out(value, SPECS[path]), name=path)
        for path, value in samples.weights(some).items()
    ]
    found = []
    for variables, gradients in ((divided, given), (alone, [*values.values()])):
        optimizer = tf_graft.Adam(0.1)
        optimizer.build(variables)
        monitor = tf_graft.Monitor(1, optimizer)
        apply = tf.function(optimizer.apply) if graph else optimizer.apply
        with monitor.step():
            apply(gradients, variables)
        found.append([tuple(norms) for norms in monitor.records[0].variables.values()])
    np.testing.assert_allclose(*found, rtol=1e-5)
