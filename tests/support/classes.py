"""The classes of the package, found in its syntax trees without importing it: who inherits what."""

import ast
import functools
import re
from pathlib import Path

PACKAGE = Path(__file__).parents[2] / "tf_graft"
# Modules of Keras, TensorFlow and Python that any version may change.
PRIVATE_MODULES = r"keras\.(src|_)|tensorflow\.(python|compiler|core|dtensor|_)|re\._"


parsed = functools.cache(ast.parse)


@functools.cache
def trees():
    """The syntax tree of every file of the package, by place: `core/tensors/rows.py`."""
    files = sorted(PACKAGE.rglob("*.py"))
    return {f.relative_to(PACKAGE).as_posix(): parsed(f.read_text("utf-8")) for f in files}


@functools.cache
def imported(tree):
    """The names that a file imports, each with what it stands for: `a.b` for `from a import b`."""
    names = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            names |= {a.asname or a.name: f"{node.module}.{a.name}" for a in node.names}
        elif isinstance(node, ast.Import):
            names |= {a.asname: a.name for a in node.names if a.asname}
            names |= {(top := a.name.partition(".")[0]): top for a in node.names if not a.asname}
    return names


@functools.cache
def classes_of(tree):
    """The classes that a file defines, by name."""
    return {node.name: node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)}


def find(trees, place, dotted):
    """The place and the node of a class as a file names it; where it is of another library, its
    full name and None.
    """
    if dotted in classes_of(trees[place]):
        return place, classes_of(trees[place])[dotted]
    head, _, rest = dotted.partition(".")
    full = ".".join(filter(None, (imported(trees[place]).get(head, head), rest)))
    module, _, name = full.rpartition(".")
    path = module.removeprefix("tf_graft").replace(".", "/").lstrip("/")
    for at in (f"{path}.py", f"{path}/__init__.py"):
        if module.startswith("tf_graft") and at in trees and at != place:
            return find(trees, at, name)
    return full, None


def ancestors(trees, place, cls):
    """Each class that a class inherits from, as `find` gives it."""
    for base in cls.bases:
        at, node = find(trees, place, ast.unparse(base))
        yield at, node
        if node is not None and node is not cls:
            yield from ancestors(trees, at, node)


def of_keras(trees, place, cls):
    """Whether a class stands on one of Keras'."""
    found = ancestors(trees, place, cls)
    return any(node is None and re.match(r"keras\b", at) for at, node in found)


def is_private(name):
    """Whether a name is private: `_name`, but not `__name__` and not `_`."""
    return re.match(r"_[^_]", name) is not None


def is_own(node):
    """Whether an expression is one's own object or class: `self`, `cls` or `super()`."""
    node = node.func if isinstance(node, ast.Call) else node
    return isinstance(node, ast.Name) and node.id in {"self", "cls", "super"}


@functools.cache
def private_uses(cls):
    """Where a class uses or defines private names of its objects, or its own: node and name."""
    body = [(node, node.name) for node in cls.body if isinstance(node, ast.FunctionDef)]
    for node in cls.body:
        if isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            body += [(x, x.id) for t in targets for x in ast.walk(t) if isinstance(x, ast.Name)]
    attributes = [
        (node, node.attr)
        for node in ast.walk(cls)
        if isinstance(node, ast.Attribute) and is_private(node.attr) and is_own(node.value)
    ]
    return [*((node, name) for node, name in body if is_private(name)), *attributes]


def private_definitions(cls):
    """The private names that a class defines: methods, names in its body, attributes of `self`."""
    for node, name in private_uses(cls):
        if not isinstance(node, ast.Attribute) or isinstance(node.ctx, ast.Store):
            yield name


def touched(tree):
    """Each use of an attribute, `thing.name` or `getattr(thing, "name")`: node, thing and name."""
    lookups = ("getattr", "setattr", "hasattr", "delattr")
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            yield node, node.value, node.attr
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in lookups:
            thing, name = node.args[:2]
            if isinstance(name, ast.Constant):
                yield node, thing, name.value


def module_names(tree):
    """The names of private modules that a file imports or reads, each as far down as it reads."""
    held = {n: full for n, full in imported(tree).items() if re.match(PRIVATE_MODULES, full)}
    found = set(held.values())
    for _, thing, name in touched(tree):
        path = f"{ast.unparse(thing)}.{name}"
        if ast.unparse(thing) in held:
            found.add(f"{held[ast.unparse(thing)]}.{name}")
        elif path.startswith("tf.__internal__."):
            found.add(path.replace("tf", "tensorflow", 1))
    return {n for n in found if not any(other.startswith(f"{n}.") for other in found)}
