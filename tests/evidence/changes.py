"""What has changed in the code since a commit."""

import ast
import functools
import pathlib
import re
import subprocess
from collections.abc import Iterable

ROOT = pathlib.Path(__file__).parents[2]
PACKAGE = ROOT / "tf_graft" / "__init__.py"


class UnknownCommit(Exception):
    """The repository does not have a commit, or there is no repository."""


def version() -> str:
    """Returns the version of the package in this folder."""
    text = PACKAGE.read_text("utf-8")
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
    """Returns the files whose code now differs from that of a commit; other words do not count.

    Raises:
        UnknownCommit: the repository does not have the commit.
    """
    names = git("diff", "--name-only", "--no-renames", commit, "--").splitlines()
    return frozenset(name for name in names if before(commit, name) != now(name))


def before(commit: str, name: str) -> str:
    """The code of a file in a commit; nothing if it had none of that name."""
    try:
        return code_of(git("show", f"{commit}:{name}"), name)
    except UnknownCommit:
        return ""


def now(name: str) -> str:
    """The code of a file as it is."""
    path = ROOT / name
    return code_of(path.read_text("utf-8", "replace"), name) if path.exists() else ""


def code_of(text: str, name: str) -> str:
    """A text; if it is Python, without comments, docstrings and the version of a package."""
    if not name.endswith(".py"):
        return text
    tree = ast.parse(text)
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            node.body = [each for each in node.body if not (is_text(each) or is_version(each))]
    return ast.dump(tree)


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
