"""TensorFlow's in-place kernels: the bits of `step`, masters, what a step reads and keeps."""

import itertools
import math

import numpy as np
import pytest
import tensorflow as tf

import tf_graft as tg
from support import samples
from tf_graft.core.pipeline import turns
from tf_graft.core.state.optimizer_state import OptimizerState

HALF = ("float16", "bfloat16")
EXACT = {
    "sgd": lambda **common: tg.SGD(0.01, **common),
    "sgd_momentum": lambda **common: tg.SGD(0.01, momentum=0.9, **common),
    "sgd_nesterov": lambda **common: tg.SGD(0.01, momentum=0.9, nesterov=True, **common),
    "momentum": lambda **common: tg.Momentum(0.01, **common),
    "adam": lambda **common: tg.Adam(0.01, **common),
    "radam": lambda **common: begun(tg.RAdam(0.01, **common), 4),  # the next is rectified
    "adagrad": lambda **common: tg.Adagrad(0.01, **common),
    "rmsprop": lambda **common: tg.RMSprop(0.01, **common),
    "rmsprop_momentum": lambda **common: tg.RMSprop(0.01, momentum=0.9, **common),
    "lion": lambda **common: tg.Lion(0.01, **common),
    "lars": lambda **common: tg.LARS(0.01, weight_decay_rate=0.1, nesterov=True, **common),
    "lars_plain": lambda **common: tg.LARS(0.01, momentum=0.0, sum_of_norms=True, **common),
    "lamb": lambda **common: tg.LAMB(0.01, **common),
    "lamb_decay": lambda **common: tg.LAMB(0.01, weight_decay_rate=0.1, **common),
}
INEXACT = {
    "adam": lambda: tg.Adam(0.01, amsgrad=True),
    "adamw": lambda: tg.AdamW(0.01),
    "nadam": lambda: tg.NAdam(0.01),
    "ademamix": lambda: tg.AdEMAMix(0.01),
    "adadelta": lambda: tg.Adadelta(0.01),
    "ftrl": lambda: tg.Ftrl(0.01),
    "momentum": lambda: tg.Momentum(0.01, use_nesterov=True),
    "schedulefreeadamw": lambda: tg.ScheduleFreeAdamW(0.01),
}
# Those with kernels that may be inside of another optimizer.
INSIDE = [
    name
    for name in samples.listed(kernel=True)
    if not issubclass(type(tg.get(name)), tg.algorithm.TwoWeights)
]
# Zeros of both signs, numbers below the normal ones, numbers that lose the others.
SPECIAL = np.float32([0.0, -0.0, 1e-40, -1e-40, 3e-39, 1e-30, -1e-20, 1.0, 300.0, -3e4])


def numbers(seed, count=999):
    """Some three in four at random, the rest special."""
    rng = np.random.default_rng(seed)
    special = rng.choice(SPECIAL, count)
    return np.where(rng.random(count) < 0.25, special, rng.normal(size=count)).astype(np.float32)


def without_kernel(optimizer):
    cls = type(optimizer)
    optimizer.__class__ = type(cls.__name__, (cls,), {"kernel": None})
    return optimizer


def begun(optimizer, updates):
    """The optimizer as if it had made some updates."""
    optimizer.iterations.assign(updates)
    return optimizer


def traced(optimizer, w):
    """The optimizer's `apply` in a `tf.function`, of one gradient for each variable."""
    optimizer.build(w)
    return tf.function(lambda *g: optimizer.apply(list(g), w), autograph=False)


def nodes(optimizer, w):
    """Every operation of one step of the optimizer, in branches too."""
    graph = traced(optimizer, w).get_concrete_function(*map(tf.convert_to_tensor, w)).graph
    graph = graph.as_graph_def()
    return [*graph.node, *itertools.chain(*(f.node_def for f in graph.library.function))]


def count(found, *kinds):
    return sum(node.op in kinds for node in found)


def after_a_kernel(op):
    """Whether an operation waits for a kernel."""
    seen, ahead = set(), [op]
    while ahead:
        before = ahead.pop()
        if before not in seen:
            seen.add(before)
            ahead += [*before.control_inputs, *(x.op for x in before.inputs)]
    return any("ResourceApply" in before.type for before in seen - {op})


