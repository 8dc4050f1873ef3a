"""Every public name is in the API reference: the build warns of one that is not, and fails."""

import importlib
import inspect

from sphinx.util import logging

import tf_graft

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


def setup(app):
    app.connect("env-check-consistency", check)
    return {"parallel_read_safe": True}
