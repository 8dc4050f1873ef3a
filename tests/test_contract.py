"""What someone who writes an optimizer is told of a mistake, before the first step.

Each case is one class with one mistake; `Good` has none.
"""

import ast
import inspect
import pathlib
import re

import keras
import numpy as np
import pytest
import tensorflow as tf

import tf_graft as tg
from support import replicas, samples, written
from tf_graft.compose.of_keras import Wrapped
from tf_graft.core import contract
from tf_graft.core.arguments import signatures

PACKAGE = pathlib.Path(tg.__file__).parent
SHAPES = {"table": (4, 3), "kernel": (4, 3), "bias": (3,), "scale": ()}


class Good(tg.Optimizer):
    def __init__(self, learning_rate=0.1, beta=0.9, **common):
        super().__init__(learning_rate, **common)
        self.beta = beta

    def slots(self):
        return {"momentum": tg.Slot(), "rows": tg.Slot(shape="rows"), "seen": tg.Slot(shape=(2,))}

    def shared_slots(self):
        return {"total": tg.Slot(shape="scalar")}

    def advance(self, s, rates, t):
        return {"total": s["total"] + 1}

    def step(self, g, w, s, lr, t):
        m = self.beta * s["momentum"] + g
        return -lr * m, {"momentum": m, "rows": s["rows"], "seen": s["seen"]}


def new(slots):
    """The new slots of `Good` with something changed."""
    return lambda self, g, w, s, lr, t: (-lr * g, {r: s[r] for r in self.slots()} | slots(s))


def without(role):
    return lambda self, g, w, s, lr, t: (-lr * g, {r: s[r] for r in self.slots() if r != role})


def no_common(self, learning_rate=0.1):
    tg.Optimizer.__init__(self, learning_rate)


def no_rate(self, beta=0.9, **common):
    tg.Optimizer.__init__(self, 0.1, **common)


def unnamed(self, learning_rate=0.1, *rest, **common):
    tg.Optimizer.__init__(self, learning_rate, **common)


def keeps_no_beta(self, learning_rate=0.1, betta=0.9, **common):
    tg.Optimizer.__init__(self, learning_rate, **common)
    self.beta = betta


def sets_attribute(self, g, w, s, lr, t):
    self.last = g
    return Good.step(self, g, w, s, lr, t)


WEIGHT = []  # a variable that a step reads


def reads_variable(self, g, w, s, lr, t):
    if not WEIGHT:
        with tf.init_scope():
            WEIGHT.append(tf.Variable(1.0))
    return Good.step(self, g * WEIGHT[0], w, s, lr, t)


def branches(self, g, w, s, lr, t):
    return Good.step(self, g if t > 1 else 2 * g, w, s, lr, t)


