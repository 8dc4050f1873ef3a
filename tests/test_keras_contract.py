"""Every private name that the package relies on is still there, is listed, and does what we think.

When a release of Keras drops one, the test that fails names it.
"""

import ast
import inspect
import pkgutil
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf
from packaging.version import Version

import tf_graft
from support import classes
from support.samples import each, gradients, variables, weights
from tf_graft.core import environment, keras_contract, types
from tf_graft.core.keras_contract.names import (
    GRAPH_NAMES,
    LAYER_NAMES,
    MODEL_NAMES,
    MODULE_NAMES,
    OPERATION_NAMES,
    OPTIMIZER_NAMES,
    PROVIDED_NAMES,
    RESOURCE_NAMES,
    STATUS_NAMES,
    STORE_NAMES,
    VARIABLE_NAMES,
)

LISTED = {
    **{**OPTIMIZER_NAMES, **PROVIDED_NAMES, **VARIABLE_NAMES},
    **{
        **LAYER_NAMES,
        **MODEL_NAMES,
        **GRAPH_NAMES,
        **OPERATION_NAMES,
        **RESOURCE_NAMES,
        **STORE_NAMES,
        **STATUS_NAMES,
    },
}
FILES = sorted(Path(keras_contract.__file__).parent.glob("*.py"))
SOURCE = "\n".join(file.read_text("utf-8") for file in FILES if file.name != "names.py")


def stock():
    """A built optimizer of Keras' own, with averages."""
    optimizer = keras.optimizers.Adam(0.1, use_ema=True)
    optimizer.exclude_from_weight_decay(var_names=["bias"])
    model = list(variables(weights()).values())
    optimizer.build(model)
    return optimizer, model


@pytest.mark.parametrize("name", OPTIMIZER_NAMES)
def test_keras_optimizers_have(name):
    optimizer, _ = stock()
    assert hasattr(optimizer, name), f"Keras dropped {name}: {OPTIMIZER_NAMES[name]}"


@pytest.mark.parametrize("name", PROVIDED_NAMES)
def test_keras_looks_for(name):
    """We provide it, Keras reads it: a Keras optimizer has it, and ours too."""
    optimizer, model = stock()
    assert hasattr(optimizer, name), f"Keras dropped {name}: {PROVIDED_NAMES[name]}"
    ours = tf_graft.Adam(0.1, use_ema=True)
    ours.build(model)
    assert len(getattr(ours, name)) == len(model)
    callback = inspect.getsource(keras.callbacks.SwapEMAWeights)
    assert name in callback, f"SwapEMAWeights no longer reads {name}"


@pytest.mark.parametrize("name", VARIABLE_NAMES)
def test_keras_variables_have(name):
    variable = keras.Variable(np.ones(2, "float32"))
    assert hasattr(variable, name), f"Keras dropped {name}: {VARIABLE_NAMES[name]}"


@pytest.mark.parametrize("name", MODEL_NAMES)
def test_keras_models_have(name):
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    assert hasattr(model, name), f"Keras dropped {name}: {MODEL_NAMES[name]}"


@pytest.mark.parametrize("name", LAYER_NAMES)
def test_keras_embeddings_have(name):
    layer = keras.layers.Embedding(3, 2)
    layer.build()
    assert vars(layer)[name] is layer.weights[0], f"Keras dropped {name}: {LAYER_NAMES[name]}"


@pytest.mark.parametrize("name", RESOURCE_NAMES)
def test_resource_variables_have(name):
    variable = tf.Variable([1.0])
    found = hasattr(variable, name) or hasattr(variable.handle, name)
    assert found, f"TensorFlow dropped {name}: {RESOURCE_NAMES[name]}"


@pytest.mark.parametrize("name", STATUS_NAMES)
def test_checkpoints_that_were_read_have(name, tmp_path):
    path = tf.train.Checkpoint(v=tf.Variable(1.0)).write(str(tmp_path / "checkpoint"))
    status = tf.train.Checkpoint(v=tf.Variable(2.0)).read(path)
    assert hasattr(status, name), f"TensorFlow dropped {name}: {STATUS_NAMES[name]}"


def test_variables_are_told_from_tables():
    table = tf.lookup.experimental.MutableHashTable(tf.string, tf.int64, -1)
    assert keras_contract.is_variable(tf.Variable([1.0]).handle)
    assert not keras_contract.is_variable(table.resource_handle)
    assert not keras_contract.is_variable(tf.constant(1.0))


