"""The rules of the house, kept over the syntax trees: who imports whom, who may touch what, sizes.

Each rule is a function from a file's place and its text to what is wrong with it, and each is shown
to fail on a made-up file.
"""

import ast
import re
from pathlib import Path

import pytest

from tf_graft.core.keras_contract import names

PACKAGE = Path(__file__).parents[1] / "tf_graft"
FILES = sorted(PACKAGE.rglob("*.py"))
TESTS = Path(__file__).parent

# Which parts of the package each part may import. What is not listed is the top: it may all.
ALLOWED = {
    "core": {"core"},
    "optimizers": {"core", "optimizers"},
    "schedules": {"core", "schedules"},
    "scaling": {"core", "scaling"},
    # An optimizer of wrappers uses the rates that report makes of a run.
    "wrappers": {"core", "optimizers", "schedules", "scaling", "report", "wrappers"},
    "dtensor": {"core", "optimizers", "schedules", "scaling", "dtensor"},
    "report": {"core", "optimizers", "schedules", "scaling", "report"},
    "openseq2seq": {"core", "optimizers", "schedules", "scaling", "wrappers", "openseq2seq"},
    "processes": {"core", "processes"},
    "training": {
        *("core", "optimizers", "schedules", "scaling", "wrappers", "dtensor", "report"),
        *("openseq2seq", "processes", "training"),
    },
}
# Algorithms do not import one another, but for these.
SIDEWAYS = {
    ("optimizers/adamw.py", "tf_graft.optimizers.adam"): "AdamW is Adam with a default",
    ("optimizers/lars.py", "tf_graft.optimizers.layerwise"): "what LARS and LAMB share",
    ("optimizers/lamb.py", "tf_graft.optimizers.layerwise"): "what LARS and LAMB share",
    ("wrappers/local_steps.py", "tf_graft.wrappers.center"): "what of AGN is the centre's life",
    ("wrappers/worker_round.py", "tf_graft.wrappers.local_steps"): "what of a round is its steps",
    ("wrappers/agn.py", "tf_graft.wrappers.worker_round"): "what of AGN is a worker's round",
    ("wrappers/agn.py", "tf_graft.wrappers.center"): "what of AGN is the centre's life",
    ("scaling/fixed.py", "tf_graft.scaling.scaler"): "the base of all scalers",
    ("scaling/backoff.py", "tf_graft.scaling.scaler"): "the base of all scalers",
    ("scaling/logmax.py", "tf_graft.scaling.scaler"): "the base of all scalers",
    ("scaling/registry.py", "tf_graft.scaling"): "all scalers, by name",
    ("scaling/mixed_precision.py", "tf_graft.scaling"): "uses a scaler, and the masters' penalties",
}
ALGORITHMS = ("optimizers", "wrappers", "scaling")

CONTRACT = "core/keras_contract/"
YAML = "training/plain_yaml.py"
YAML_READERS = {"yaml", "omegaconf", "ruamel"}

PRIVATE = {
    *names.OPTIMIZER_NAMES,
    *names.PROVIDED_NAMES,
    *names.VARIABLE_NAMES,
}
# Public all the same: of named tuples, whose fields they are kept apart from, and of `os`.
PUBLIC = ("_replace", "_asdict", "_fields", "_exit")
# What stands on Keras' classes; elsewhere `self._name` is an attribute of one's own.
ON_KERAS = ("core", "optimizers", "wrappers")


LINES_OF_A_FILE = 250
LINES_OF_A_FUNCTION = 30