def bits(optimizer, w):
    state = {v.path: v.numpy() for v in optimizer.variables} | {"weights": w.numpy()}
    return {path: np.asarray(value).tobytes() for path, value in state.items()}


def run(optimizer, dtype, graph, meanwhile=()):
    """The bits after each of five steps, the fourth with a gradient that is not finite."""
    w = tf.Variable(tf.cast(numbers(0), dtype), name="w")
    step = traced(optimizer, [w]) if graph else lambda g: optimizer.apply([g], [w])
    found = []
    for number in range(1, 6):
        if number in meanwhile:
            w.assign(tf.cast(numbers(10 + number), dtype))
        gradient = tf.cast(numbers(number), dtype)
        step(gradient * math.nan if number == 4 else gradient)
        found.append(bits(optimizer, w))
    return found


def assert_same(found, expected):
    for number, (a, b) in enumerate(zip(found, expected, strict=True), 1):
        assert {p: x != b[p] for p, x in a.items()} == dict.fromkeys(a, False), f"step {number}"


def assert_skipped(found):
    """The fourth step changed nothing, and is counted."""
    before, after = found[2:4]
    assert [path.split("/")[-1] for path in after if after[path] != before[path]] == [
        "skipped_steps"
    ]


@pytest.mark.parametrize("graph", [False, True], ids=["eager", "graph"])
@pytest.mark.parametrize("name", EXACT)
def test_exact_kernels_give_the_bits_of_step(name, graph):
    make = EXACT[name]
    assert make().kernel.exact
    found = run(make(), "float32", graph)
    assert_same(found, run(without_kernel(make()), "float32", graph))
    assert_skipped(found)


@pytest.mark.parametrize("graph", [False, True], ids=["eager", "graph"])
@pytest.mark.parametrize("dtype", HALF)
@pytest.mark.parametrize("name", ["sgd_momentum", "adam", "rmsprop"])
def test_masters_are_moved_as_by_step(name, dtype, graph):
    """Also where weights are assigned meanwhile, and where a gradient is not finite."""
    make = EXACT[name]
    found = run(make(), dtype, graph, meanwhile=(3, 5))
    assert_same(found, run(without_kernel(make()), dtype, graph, meanwhile=(3, 5)))
    assert_skipped(found)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_first_step_of_radam_is_the_gradient_of_any_length(dtype):
    g = tf.constant([1e-9, -1e-3, 4.0, 1e8, -1e10], dtype)
    w = tf.Variable(tf.zeros([5], dtype))
    tg.RAdam(1e-9, threshold=4).apply([g], [w])
    np.testing.assert_allclose(w.numpy(), -1e-9 * g.numpy(), rtol=1e-6)


@pytest.mark.parametrize("dtype", HALF)
def test_an_exact_kernel_moves_masters(dtype):
    w = [tf.Variable(tf.zeros([3], dtype)), tf.Variable(tf.zeros([2], dtype))]
    found = nodes(tg.Adam(), w)
    assert count(found, "ResourceApplyAdam") == 2
    assert count(found, "SelectV2") == 2  # where they were assigned meanwhile, in that branch


@pytest.mark.parametrize("name", INEXACT)
def test_another_kernel_moves_no_masters(name):
    variables = [tf.Variable(tf.zeros([3], dtype)) for dtype in (*HALF, "float32")]
    kernels, of_one = (
        [node.op for node in nodes(INEXACT[name](), w) if "ResourceApply" in node.op]
        for w in (variables, variables[-1:])
    )
    assert kernels == of_one != []


@pytest.mark.parametrize("name", ["nadam", "ademamix"])
@pytest.mark.parametrize("around", [False, True])
def test_several_kernels_make_the_step(name, around):
    """Also inside of another optimizer, where shared slots have longer roles."""

    def after(optimizer):
        w = tf.Variable(numbers(0), name="w")
        optimizer = tg.MultiOptimizer({".*": optimizer}) if around else optimizer
        step = traced(optimizer, [w])
        for number in range(1, 6):
            step(tf.constant(numbers(number)))
        return w.numpy()

    found, expected = after(INEXACT[name]()), after(without_kernel(INEXACT[name]()))
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-7)
    assert not np.array_equal(found, expected)  # what is rounded differs