@pytest.mark.parametrize("name", GRAPH_NAMES)
def test_function_graphs_have(name):
    graph = tf.function(lambda: tf.constant(1)).get_concrete_function().graph
    assert hasattr(graph, name), f"TensorFlow dropped {name}: {GRAPH_NAMES[name]}"


@pytest.mark.parametrize("name", OPERATION_NAMES)
def test_operations_have(name):
    graph = tf.function(lambda: tf.constant(1)).get_concrete_function().graph
    found = hasattr(graph.get_operations()[0], name)
    assert found, f"TensorFlow dropped {name}: {OPERATION_NAMES[name]}"


def test_weights_files_name_their_optimizer(tmp_path):
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile(keras.optimizers.RMSprop(name="its_name"))
    authors = []
    model.optimizer.load_own_variables = lambda s: authors.append(keras_contract.author_of(s))
    model.save_weights(tmp_path / "model.weights.h5")
    model.load_weights(tmp_path / "model.weights.h5")
    assert authors == ["its_name"], f"Keras dropped {list(STORE_NAMES)}"
    assert keras_contract.author_of({}) is None


@pytest.mark.parametrize("name", MODULE_NAMES)
def test_modules_have(name):
    since = MODULE_NAMES[name].since
    if since and Version(keras.__version__) < Version(since):
        pytest.skip(f"Keras {since} brought {name}")
    pkgutil.resolve_name(name)  # an error names what is gone


def test_private_modules_are_listed_and_what_is_listed_is_used():
    trees = (classes.parsed(file.read_text("utf-8")) for file in FILES)
    assert set(MODULE_NAMES) == set().union(*map(classes.module_names, trees))


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("from keras.src.a import b", "keras.src.a.b"),
        ("from keras.src import a\na.b.c()", "keras.src.a.b"),
        ("import tensorflow.python.a as a\na.b", "tensorflow.python.a.b"),
        ("from tensorflow.core import a\ngetattr(a, 'b', None)", "tensorflow.core.a.b"),
        ("import tensorflow as tf\ntf.__internal__.a.b", "tensorflow.__internal__.a.b"),
    ],
)
def test_notices_a_name_of_a_private_module(text, name):
    assert classes.module_names(classes.parsed(text)) == {name}


def test_the_reason_is_given_and_what_would_replace_it():
    for name, private in (LISTED | MODULE_NAMES).items():
        assert min(len(private.reason), len(private.instead)) > 10, name