def imports(tree):
    """Every module imported, wherever in the file: `a.b` for `from a import b` too."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "relative imports hide what is imported"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def part_of(module):
    """The part of the package that a module `tf_graft...` belongs to; `tf_graft` for its face."""
    parts = module.split(".")
    if len(parts) == 1 or not (
        (PACKAGE / parts[1]).is_dir()
        or (PACKAGE / f"{parts[1]}.py").exists()
        or parts[1] in ALLOWED
    ):
        return "tf_graft"
    return parts[1]


def wrong_imports(place, text):
    part = place.split("/")[0]
    for module in imports(ast.parse(text)):
        if not re.match(r"tf_graft\b", module):
            continue
        if part in ALLOWED and part_of(module) not in ALLOWED[part]:
            yield f"{place} imports {module}, which stands above it"


def sideways_imports(place, text):
    part, _, name = place.partition("/")
    if part not in ALGORITHMS or name == "__init__.py":
        return
    for module in imports(ast.parse(text)):
        mine = f"tf_graft.{part}"
        known = [key for at, key in SIDEWAYS if at == place]
        allowed = any(module == key or module.startswith(f"{key}.") for key in known)
        if (module == mine or module.startswith(f"{mine}.")) and not allowed:
            yield f"{place} imports {module} from beside it"


def is_own(node, place):
    """`self._name`, where `self` is nothing of Keras'."""
    return ast.unparse(node.value) == "self" and place.split("/")[0] not in ON_KERAS


def private_names(place, text):
    if place.startswith(CONTRACT):
        return
    tree = ast.parse(text)
    for module in imports(tree):
        if re.match(r"keras\.src|tensorflow\.python|keras\._|tensorflow\._", module):
            yield f"{place} imports {module}"
    for node in ast.walk(tree):
        if not isinstance(node, ast.Attribute):
            continue
        dotted = ast.unparse(node)
        if re.match(r"(keras\.src|tf\.python|tensorflow\.python)\b", dotted):
            yield f"{place}:{node.lineno} uses {dotted}"
        if node.attr in PRIVATE and not is_own(node, place):
            yield f"{place}:{node.lineno} touches {node.attr}"


def foreign_private_names(place, text):
    """`thing._name`, where the thing is neither oneself nor a class of the package."""
    if place.startswith(CONTRACT):
        return
    for node in ast.walk(ast.parse(text)):
        private = isinstance(node, ast.Attribute) and re.match(r"_[^_]", node.attr)
        public = private and node.attr in PUBLIC
        own = private and ast.unparse(node.value) in {"self", "cls", "super()"}
        if private and not (public or own):
            yield f"{place}:{node.lineno} touches {ast.unparse(node)}"


def yaml_reads(place, text):
    for module in imports(ast.parse(text)):
        if module.split(".")[0] in YAML_READERS and place != YAML:
            yield f"{place} imports {module}"


def model_writes(place, text):
    """An algorithm proposes: the engine assigns."""
    if place.split("/")[0] not in ALGORITHMS:
        return
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Attribute) and re.match(
            r"(assign(_add|_sub)?|scatter_\w+|batch_scatter_update)$", node.attr
        ):
            yield f"{place}:{node.lineno} uses {node.attr}"


def long_files(place, text):
    count = len(text.splitlines())
    if count > LINES_OF_A_FILE:
        yield f"{place} has {count} lines, {LINES_OF_A_FILE} are allowed"


def long_functions(place, text):
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            first = node.body[1 if ast.get_docstring(node) is not None else 0 :]
            length = node.end_lineno - first[0].lineno + 1 if first else 0
            if length > LINES_OF_A_FUNCTION:
                yield f"{place}:{node.lineno} {node.name} has {length} lines"