AT_CREATION = {
    "no_common": ({"__init__": no_common}, r"Mine\.__init__: it does not take \*\*common; take"),
    "no_rate": ({"__init__": no_rate}, r"Mine\.__init__: it does not take learning_rate"),
    "unnamed": ({"__init__": unnamed}, r"Mine\.__init__: rest cannot be given by name"),
    "update_step": ({"update_step": lambda *_: None}, r"Mine\.update_step: .*tf_graft\.wrap\.$"),
    "slots": ({"slots": {"momentum": tg.Slot()}}, r"Mine\.slots: it must be a method"),
    "step": ({"step": None}, r"Mine\.step: it must be a method"),
}
AT_BUILD = {
    "beta": ({"__init__": keeps_no_beta}, r"Mine\.__init__: its argument 'betta' is not kept.*"),
    "list": ({"slots": lambda _: ["momentum"]}, r"Mine\.slots: it returns \['momentum'\], and"),
    "zeros": ({"slots": lambda _: {"momentum": 0.0}}, r"Mine\.slots: 'momentum' is 0\.0, and"),
    "fill": (
        {"slots": lambda _: {"m": tg.Slot(fill=lambda v: tf.zeros(5))}, "step": new(lambda s: {})},
        r"'mine/table/m': its fill returns a tensor of shape \(5,\), and the slot has the shape",
    ),
    "text": ({"slots": lambda _: {"m": tg.Slot(shape="cols")}}, r"slots: 'm' has shape='cols'; a"),
    "dtype": ({"slots": lambda _: {"m": tg.Slot(dtype="real")}}, r"slots: 'm' has dtype='real'"),
    "size": (
        {"slots": lambda _: {"m": tg.Slot(shape=lambda shape: len(shape))}},
        r"slots: 'm' has the shape 2 for 'table', whose shape is \(4, 3\); its function must",
    ),
    "shared": (
        {"shared_slots": lambda _: {"total": tg.Slot(shape=lambda shape: shape)}},
        r"shared_slots: 'total' has shape=<function .*for a slot of a variable, a function",
    ),
    "tensor": (
        {"step": lambda self, g, w, s, lr, t: -lr * g},
        r"Mine\.step: it returns .*, and must return a pair",
    ),
    "unknown": (
        {"step": new(lambda s: {"velocity": s["momentum"]})},
        r"Mine\.step: it returns the slot 'velocity', which is not declared for 'table'",
    ),
    "forgotten": (
        {"step": without("rows")},
        r"no new value of the slot 'rows'; return s\['rows'\] to leave",
    ),
    "slot_shape": (
        {"step": new(lambda s: {"rows": tf.reduce_sum(s["rows"])})},
        r"the new slot 'rows' is float32 of shape \(\) for 'table', .* float32 of shape \(4,\)\.",
    ),
    "slot_dtype": (
        {"step": new(lambda s: {"seen": tf.cast(s["seen"], "int32")})},
        r"the new slot 'seen' is int32 of shape \(2,\) for .* must be float32 of shape \(2,\)\.",
    ),
    "step_shape": (
        {"step": lambda self, g, w, s, lr, t: (lr, Good.step(self, g, w, s, lr, t)[1])},
        r"Mine\.step: the step is float32 of shape \(\) for 'table', of shape \(4, 3\), and must",
    ),
    "step_dtype": (
        {"step": lambda self, *a: (tf.cast(a[1], "float64"), Good.step(self, *a)[1])},
        r"Mine\.step: the step is float64 of shape \(4, 3\)",
    ),
    "nothing": (
        {"step": lambda self, g, w, s, lr, t: (None, Good.step(self, g, w, s, lr, t)[1])},
        r"Mine\.step: the step is None for 'table', of shape \(4, 3\), and must be a tensor\.",
    ),
    "arguments": (
        {"step": lambda self, g, w, s: (g, s)},
        r"takes 4 positional arguments but 6 were given\nRaised by Mine\.step, traced for 'table'",
    ),
    "branches": ({"step": branches}, r"Mine\.step: it cannot be traced .* tf\.where, not if\."),
    "attribute": ({"step": sets_attribute}, r"Mine\.step: it sets self\.last, which is neither"),
    "variable": ({"step": reads_variable}, r"Mine\.step: it reads a variable; declare it in slots"),
    **{
        role: ({"slots": lambda _, role=role: {role: tg.Slot()}}, f"the role '{role}' is in use by")
        for role in (
            *("average", "average_step", "master", "gradient_accumulator", "accumulated_rows"),
        )
    },
}
# What can be so for some variables only.
OF_ONE_SHAPE = {
    "scale": lambda self, g, w, s, lr, t: (
        (-lr * g if w.shape.rank else w[None]),
        Good.step(self, g, w, s, lr, t)[1],
    ),
    "bias": lambda self, g, w, s, lr, t: (
        (-lr * g if w.shape != [3] else lr),
        Good.step(self, g, w, s, lr, t)[1],
    ),
}


def mine(body):
    return type("Mine", (Good,), body)


def variables(dtype="float32"):
    return [tf.Variable(tf.ones(shape, dtype), name=name) for name, shape in SHAPES.items()]


