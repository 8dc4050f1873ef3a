"""The rules of the house, kept over the syntax trees: who imports whom, who may touch what, sizes.

Each rule is a function from a file's place and its text to what is wrong with it, and each is shown
to fail on a made-up file.
"""

import ast
import graphlib
import re
import tomllib
from pathlib import Path

import pytest

from support import classes
from tf_graft.core.keras_contract import names

PACKAGE = classes.PACKAGE
FILES = sorted(PACKAGE.rglob("*.py"))
TESTS = Path(__file__).parent

# Which parts of the package each part may import. What is not listed is the top: it may all.
ALLOWED = {
    "core": {"core"},
    "compose": {"core", "compose"},
    "matrices": {"core", "compose", "matrices"},
    "algorithm.py": {"core", "compose", "matrices"},
    "fit": {"averages", "core", "fit"},
    "vocabulary": {"core", "vocabulary"},
    "listing.py": {"compose", "core", "matrices"},
    # What an optimizer here uses, an optimizer elsewhere can.
    "optimizers": {"algorithm", "optimizers"},
    "schedules": {"core", "schedules"},
    "scaling": {"core", "compose", "scaling"},
    "wrappers": {"compose", "core", "wrappers"},
    "monitor": {"core", "monitor"},
    "grafting": {"compose", "core", "monitor", "grafting"},
    "report.py": {"core", "grafting"},
    "agn": {"algorithm", "compose", "core", "optimizers", "scaling", "agn"},
    "dtensor": {"core", "compose", "optimizers", "schedules", "scaling", "dtensor"},
    "openseq2seq": {
        *("compose", "core", "optimizers", "schedules", "scaling", "wrappers", "openseq2seq"),
    },
    "processes": {"core", "fit", "processes"},
    "tf_keras_models": {"compose", "core", "matrices", "tf_keras_models"},
    "testing": {"agn", "core", "grafting", "scaling", "wrappers", "dtensor", "testing"},
    "training": {
        *("core", "optimizers", "schedules", "scaling", "wrappers", "dtensor", "grafting"),
        *("averages", "compose", "fit", "monitor", "openseq2seq", "report"),
        *("agn", "matrices", "processes", "training", "vocabulary"),
    },
    "study": {"core", "processes", "study", "training"},
}
# The rooms of `core`, from the ground up: each may import those below it, and itself. The modules
# that stand in no room are the ground, which imports nothing above it, or the top.
ROOMS = ("tensors", "places", "arguments", "state", "pipeline", "files")
GROUND = ("checks", "environment", "errors", "keras_contract", "media", "nesting", "patterns")
GROUND += ("spelling", "types")
# Algorithms do not import one another, but for these.
SIDEWAYS = {
    ("optimizers/adamw.py", "tf_graft.optimizers.adam"): "AdamW is Adam with a default",
    ("optimizers/lars.py", "tf_graft.optimizers.layerwise"): "what LARS and LAMB share",
    ("optimizers/lamb.py", "tf_graft.optimizers.layerwise"): "what LARS and LAMB share",
    **{
        (f"optimizers/{name}.py", "tf_graft.optimizers.kernels"): "what kernels of Adam share"
        for name in ("adam", "lamb", "nadam", "nadamw", "radam", "ademamix")
    },
    ("optimizers/lars.py", "tf_graft.optimizers.kernels"): "what SGD's and LARS' kernels share",
    ("optimizers/sgd.py", "tf_graft.optimizers.kernels"): "what SGD's and LARS' kernels share",
    ("optimizers/lion.py", "tf_graft.optimizers.kernels"): "likewise",
    ("optimizers/schedule_free.py", "tf_graft.optimizers.kernels"): "likewise",
    ("optimizers/muon.py", "tf_graft.optimizers.newton_schulz"): "the matrices' own arithmetic",
    ("optimizers/normuon.py", "tf_graft.optimizers.newton_schulz"): "likewise",
    ("optimizers/normuon.py", "tf_graft.optimizers.muon"): "NorMuon is Muon, normalized",
    ("optimizers/kl_shampoo.py", "tf_graft.optimizers.shampoo"): "Shampoo with other moments",
    ("optimizers/kl_soap.py", "tf_graft.optimizers.soap"): "SOAP with other moments",
    ("optimizers/soap_muon.py", "tf_graft.optimizers.soap"): "SOAPMuon is SOAP, orthogonal",
    ("optimizers/soap_muon.py", "tf_graft.optimizers.newton_schulz"): "as in Muon",
    **{
        (f"optimizers/{name}.py", f"tf_graft.optimizers.{beside}"): "what Shampoo and SOAP share"
        for name, beside in (
            *(("shampoo", "roots"), ("shampoo", "factors"), ("shampoo", "preconditioned")),
            *(("soap", "roots"), ("soap", "factors"), ("soap", "preconditioned")),
            *(("kl_shampoo", "roots"), ("kl_shampoo", "factors")),
            *(("kl_soap", "roots"), ("kl_soap", "factors")),
            *(("preconditioned", "jacobi"), ("preconditioned", "roots")),
            *(("preconditioned", "factors"), ("preconditioned", "turns"), ("shampoo", "turns")),
        )
    },
    ("scaling/fixed.py", "tf_graft.scaling.scaler"): "the base of all scalers",
    ("scaling/backoff.py", "tf_graft.scaling.scaler"): "the base of all scalers",
    ("scaling/logmax.py", "tf_graft.scaling.scaler"): "the base of all scalers",
    ("scaling/registry.py", "tf_graft.scaling"): "all scalers, by name",
    ("scaling/loss_scaling.py", "tf_graft.scaling"): "uses a scaler, and the masters' penalties",
    ("scaling/mixed_precision.py", "tf_graft.scaling"): "puts a scaler into the pipeline",
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
LIBRARIES = ("keras", "tf", "tensorflow")
# What of them may change with any version.
WITHOUT_PROMISE = ("src", "python", "__internal__")
# The methods by which variables are written, and the operations on their handles.
WRITES = r"(assign(_add|_sub)?|scatter_\w+|batch_scatter_update)$"
RAW_WRITES = r"(\w*Assign\w*|Resource\w+)$"
# Who else than `core/state/write.py` writes variables.
WRITERS = {
    "core/state/write.py": "it is the one that does",
    "core/places/mesh_storage.py": "defines assignment for a variable on a mesh",
    "compose/stand_in.py": "defines assignment for what is no variable",
    "core/keras_contract/on_stand_ins.py": "assigns to stand-ins",
    "core/keras_contract/checkpoints.py": "puts a model back when its file is refused",
    "core/files/former_file.py": "replaces `assign` while Keras loads a file, and writes nothing",
    "agn/resident.py": "a worker's own memory, which is no tf.Variable",
    "optimizers/kernels.py": "what the kernels of several optimizers share",
    "core/tensors/scratch_variables.py": "zeros that live for one step, which are no tf.Variable",
    "averages.py": "sets a model's weights and statistics, and puts back the others",
    "training/click_models.py": "a layer counts the items that it has seen, as a metric would",
    "training/loop.py": "puts back the metrics of a resumed epoch, and counts its own batches",
    "training/replica_values.py": "restores what each replica had",
    "training/schedule_plot.py": "steps an optimizer that trains nothing",
}


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
    for module in imports(classes.parsed(text)):
        if not re.match(r"tf_graft\b", module):
            continue
        if part in ALLOWED and part_of(module) not in ALLOWED[part]:
            yield f"{place} imports {module}, which stands above it"


def floor_of(place):
    """How high a module of `core` stands: the ground is 0, the top above all rooms."""
    name = place.split("/")[1].removesuffix(".py")
    if name in ROOMS:
        return 1 + ROOMS.index(name)
    return 0 if name in GROUND else 1 + len(ROOMS)


def imports_from_above(place, text):
    """Within `core`: no room imports one that stands above it."""
    if not place.startswith("core/"):
        return
    for module in imports(classes.parsed(text)):
        parts = module.split(".")
        of_core = parts[:2] == ["tf_graft", "core"] and len(parts) > 2
        if of_core and floor_of("/".join(parts[1:])) > floor_of(place):
            yield f"{place} imports {module}, which stands above it"


def sideways_imports(place, text):
    part, _, name = place.partition("/")
    if part not in ALGORITHMS or name == "__init__.py":
        return
    for module in imports(classes.parsed(text)):
        mine = f"tf_graft.{part}"
        known = [key for at, key in SIDEWAYS if at == place]
        allowed = any(module == key or module.startswith(f"{key}.") for key in known)
        if (module == mine or module.startswith(f"{mine}.")) and not allowed:
            yield f"{place} imports {module} from beside it"


def own_attributes(place, tree):
    """`self._name` in classes that do not stand on Keras'."""
    trees = {**classes.trees(), place: tree}
    for cls in classes.classes_of(tree).values():
        if not classes.of_keras(trees, place, cls):
            yield from (node for node, _ in classes.private_uses(cls))


def private_names(place, text):
    if place.startswith(CONTRACT):
        return
    tree = classes.parsed(text)
    for module in imports(tree):
        if re.match(classes.PRIVATE_MODULES, module):
            yield f"{place} imports {module}"
    own = set(own_attributes(place, tree))
    for node in ast.walk(tree):
        if not isinstance(node, ast.Attribute):
            continue
        if node.attr in WITHOUT_PROMISE and ast.unparse(node.value) in LIBRARIES:
            yield f"{place}:{node.lineno} uses {ast.unparse(node)}"
        if node.attr in PRIVATE and node not in own:
            yield f"{place}:{node.lineno} touches {node.attr}"


def foreign_private_names(place, text):
    """`thing._name`, where the thing is not oneself, and `from module import _name`."""
    if place.startswith(CONTRACT):
        return
    tree = classes.parsed(text)
    for module in imports(tree):
        if any(classes.is_private(part) for part in module.split(".")):
            yield f"{place} imports {module}"
    for node, thing, name in classes.touched(tree):
        if classes.is_private(name) and name not in PUBLIC and not classes.is_own(thing):
            yield f"{place}:{node.lineno} touches {name} of {ast.unparse(thing)}"


def inherited_private_names(place, text):
    """`self._name`, where a class that the class inherits from another file defines the name."""
    tree = classes.parsed(text)
    trees = {**classes.trees(), place: tree}
    for cls in classes.classes_of(tree).values():
        owners = {
            name: f"{node.name} in {at}"
            for at, node in classes.ancestors(trees, place, cls)
            if node is not None and at != place
            for name in classes.private_definitions(node)
        }
        for node, name in classes.private_uses(cls):
            if name in owners and name not in PUBLIC:
                yield f"{place}:{node.lineno} touches {name} of {owners[name]}"


def yaml_reads(place, text):
    for module in imports(classes.parsed(text)):
        if module.split(".")[0] in YAML_READERS and place != YAML:
            yield f"{place} imports {module}"


def writes(place, text):
    """An algorithm proposes, the engine decides, and one module writes variables."""
    if place not in WRITERS:
        yield from (f"{place}:{line} uses {what}" for line, what in written(place, text))


def written(place, text):
    """The line and the text of what writes a variable; an optimizer's `kernel` may."""
    tree = classes.parsed(text)
    modules = {name for name, full in classes.imported(tree).items() if "tf_graft" in full}
    kernels = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef) and node.name.strip("_") == "kernel"
    ]
    allowed = place.startswith("optimizers/")
    in_kernels = {node for f in kernels if allowed for node in ast.walk(f)}
    for node in ast.walk(tree):
        if not isinstance(node, ast.Attribute):
            continue
        method = re.match(WRITES, node.attr) and ast.unparse(node.value) not in modules
        if method or (re.match(RAW_WRITES, node.attr) and node not in in_kernels):
            yield node.lineno, ast.unparse(node)