RULES = {
    wrong_imports: [
        ("core/a.py", "from tf_graft.optimizers import sgd"),
        ("core/a.py", "def f():\n    import tf_graft"),
        ("core/a.py", "from tf_graft import Adam"),
        ("optimizers/a.py", "import tf_graft.wrappers.larc"),
        ("schedules/a.py", "from tf_graft import optimizers"),
        ("schedules/a.py", "from tf_graft.training.config import load"),
        ("training/a.py", "from tf_graft import cli"),
    ],
    sideways_imports: [
        ("optimizers/a.py", "from tf_graft.optimizers.sgd import SGD"),
        ("optimizers/a.py", "from tf_graft.optimizers import sgd"),
        ("optimizers/adam.py", "from tf_graft.optimizers.adamw import AdamW"),
        ("optimizers/adamw.py", "from tf_graft.optimizers.sgd import SGD"),
        ("wrappers/a.py", "import tf_graft.wrappers.larc"),
    ],
    private_names: [
        ("core/a.py", "from keras.src.optimizers import base_optimizer"),
        ("core/a.py", "import tensorflow as tf\nx = tf.python.ops"),
        ("core/a.py", "from tensorflow.python.ops import control_flow_util"),
        ("core/a.py", "import keras\nkeras.src.backend"),
        ("optimizers/a.py", "def f(v):\n    return v._value"),
        ("core/a.py", "def f(self):\n    return self._trainable_variables"),
        ("training/a.py", "def f(o):\n    o._iterations.assign(0)"),
    ],
    foreign_private_names: [
        ("training/a.py", "def f(o):\n    return o._strategy"),
        ("optimizers/a.py", "def f(self):\n    return self.child._parameters"),
    ],
    yaml_reads: [
        ("training/run.py", "import yaml"),
        ("cli.py", "def f():\n    from ruamel.yaml import YAML"),
    ],
    model_writes: [
        ("optimizers/a.py", "def f(w, d):\n    w.assign_add(d)"),
        ("wrappers/a.py", "def f(w, d):\n    w.scatter_update(d)"),
    ],
    long_files: [("core/a.py", "x = 1\n" * 251)],
    long_functions: [
        ("core/a.py", "def f():\n" + "    x = 1\n" * 31),
        ("core/a.py", "class A:\n    def f(self):\n" + "        x = 1\n" * 31),
    ],
}
# What a rule forgives, with the reason.
EXCEPTIONS = {
    "schedules/lr_policies.py has": "seven functions of one interface, mostly docstrings",
}


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_rule_is_kept(rule):
    assert len(FILES) > 20
    wrong = [
        message
        for file in FILES
        for message in rule(file.relative_to(PACKAGE).as_posix(), file.read_text("utf-8"))
        if not any(message.startswith(known) for known in EXCEPTIONS)
    ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    ("rule", "place", "text"),
    [(rule, place, text) for rule, bad in RULES.items() for place, text in bad],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_rule_notices(rule, place, text):
    assert list(rule(place, text))


def shared_by_a_test(place, text):
    """What tests share stands in `support`; a program in a string counts as well."""
    tree = ast.parse(text)
    strings = [n.value for n in ast.walk(tree) if isinstance(n, ast.Constant)]
    told = re.findall(r"\b(?:import|from) (\w+)", "\n".join(s for s in strings if type(s) is str))
    for module in [*imports(tree), *told]:
        if re.match(r"(tests\.)?(test_|conftest\b)", module):
            yield f"{place} imports {module}"


def test_no_test_is_imported():
    files = sorted(TESTS.rglob("*.py"))
    assert len(files) > 100
    wrong = [
        message
        for file in files
        if file != Path(__file__)
        for message in shared_by_a_test(file.relative_to(TESTS).as_posix(), file.read_text("utf-8"))
    ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    "text",
    [
        "import test_saving as saving",
        "from test_saving import net",
        "def f():\n    import tests.test_saving",
        "import conftest",
        "PROGRAM = 'import sys; import test_saving'",
    ],
)
def test_an_imported_test_is_noticed(text):
    assert list(shared_by_a_test("test_a.py", text))


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_rule_lets_good_files_pass(rule):
    docstring = '    """' + "line\n" * 40 + '    """\n'
    for place, text in (
        ("core/a.py", "import keras\nfrom tf_graft.core import rows\n"),
        ("optimizers/adamw.py", "from tf_graft.optimizers.adam import Adam\n"),
        ("training/plain_yaml.py", "from ruamel.yaml import YAML\n"),
        (f"{CONTRACT}a.py", "from tensorflow.python.ops import control_flow_util\n"),
        ("core/b.py", "def f():\n" + docstring + "    x = 1\n" * 30),
    ):
        assert not list(rule(place, text))


def test_exceptions_are_still_needed():
    for (place, module), reason in SIDEWAYS.items():
        assert reason
        text = (PACKAGE / place).read_text("utf-8")
        assert any(name.startswith(module) for name in imports(ast.parse(text)))