@pytest.mark.parametrize("case", AT_CREATION)
def test_refused_when_the_class_is_made(case):
    body, message = AT_CREATION[case]
    with pytest.raises(TypeError, match=message):
        mine(body)


@pytest.mark.parametrize("case", AT_BUILD)
def test_refused_when_it_is_built(case):
    body, message = AT_BUILD[case]
    optimizer = mine(body)()
    with pytest.raises((TypeError, ValueError), match=message):
        optimizer.build(variables())
    assert not optimizer.built


@pytest.mark.parametrize("name", OF_ONE_SHAPE)
def test_each_shape_is_traced(name):
    optimizer = mine({"step": OF_ONE_SHAPE[name]})()
    with pytest.raises(ValueError, match=f"Mine.step: .* for '{name}', of shape"):
        optimizer.build(variables())


def test_the_common_arguments_may_go_by_another_name():
    class Mine(Good):
        def __init__(self, learning_rate=0.1, **options):
            super().__init__(learning_rate, **options)

    config = Mine(0.5, clipnorm=2.0).get_config()
    assert Mine.from_config(config).get_config() == config
    assert config["clipnorm"] == 2.0


def test_a_child_is_checked():
    child = mine({"step": without("rows")})(0.1)
    with pytest.raises(ValueError, match=r"^Mine\.step: it returns no new value of the slot"):
        tg.AdaGraft(child, "sgd").build(variables())


def test_written_as_in_keras():
    def build(self, variables):
        self.momentums = [self.add_variable_from_reference(v, "momentum") for v in variables]

    with pytest.raises(TypeError, match=r"^Mine\.build: .* to tf_graft\.wrap\.$"):
        type("Mine", (tg.Optimizer,), {"build": build})


def test_no_step():
    with pytest.raises(TypeError, match=r"^Mine: it has no step; write def step"):
        type("Mine", (tg.Optimizer,), {})().build(variables())


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
@pytest.mark.parametrize(
    "options", [{}, {"use_ema": True, "gradient_accumulation_steps": 2}], ids=str
)
def test_a_good_one_is_built_and_steps(dtype, options):
    optimizer, model = Good(**options), variables(dtype)
    for _ in range(2):
        optimizer.apply([tf.ones_like(v) for v in model], model)
    assert all(np.all(v.numpy() < 1) for v in model)


@pytest.mark.slow
def test_within_a_function_and_under_a_strategy():
    with replicas.mirrored().scope():
        optimizer, model = Good(), variables()

    @tf.function
    def step():
        tf.distribute.get_strategy().run(
            lambda: optimizer.apply([tf.ones_like(v) for v in model], model)
        )

    with model[0].distribute_strategy.scope():
        step()
    assert int(optimizer.iterations) == 1


@samples.each()
def test_ours_keep_it(sample):
    """They are not traced when users build them, so here each is."""
    optimizer = sample.make()
    model = {name: tf.Variable(tf.ones(shape), name=name) for name, shape in SHAPES.items()}
    optimizer.rule.introduce(model, (), ())
    contract.check_fully(optimizer, model)
    for child in getattr(optimizer, "children", dict)().values():
        contract.check_fully(child, model)


# Slots shaped by a function of the variable's shape.


def of_matrix(learning_rate):
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2, name="dense")])
    model.compile(written.Factored(learning_rate, name="optimizer"), "mse")
    return model


def test_shapes_and_first_values():
    optimizer = written.Factored(0.1, name="optimizer")
    model = variables()
    optimizer.build(model)
    found = {v.path.removeprefix("optimizer/"): v for v in optimizer.variables}
    shapes = {"by_row": (4,), "by_column": (3,), "products": (4, 4)}
    assert {role: found[f"kernel/{role}"].shape for role in shapes} == shapes
    np.testing.assert_array_equal(found["kernel/products"], np.eye(4))
    g = np.float32([[1, 2, 3], [0, 0, 0], [4, 0, 0], [0, 0, 6]])
    optimizer.apply([tf.constant(g)], [model[1]])
    np.testing.assert_allclose(found["kernel/by_row"], (g**2).mean(1))
    np.testing.assert_allclose(found["kernel/by_column"], (g**2).mean(0))
    np.testing.assert_allclose(found["kernel/products"], np.eye(4) + (g**2).mean(1)[:, None])


