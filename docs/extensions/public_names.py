"""The API reference has a page for every public name; of a class, the members that are for users.

The build warns of a public name that is missing, and fails.
"""

import importlib
import inspect

import keras
from sphinx.util import logging

import tf_graft
from tf_graft.core.state.algorithm import Algorithm
from tf_graft.monitor.monitor import Norms, Record

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


def public_members(cls):
    """The members that the page of a class describes: those that it brings, and that are for users.

    The page of a base class has the others. Keras calls the methods of a callback that are Keras'.
    """
    parts, elsewhere = [cls], {each for base in cls.__mro__[1:] for each in dir(base)}
    if issubclass(cls, keras.optimizers.schedules.LearningRateSchedule):
        return []  # a schedule is called
    if issubclass(cls, tf_graft.Optimizer) and cls in vars(tf_graft).values():
        parts = [each for each in cls.__mro__ if each.__module__.startswith("tf_graft.")]
        bases = (tf_graft.algorithm.MatrixOptimizer, tf_graft.algorithm.Around)
        bases = (Algorithm,) if cls is tf_graft.Optimizer else bases
        elsewhere = {name for base in bases for name in dir(base)}
    members = {each: member for part in reversed(parts) for each, member in vars(part).items()}
    return [
        ("method" if inspect.isroutine(member) else "property", each)
        for each, member in members.items()
        if not (each.startswith("_") or each in elsewhere or each in getattr(cls, "_fields", ()))
        and (inspect.isroutine(member) or isinstance(member, property))
        and member.__doc__
    ]


def members_by_class():
    """The members of all public classes, and of those whose objects `Monitor` keeps."""
    classes = {"tf_graft.monitor.monitor.Norms": Norms, "tf_graft.monitor.monitor.Record": Record}
    for module in public_modules():
        things = {f"{module.__name__}.{name}": getattr(module, name) for name in module.__all__}
        classes |= {path: thing for path, thing in things.items() if inspect.isclass(thing)}
    return {path: public_members(cls) for path, cls in classes.items()}


def setup(app):
    app.config.autosummary_context["public_members"] = members_by_class()
    app.connect("env-check-consistency", check)
    return {"parallel_read_safe": True}