@pytest.mark.parametrize("name", samples.with_slow(INSIDE, ["adam", "ftrl", "lamb"]))
def test_a_wrapper_that_reshapes_steps_gets_those_of_step(name):
    def after(optimizer):
        w = tf.Variable(numbers(0, 64), name="w")
        step = traced(tg.AdaGraft(optimizer, tg.SGD(0.1)), [w])
        for number in range(1, 6):
            step(tf.constant(numbers(number, 64)))
        return w.numpy()

    expected = after(without_kernel(tg.get(name)))
    np.testing.assert_allclose(after(tg.get(name)), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("around", [False, True])
@pytest.mark.parametrize("name", samples.with_slow(INSIDE, ["adam", "ftrl", "adamax"]))
def test_nan_stays_nan_where_nobody_judges(name, around):
    """In an update with `nonfinite="apply"`, and in one of `update_step`."""
    nan = tf.constant([math.nan, 1.0])
    for alone in (False, True):
        w = tf.Variable([1.0, 2.0], name="w")
        given = {"nonfinite": "apply"} if not alone else {}
        optimizer = tg.get({"name": name} | ({} if around else given))
        optimizer = tg.MultiOptimizer({".*": optimizer}, **given) if around else optimizer
        optimizer.build([w])
        optimizer.update_step(nan, w, 0.1) if alone else optimizer.apply([nan], [w])
        assert math.isnan(w.numpy()[0]), alone


@pytest.mark.parametrize("name", ["lars", "lamb"])
def test_a_kernel_that_reads_the_weights_reads_them_before_they_decay(name):
    found = run(EXACT[name](weight_decay=0.1), "float32", True)
    assert_same(found, run(without_kernel(EXACT[name](weight_decay=0.1)), "float32", True))


def test_decay_of_another_form_needs_no_kernel_of_the_class_below():
    class Half(tg.SGD):
        def decayed(self, p, d):
            return d - 0.5 * p.w

    w = tf.Variable([4.0])
    Half(1.0, weight_decay=0.1).apply([tf.constant([1.0])], [w])
    assert float(w[0]) == 1.0


@pytest.mark.parametrize("name", ["novograd", "prodigy", "schedule_free_sgd"])
def test_a_table_knows_of_decay_within_the_step(name):
    optimizer = tg.get({"name": name, "weight_decay": 0.1, "exclude_from_weight_decay": ["bias"]})
    optimizer.build([tf.Variable([1.0], name=name) for name in ("kernel", "bias")])
    kernel, bias = (line.split()[3] for line in optimizer.table().splitlines()[1:])
    assert (kernel, bias) == ("yes", "no")


def test_layerwise_kernels_move_the_weights():
    """The only tensor as large as a variable that LAMB makes is its direction, and LARS none."""
    w = [tf.Variable(tf.zeros([3]))]
    found = nodes(tg.LARS(), w)
    assert count(found, "ResourceApplyKerasMomentum") == 1
    assert not count(found, "DestroyResourceOp")
    found = nodes(tg.LAMB(), w)
    assert count(found, "ResourceApplyAdam") == count(found, "ResourceApplyGradientDescent") == 1
    assert count(found, "DestroyResourceOp") == 1
    assert not count(nodes(tg.LARS(classic_momentum=False), w), "ResourceApplyKerasMomentum")


@pytest.mark.parametrize("graph", [False, True], ids=["eager", "graph"])
@pytest.mark.parametrize("options", [{"use_ema": True}, {"gradient_accumulation_steps": 2}])
def test_averages_and_accumulators_in_place(options, graph, monkeypatch):
    found = run(tg.Adam(0.01, **options), "float32", graph)
    monkeypatch.setattr(OptimizerState, "takes_kernels", False)
    assert_same(found, run(tg.Adam(0.01, **options), "float32", graph))


def test_an_average_is_moved_by_a_kernel():
    w = [tf.Variable(tf.zeros([3])), tf.Variable(tf.zeros([2]))]
    assert count(nodes(tg.Adam(use_ema=True), w), "ResourceApplyGradientDescent") == 2


@pytest.mark.parametrize("make", [lambda: tg.Adam(gradient_accumulation_steps=2), tg.LAMB])
def test_zeros_to_be_added_to_are_not_known_ahead(make):
    """Known ones are kept as constants, and copied in each step."""
    found = nodes(make(), [tf.Variable(tf.zeros([1000]))])
    by_name = {node.name: node for node in found}
    fills = [x for x in found if x.op == "Fill" and x.attr["T"].type == tf.float32.as_datatype_enum]
    assert fills
    for fill in fills:
        value = by_name[fill.input[1].split(":")[0]]
        while value.op == "Neg":
            value = by_name[value.input[0].split(":")[0]]
        assert value.op == "Empty"


def test_rmsprop_has_a_kernel_without_momentum():
    w = [tf.Variable(tf.zeros([3]))]
    found = nodes(tg.RMSprop(), w)
    assert count(found, "ResourceApplyRMSProp") == 1
    assert count(found, "DestroyResourceOp") == 1
    assert not count(nodes(tg.RMSprop(weight_decay=0.1), w), "ResourceApplyRMSProp")


def test_the_norm_of_a_global_clip_is_the_check():
    """No gradient is summed twice; divided it is once, and then too large to be summed at all."""
    w = [tf.Variable(tf.zeros([3])), tf.Variable(tf.zeros([2]))]
    norms, of_large = 2, 2  # the latter where squares overflow, in a branch
    assert count(nodes(tg.Adam(global_clipnorm=1.0), w), "L2Loss") == norms + of_large
    both = 2 * (norms + of_large)
    assert count(nodes(tg.Adam(clipnorm=1.0), w), "L2Loss") == both  # in the check, and to clip


@pytest.mark.parametrize(
    ("make", "made"),
    [
        (lambda: tg.RMSprop(nonfinite="apply"), "Fill"),
        (lambda: tg.Adam(nonfinite="apply", global_clipnorm=1.0), "DivNoNan"),
        (lambda: tg.Adam(nonfinite="apply", loss_scale_factor=3.0), "DivNoNan"),
        (lambda: tg.SGD(nonfinite="apply", use_ema=True), "Mul"),
    ],
    ids=["rmsprop", "clipped", "scaled", "averaged"],
)
def test_large_variables_are_updated_in_turn(make, made, monkeypatch):
    """What is made for one waits until the one before is written, so that it is not in memory."""

    def waiting():
        w = [tf.Variable(tf.zeros(shape)) for shape in ([7, 3], [3, 7], [21, 1])]
        graph = traced(make(), w).get_concrete_function(*map(tf.convert_to_tensor, w)).graph
        large = [
            op for op in graph.get_operations() if op.type == made and op.outputs[0].shape.rank
        ]
        return sum(map(after_a_kernel, large))

    assert waiting() == 0
    monkeypatch.setattr(turns, "LARGE", 21)
    assert waiting() == 2


def test_large_variables_that_share_code_are_updated_in_turn(monkeypatch):
    def waiting():
        w = [tf.Variable(tf.zeros([7, 3])) for _ in range(12)]
        make = tg.LAMB(nonfinite="apply")
        graph = traced(make, w).get_concrete_function(*map(tf.convert_to_tensor, w)).graph
        calls = [op for op in graph.get_operations() if op.type == "StatefulPartitionedCall"]
        handles = [x.op for op in calls for x in op.inputs if x.op.type == "VarHandleOp"]
        waits = ({before.type for before in op.control_inputs} for op in handles)
        return len(calls), sum(not types <= {"VarHandleOp"} for types in waits)

    assert waiting() == (12, 0)
    monkeypatch.setattr(turns, "LARGE", 21)
    assert waiting() == (12, 11)