@pytest.mark.slow
@pytest.mark.parametrize("way", ["keras", "checkpoint"])
def test_it_goes_on_from_a_file(way, tmp_path):
    x, y = np.float32([[1, 2, 3], [3, 1, 0]]), np.float32([[1, 0], [0, 2]])
    straight, first, second = (of_matrix(0.1) for _ in range(3))
    for model in (first, second):
        model.set_weights(straight.get_weights())
    straight.fit(x, y, epochs=4, verbose=0)
    first.fit(x, y, epochs=2, verbose=0)
    if way == "keras":
        first.save(tmp_path / "model.keras")
        with keras.saving.custom_object_scope({"Factored": written.Factored}):
            second = keras.models.load_model(tmp_path / "model.keras")
    else:
        kept = tf.train.Checkpoint(model=first, optimizer=first.optimizer)
        path = kept.save(str(tmp_path / "checkpoint"))
        second.optimizer.build(second.trainable_variables)
        tf.train.Checkpoint(model=second, optimizer=second.optimizer).restore(
            path
        ).assert_consumed()
    second.fit(x, y, epochs=2, verbose=0)
    for a, b in zip(straight.get_weights(), second.get_weights(), strict=True):
        np.testing.assert_array_equal(a, b)


def test_rows_of_a_shaped_slot():
    """Rows of what begins with the variable's rows, all of the rest."""
    seen = {}

    class Mine(tg.Optimizer):
        def slots(self):
            twice = tg.Slot(shape=lambda shape: (shape[0], 2))
            return {"twice": twice, "columns": tg.Slot(shape=lambda shape: shape[1:])}

        def step(self, g, w, s, lr, t):
            seen.update({role: tuple(value.shape) for role, value in s.items()})
            return -lr * g, s

    table = tf.Variable(tf.ones((4, 3)))
    gradient = tf.IndexedSlices(tf.ones((3, 3)), tf.constant([3, 1, 3]))
    Mine(0.5).apply([gradient], [table])
    assert seen == {"twice": (2, 2), "columns": (3,)}
    np.testing.assert_array_equal(table.numpy()[:, 0], [1, 0.5, 1, 0])


def test_columns_are_not_mistaken_for_rows():
    class Mine(written.Factored):
        def whole(self, path):
            return path != "square"

    Mine(0.1).build(variables())
    with pytest.raises(ValueError, match=r"^Mine\.slots: 'by_column' is of the columns of '"):
        Mine(0.1).build([tf.Variable(tf.ones((3, 3)), name="square")])


# What is public.

OTHERS_CAN = ("wrappers/larc", "grafting/adagraft", "grafting/layerwise_rates")
ROOMS = [path.parent.name for path in (PACKAGE / "core").glob("*/__init__.py")]


@pytest.mark.parametrize("name", OTHERS_CAN)
def test_wrappers_use_of_core_what_is_public(name):
    """Optimizers import nothing of it: test_layers.py."""
    tree = ast.parse((PACKAGE / f"{name}.py").read_text("utf-8"))
    imported = [
        (node.module, alias.name)
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module.startswith("tf_graft.core")
        for alias in node.names
    ]
    rooms = {"tf_graft.core", *(f"tf_graft.core.{room}" for room in ROOMS)}
    modules = {name for module, name in imported if module in rooms}
    used = {name for module, name in imported if module not in rooms}
    used |= {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) in modules
    }
    assert len(used) > 3
    assert used <= set(tg.algorithm.__all__)


# Names.