def private_names_used(text):
    """Attributes and methods with a leading underscore that are not made in the text itself."""
    tree = ast.parse(text)
    defined = {
        node.name
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef) and node.name not in LISTED
    }
    used = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    used |= {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
    # names in a tuple or given to `getattr`: attributes looked up by their names
    for node in ast.walk(tree):
        items = node.elts if isinstance(node, ast.Tuple) else []
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "getattr":
            items = node.args
        used |= {item.value for item in items if isinstance(item, ast.Constant)}
    names = {n for n in used - defined if isinstance(n, str)}
    return {n for n in names if n.startswith("_") and not n.startswith("__")}


def own_attributes(text):
    """Private attributes that the text itself sets on `self`, or in the body of a class."""
    nodes = list(ast.walk(ast.parse(text)))
    of_self = {
        node.attr
        for node in nodes
        if isinstance(node, ast.Attribute)
        and isinstance(node.ctx, ast.Store)
        and ast.unparse(node.value) == "self"
    }
    of_classes = {
        target.id
        for node in nodes
        if isinstance(node, ast.ClassDef)
        for statement in node.body
        if isinstance(statement, ast.Assign)
        for target in statement.targets
        if isinstance(target, ast.Name) and not target.id.startswith("__")
    }
    return (of_self | of_classes) - set(LISTED)


def test_every_private_name_is_listed():
    of_modules = {name.rpartition(".")[2] for name in MODULE_NAMES}
    assert private_names_used(SOURCE) - own_attributes(SOURCE) - of_modules <= set(LISTED)


def test_no_attribute_of_ours_is_one_of_keras():
    private = {name for name in own_attributes(SOURCE) if name.startswith("_")}
    for owner in (stock()[0], keras.Variable(np.ones(2, "float32"))):
        assert not [name for name in private if hasattr(owner, name)]


def test_every_listed_name_is_used():
    assert {n for n in LISTED if n not in private_names_used(SOURCE)} == set()


def test_notices_a_name_that_is_not_listed():
    for text in ("o._secret", 'getattr(o, "_secret")', '[getattr(o, n) for n in ("_secret", "b")]'):
        assert private_names_used(f"def f(o):\n    return {text}") == {"_secret"}


# What the names are for.


def test_tensorflow_says_what_xla_compiles():
    found = []
    function = lambda: found.append(keras_contract.in_xla())  # noqa: E731
    function()
    tf.function(function)()
    tf.function(function, jit_compile=True)()
    outer = tf.function(lambda: tf.function(function)(), jit_compile=True)
    outer()
    assert found == [False, False, True, True]


@each()
def test_optimizer_variables_are_its_own(sample):
    """As in Keras, `Optimizer.variables` holds state and no weights."""
    optimizer, model = sample.make(), list(variables(weights()).values())
    optimizer.build(model)
    optimizer.apply(list(gradients(1)[0].values()), model)
    of_model = {id(v) for v in model}
    assert not [v.path for v in optimizer.variables if id(v) in of_model]
    counters = 3  # iteration, skipped_steps, micro_steps
    shared = counters + sample.rates + len(sample.shared)
    assert len(optimizer.variables) == shared + sum(len(sample.roles(v.ndim)) for v in model)


@pytest.mark.parametrize(
    ("protocol", "make"),
    [
        (types.VariableLike, lambda: keras.Variable(1.0)),
        (types.VariableLike, lambda: tf.Variable(1.0)),
        (types.OptimizerLike, lambda: keras.optimizers.Adam(0.1)),
        (types.OptimizerLike, lambda: tf_graft.Adam(0.1)),
    ],
)
def test_protocols_describe(protocol, make):
    """Neither library has types that a type checker could compare with them."""
    members = {*protocol.__annotations__, *vars(protocol)}
    members = {name for name in members if not name.startswith("_")}
    assert len(members) > 4
    assert not {name for name in members if not hasattr(make(), name)}


def test_the_key_is_the_same_for_a_variable_and_what_is_behind_it():
    optimizer, (variable, *_) = stock()
    assert optimizer._var_key(variable) == optimizer._var_key(variable.value)


def test_another_backend_is_refused_in_one_sentence():
    """The check comes before anything that would fail without TensorFlow behind Keras."""
    start = ast.parse(Path(keras_contract.__file__).read_text("utf-8"))
    first = next(node for node in start.body if isinstance(node, ast.ImportFrom))
    assert ast.unparse(first).startswith("from tf_graft.core import environment")
    tree = ast.parse(Path(environment.__file__).read_text("utf-8"))
    guard = next(node for node in tree.body if isinstance(node, ast.If))
    assert "keras.backend.backend() != 'tensorflow'" in ast.unparse(guard.test)
    assert "KERAS_BACKEND=tensorflow" in ast.unparse(guard)
    scope = {"keras": type("K", (), {"backend": type("B", (), {"backend": lambda: "jax"})})}
    with pytest.raises(ImportError, match=r"needs Keras on the TensorFlow backend.*'jax'"):
        exec(compile(ast.Module([guard], []), "guard", "exec"), scope)


@pytest.mark.parametrize(
    ("name", "installed", "says"),
    [
        (
            "TensorFlow",
            "2.18.1",
            "needs TensorFlow 2.19 or later, and TensorFlow 2.18.1 is installed",
        ),
        ("TensorFlow", "1.15.5", "pip install --upgrade tensorflow"),
        ("Keras", "3.9.2", "needs Keras 3.10 or later, and Keras 3.9.2 is installed"),
        ("Keras", "2.15.0", "pip install --upgrade keras"),
    ],
)
def test_an_older_version_is_refused_in_one_sentence(name, installed, says):
    with pytest.raises(ImportError, match=says):
        environment.require(name, installed)


@pytest.mark.parametrize(
    ("name", "installed"),
    [("TensorFlow", "2.19.0"), ("TensorFlow", "2.22.0-rc0"), ("Keras", "3.16.0.dev2026112003")],
)
def test_newer_versions_are_not_refused(name, installed):
    environment.require(name, installed)


def test_the_oldest_versions_are_those_that_are_installed_with():
    requirements = (Path(__file__).parents[1] / "setup.cfg").read_text("utf-8")
    for name, oldest in environment.OLDEST.items():
        assert f"\n    {name.lower()}>={'.'.join(map(str, oldest))},<" in requirements
