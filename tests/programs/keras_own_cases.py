"""Runs Keras' own optimizer tests on our classes; prints how each ended, as JSON.

Of the supported versions the wheel of Keras 3.15.1 holds its tests. Our classes stand in the places
of Keras' while the tests are imported; what only Keras has is wrapped. To be run in a process of
its own.
"""

import contextlib
import functools
import importlib
import json
import pkgutil
import sys
from unittest import mock

import keras
import pytest

import tf_graft

SAME = ("SGD", "Adam", "AdamW", "Adagrad", "Adadelta", "Ftrl", "RMSprop")
WRAPPED = ("Adafactor", "Adamax", "Lion", "Muon", "Nadam", "ScheduleFreeAdamW")
PACKAGE = "keras.src.optimizers"


def files():
    """The names of the modules of tests: none where the wheel holds none."""
    folder = importlib.import_module(PACKAGE).__path__
    return [module.name for module in pkgutil.iter_modules(folder) if module.name.endswith("_test")]


def replacements():
    """What stands in the place of each class."""
    places = {getattr(keras.optimizers, name): getattr(tf_graft, name) for name in SAME}
    places[keras.optimizers.Lamb] = tf_graft.LAMB
    for name in WRAPPED:
        theirs = getattr(keras.optimizers, name)
        places[theirs] = functools.partial(_wrapped, theirs)
    return places


def _wrapped(theirs, *arguments, **options):
    return tf_graft.wrap(theirs(*arguments, **options))


def import_tests():
    """Imports the tests with our classes under Keras' names."""
    package = importlib.import_module(PACKAGE)
    with contextlib.ExitStack() as meanwhile:
        for theirs, ours in replacements().items():
            where = sys.modules[theirs.__module__]
            meanwhile.enter_context(mock.patch.object(where, theirs.__name__, ours))
            if hasattr(package, theirs.__name__):
                setattr(package, theirs.__name__, ours)
        for name in ("get", "serialize", "deserialize"):
            setattr(package, name, getattr(tf_graft, name))
        for name in files():
            importlib.import_module(f"{PACKAGE}.{name}")


class Outcomes(dict):
    """A plugin of pytest that notes how each test ended: the error of one that failed."""

    def pytest_runtest_logreport(self, report):
        if report.failed or report.when == "call":
            error = report.longrepr.reprcrash.message if report.failed else ""
            self[report.location[2]] = {"outcome": report.outcome, "error": error}


if __name__ == "__main__":
    import_tests()
    outcomes = Outcomes()
    paths = [sys.modules[f"{PACKAGE}.{name}"].__file__ for name in files()]
    pytest.main(["-q", "-c", "/dev/null", "-p", "no:cacheprovider", *paths], plugins=[outcomes])
    print(json.dumps(outcomes))
