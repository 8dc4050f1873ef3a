"""Every public name is in the API reference: one that is not is a warning, which fails the build."""

import inspect

from sphinx.util import logging

import tf_graft
import tf_graft.testing
from tf_graft.schedules import lr_policies

LOG = logging.getLogger(__name__)


def public_names():
    """The full name of each public name, those of public modules included."""
    modules = [tf_graft, tf_graft.testing, lr_policies]
    modules += filter(inspect.ismodule, (getattr(tf_graft, name) for name in tf_graft.__all__))
    return {f"{m.__name__}.{name}" for m in modules for name in m.__all__}


def check(app, env):
    documented = set(env.get_domain("py").objects)
    for name in sorted(public_names() - documented):
        LOG.warning("%s is public and not in the API reference", name)


def setup(app):
    app.connect("env-check-consistency", check)
    return {"parallel_read_safe": True}