@pytest.mark.slow
@pytest.mark.usefixtures("names_forgotten")
def test_registered_it_is_found_saved_and_loaded(tmp_path):
    cls = tg.register(type("AdaTest", (Good,), {}))
    assert type(tg.get("ada_test")) is cls
    assert "ada_test" in tg.list_optimizers()
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile(cls(0.5, beta=0.25), "mse")
    model.fit(tf.ones((2, 2)), tf.ones((2, 1)), verbose=0)
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras").optimizer
    assert (type(loaded), loaded.beta, int(loaded.iterations)) == (cls, 0.25, 1)
    again = tg.register(type("AdaTest", (Good,), {}))
    assert type(tg.get("ada_test")) is again


@pytest.mark.usefixtures("names_forgotten")
@pytest.mark.parametrize("name", ["Adam", "ADAM", "Ada_Graft"])
def test_a_name_that_is_taken(name):
    with pytest.raises(ValueError, match=r"already has that name; rename the class"):
        tg.register(type(name, (Good,), {}))
    assert tg.get("adam").__class__ is tg.Adam


@pytest.mark.parametrize(
    "given", [Good(), Good.step, dict, "adam"], ids=["object", "function", "another class", "name"]
)
def test_what_is_no_optimizer_class(given):
    with pytest.raises(TypeError, match=r"^register\(.*\): it must be a class derived from"):
        tg.register(given)


def test_not_registered():
    config = tg.serialize(Good(0.5))
    with pytest.raises(
        ValueError, match=r"no optimizer class 'Good'; put @tf_graft\.register above"
    ):
        tg.deserialize(config)
    with keras.saving.custom_object_scope({"Good": Good}):
        assert tg.deserialize(config).get_config() == Good(0.5).get_config()
    with pytest.raises(ValueError, match=r"no optimizer class 'Good'"):
        tg.deserialize(tg.serialize(tg.LARC(Good(0.5))))


# Signatures.


@samples.each(samples.of_each_class())
def test_signatures_show_every_argument(sample):
    parameters = inspect.signature(sample.cls).parameters
    assert not any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    assert {"learning_rate", *samples.COMMON_NAMES} <= parameters.keys()
    for name, parameter in parameters.items():
        if name in samples.COMMON_NAMES and name not in ("name", *sample.kwargs):
            usual = tg.SGD() if parameter.kind is parameter.KEYWORD_ONLY else None
            if usual is not None and hasattr(usual, name) and not callable(getattr(usual, name)):
                assert parameter.default == getattr(usual, name), name
    listed = inspect.getdoc(sample.cls).partition("Args:\n")[2].partition("\n\n")[0]
    assert re.findall(r"^    (\w+): ", listed, re.M) == list(parameters)
    said = repr(sample.make(learning_rate=0.375))
    called = "wrap" if sample.cls is Wrapped else sample.cls.__name__
    assert re.match(rf"{called}\(.*learning_rate=0\.375.*\)$", said)
    assert "object at" not in said


def test_a_subclass_shows_its_own_and_the_common():
    names = ["learning_rate", "beta", *samples.COMMON_NAMES]
    assert list(inspect.signature(Good).parameters) == names
    assert list(inspect.signature(tg.Optimizer).parameters) == ["learning_rate", *names[2:]]


def test_every_common_argument_is_documented():
    assert [a.name for a in signatures.common_arguments()] == list(samples.COMMON_NAMES)
    assert all(a.text for a in signatures.common_arguments())


@pytest.mark.parametrize("parent", [tg.Adam, tg.SGD, tg.LAMB, tg.RMSprop])
@pytest.mark.parametrize("traced", [False, True])
def test_a_step_of_ones_own_is_not_passed_by_for_an_inherited_kernel(parent, traced):
    class Still(parent):
        def step(self, g, w, s, lr, t, **traits):
            step, slots = super().step(g, w, s, lr, t, **traits)
            return 0 * step, slots

    w = tf.Variable([1.0, 2.0])
    optimizer = Still(0.1)
    optimizer.build([w])
    apply = tf.function(optimizer.apply) if traced else optimizer.apply
    apply([tf.constant([1.0, 1.0])], [w])
    assert w.numpy().tolist() == [1.0, 2.0]
