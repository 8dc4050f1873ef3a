"""What has changed in the code since a commit."""

import ast
import functools
import pathlib
import re
import subprocess
from collections.abc import Iterable, Iterator

ROOT = pathlib.Path(__file__).parents[2]
PACKAGE = "tf_graft/__init__.py"


class UnknownCommit(Exception):
    """The repository does not have a commit, or there is no repository."""


def version(commit: str | None = None) -> str:
    """Returns the version of the package in this folder, or in a commit.

    Raises:
        UnknownCommit: the repository does not have the commit.
    """
    text = git("show", f"{commit}:{PACKAGE}") if commit else (ROOT / PACKAGE).read_text("utf-8")
    return re.findall(r'^__version__ = "(.+)"$', text, re.M)[0]


def git(*arguments: str) -> str:
    """Returns what git says in this repository.

    Raises:
        UnknownCommit: git failed.
    """
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        raise UnknownCommit(done.stderr.strip())
    return done.stdout


def head() -> str:
    """Returns the commit that is checked out, shortened."""
    return git("rev-parse", "--short=9", "HEAD").strip()


def uncommitted(paths: Iterable[str]) -> list[str]:
    """Returns the files below `paths` that differ from what is committed."""
    return [line[3:] for line in git("status", "--porcelain", "--", *paths).splitlines()]


@functools.cache
def changed(commit: str) -> frozenset[str]:
    """Returns the definitions whose code now differs from a commit: "folder/file.py::name".

    They are functions, classes, methods ("Class.method"), variables and imported names of modules.
    The name is empty for other statements, and for a file that is not Python, which counts as a
    whole.

    Raises:
        UnknownCommit: the repository does not have the commit.
    """
    files = git("diff", "--name-only", "--no-renames", commit, "--").splitlines()
    found = set()
    for file in files:
        old, new = before(commit, file), now(file)
        found |= {f"{file}::{name}" for name in old | new if old.get(name) != new.get(name)}
    return frozenset(found)


def before(commit: str, file: str) -> dict[str, str]:
    """The code of a file in a commit, by name; nothing if it was not there."""
    try:
        return code_of(git("show", f"{commit}:{file}"), file)
    except UnknownCommit:
        return {}


def now(file: str) -> dict[str, str]:
    """The code of a file as it is, by name."""
    path = ROOT / file
    return code_of(path.read_text("utf-8", "replace"), file) if path.exists() else {}


def code_of(text: str, file: str) -> dict[str, str]:
    """A text; if it is Python, by name, without comments, docstrings and a package's version."""
    if not file.endswith(".py"):
        return {"": text}
    tree = ast.parse(text)
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            node.body = [each for each in node.body if not (is_text(each) or is_version(each))]
    code: dict[str, str] = {}
    for node in tree.body:
        for name, said in definitions(node):
            code[name] = code.get(name, "") + said
    return code


def definitions(node: ast.stmt) -> Iterator[tuple[str, str]]:
    """Yields what a statement defines: each name, and the code of it."""
    if isinstance(node, ast.Import | ast.ImportFrom):
        module = node.module if isinstance(node, ast.ImportFrom) else ""
        for alias in node.names:
            yield alias.asname or alias.name, f"import {module} {alias.name}"
    elif isinstance(node, ast.ClassDef):
        methods = [each for each in node.body if isinstance(each, ast.FunctionDef)]
        node.body = [each for each in node.body if each not in methods]
        yield node.name, ast.dump(node)
        yield from ((f"{node.name}.{method.name}", ast.dump(method)) for method in methods)
    else:
        yield name_of(node), ast.dump(node)


def name_of(node: ast.stmt) -> str:
    """What a statement defines; nothing if it does not define one name."""
    if isinstance(node, ast.Assign | ast.AnnAssign):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        return ast.unparse(targets[0]) if isinstance(targets[0], ast.Name) else ""
    return str(getattr(node, "name", ""))


def is_text(node: ast.stmt) -> bool:
    """Whether a statement is only a string."""
    return (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    )


def is_version(node: ast.stmt) -> bool:
    """Whether a statement only says which version a package is."""
    return isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__version__"