def long_functions(place, text):
    for node in ast.walk(classes.parsed(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            first = node.body[1 if ast.get_docstring(node) is not None else 0 :]
            length = node.end_lineno - first[0].lineno + 1 if first else 0
            if length > LINES_OF_A_FUNCTION:
                yield f"{place}:{node.lineno} {node.name} has {length} lines"


A, USE = "class A", "\n    def f(self):\n        return self._named()"
RULES = {
    wrong_imports: [
        ("core/a.py", "from tf_graft.optimizers import sgd"),
        ("core/a.py", "def f():\n    import tf_graft"),
        ("core/a.py", "from tf_graft import Adam"),
        ("algorithm.py", "from tf_graft import Adam"),
        ("optimizers/a.py", "from tf_graft.core.tensors.numerics import length"),
        ("optimizers/a.py", "import tf_graft.wrappers.larc"),
        ("schedules/a.py", "from tf_graft import optimizers"),
        ("schedules/a.py", "from tf_graft.training.config import load"),
        ("training/a.py", "from tf_graft import cli"),
    ],
    imports_from_above: [
        ("core/checks.py", "from tf_graft.core.tensors import numerics"),
        ("core/tensors/rows.py", "from tf_graft.core.state.write import Whole"),
        ("core/pipeline/judge.py", "import tf_graft.core.files.saving"),
        ("core/files/saving.py", "from tf_graft.core import building"),
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
        ("core/a.py", "from tensorflow.core.framework import node_def_pb2"),
        ("core/a.py", "import keras\nkeras.src.backend"),
        ("core/a.py", "import tensorflow as tf\nx = tf.__internal__.FuncGraph"),
        ("optimizers/a.py", "def f(v):\n    return v._value"),
        ("core/a.py", "def f(self):\n    return self._trainable_variables"),
        ("training/a.py", "def f(o):\n    o._iterations.assign(0)"),
        (
            "scaling/a.py",
            "from tf_graft.core import keras_contract\n"
            "class A(keras_contract.OwnVariable):\n    def f(self):\n        return self._value",
        ),
    ],
    foreign_private_names: [
        ("training/a.py", "def f(o):\n    return o._strategy"),
        ("optimizers/a.py", "def f(self):\n    return self.child._parameters"),
        ("training/a.py", "def f(o):\n    return getattr(o, '_strategy', None)"),
        ("core/a.py", "from tf_graft.core.tensors.rows import _true"),
    ],
    inherited_private_names: [
        (
            "wrappers/a.py",
            f"from tf_graft.core.files import identity\n{A}(identity.Identity):{USE}",
        ),
        ("core/a.py", f"from tf_graft.core.files.identity import Identity as I\n{A}(I):{USE}"),
        (
            "core/a.py",
            f"import tf_graft.core.files.identity as i\n{A}(i.Identity):\n    _named = None",
        ),
        (
            "optimizers/a.py",
            f"from tf_graft.core import keras_contract\n{A}(keras_contract.StoredVariable):\n"
            "    def f(self):\n        return super()._store",
        ),
        (
            "monitor/a.py",
            f"from tf_graft.core.files.identity import Identity\n{A}(Identity):\n    pass\n"
            "class B(A):\n    def _restore(self):\n        pass",
        ),
    ],
    yaml_reads: [
        ("training/run.py", "import yaml"),
        ("cli.py", "def f():\n    from ruamel.yaml import YAML"),
    ],
    writes: [
        ("optimizers/a.py", "def f(w, d):\n    w.assign_add(d)"),
        ("wrappers/a.py", "def f(w, d):\n    w.scatter_update(d)"),
        ("core/a.py", "def f(w, d):\n    tf.raw_ops.AssignVariableOp(resource=w, value=d)"),
        ("core/a.py", "def kernel(w, d):\n    tf.raw_ops.ResourceScatterAdd(resource=w)"),
        ("optimizers/a.py", "def f(w, g):\n    tf.raw_ops.ResourceApplyGradientDescent(var=w)"),
        ("training/a.py", "def f(v):\n    change = v.assign\n    change(0)"),
        ("monitor/a.py", "from keras import ops\nops.assign"),
    ],
    long_functions: [
        ("core/a.py", "def f():\n" + "    x = 1\n" * 31),
        ("core/a.py", "class A:\n    def f(self):\n" + "        x = 1\n" * 31),
    ],
}


def found(rule):
    """What is wrong by a rule in the package."""
    for file in FILES:
        place = file.relative_to(PACKAGE).as_posix()
        yield from rule(place, file.read_text("utf-8"))


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_rule_is_kept(rule):
    assert len(FILES) > 20
    wrong = list(found(rule))
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
    tree = classes.parsed(text)
    strings = [n.value for n in ast.walk(tree) if isinstance(n, ast.Constant)]
    told = re.findall(r"\b(?:import|from) (\w+)", "\n".join(s for s in strings if type(s) is str))
    for module in [*imports(tree), *told]:
        if re.match(r"(tests\.)?(test_|conftest\b)", module):
            yield f"{place} imports {module}"


@pytest.mark.slow
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
        ("core/a.py", "import keras\nfrom tf_graft.core.tensors import rows\n"),
        ("optimizers/adamw.py", "from tf_graft.optimizers.adam import Adam\n"),
        ("training/plain_yaml.py", "from ruamel.yaml import YAML\n"),
        (f"{CONTRACT}a.py", "from tensorflow.python.ops import control_flow_util\n"),
        ("core/b.py", "def f():\n" + docstring + "    x = 1\n" * 30),
        ("core/c.py", f"{A}:\n    _value = 1\n    def f(self):\n        return self._value"),
        ("core/d.py", f"{A}:\n    _named = 1\n\nclass B(A):{USE}"),
        (
            "core/e.py",
            "from tf_graft.core.files import checked_state\nchecked_state.assign({}, {})",
        ),
    ):
        assert not list(rule(place, text))


def imported_files(place, text):
    """The package's files that a file imports, wherever in it: a name's is its module's."""
    for module in imports(ast.parse(text)):
        found, _, path = module.replace(".", "/").partition("/")
        while found == "tf_graft" and path:
            files = [p for p in (f"{path}.py", f"{path}/__init__.py") if (PACKAGE / p).exists()]
            yield from files
            path = "" if files else path.rpartition("/")[0]


def test_no_file_imports_itself_through_others():
    texts = {file.relative_to(PACKAGE).as_posix(): file.read_text("utf-8") for file in FILES}
    graph = {place: set(imported_files(place, text)) - {place} for place, text in texts.items()}
    assert "exits.py" in graph["cli.py"]
    graphlib.TopologicalSorter(graph).prepare()


def test_parts_are_in_one_order():
    above = {part: allowed - {part} for part, allowed in ALLOWED.items()}
    graphlib.TopologicalSorter(above).prepare()


def test_exceptions_are_still_needed():
    for place, reason in WRITERS.items():
        assert reason
        assert list(written(place, (PACKAGE / place).read_text("utf-8"))), place
    for (place, module), reason in SIDEWAYS.items():
        assert reason
        text = (PACKAGE / place).read_text("utf-8")
        assert any(name.startswith(module) for name in imports(classes.parsed(text)))


def test_the_page_on_the_architecture_names_every_module_of_core():
    page = (PACKAGE.parent / "docs" / "architecture.md").read_text()
    modules = [path for path in (PACKAGE / "core").rglob("*.py") if path.stem != "__init__"]
    assert not [path.stem for path in modules if not re.search(rf"`{path.stem}(\.py)?`", page)]


def test_every_mutant_changes_one_place():
    for mutant in tomllib.loads((TESTS / "mutants.toml").read_text())["mutants"]:
        text = (PACKAGE / mutant["file"]).read_text()
        assert text.count(mutant["before"]) == 1, mutant
        assert mutant["after"] != mutant["before"]
