"""The API reference has every public name, and no name of a class that only the engine uses.

The build warns of a public name that is missing, and fails.
"""

import importlib
import inspect

from sphinx.util import logging

import tf_graft
from tf_graft.core.arguments.description import internal

LOG = logging.getLogger(__name__)


def public_modules(module=tf_graft):
    """A module and those among its public names, theirs included; `testing` is imported by few."""
    yield module
    if module is tf_graft:
        yield importlib.import_module("tf_graft.testing")
    for name in module.__all__:
        if inspect.ismodule(found := getattr(module, name)):
            yield from public_modules(found)


def missing(documented):
    """The public names that are not documented, here or where the same thing has another name."""
    things = {}
    for module in public_modules():
        for name in module.__all__:
            thing = getattr(module, name)
            if not inspect.ismodule(thing):
                things.setdefault(id(thing), set()).add(f"{module.__name__}.{name}")
    return sorted(min(names) for names in things.values() if not names & documented)


def check(app, env):
    for name in missing(set(env.get_domain("py").objects)):
        LOG.warning("%s is public and not in the API reference", name)


def skip(app, what, name, obj, skipped, options):
    """Leaves out the members of an optimizer that `dir` leaves out, too."""
    owner = getattr(getattr(obj, "fget", None) or obj, "__qualname__", "").rpartition(".")[0]
    of_an_optimizer = isinstance(getattr(tf_graft, owner, None), type) and issubclass(
        getattr(tf_graft, owner), tf_graft.Optimizer
    )
    return True if of_an_optimizer and name in internal(getattr(tf_graft, owner)) else None


def setup(app):
    app.connect("autodoc-skip-member", skip)
    app.connect("env-check-consistency", check)
    return {"parallel_read_safe": True}
