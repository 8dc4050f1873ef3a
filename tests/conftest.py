"""Before anything else: four logical CPU devices, quiet logs, the same random numbers each time."""

import copy
import faulthandler
import gc
import os
import pathlib
import re
import signal
import tomllib

import pytest

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("KERAS_BACKEND", "tensorflow")

# What holds no test; a case file there is collected where it is named.
collect_ignore = ["matrix.py", "mutants.py", "programs", "support", "tpu", "trust", "tutorials"]

STDERR, SEEN = pytest.StashKey(), pytest.StashKey()
TABLES = tomllib.loads((pathlib.Path(__file__).parent / "representatives.toml").read_text())
CHOSEN = {
    name: f"{pattern}|{table['always']}" if "always" in table else pattern
    for table in TABLES.values()
    for name, pattern in table.items()
    if name != "always"
}
# Seconds that a test may take; a quick one may take what `pyproject.toml` says.
LIMITS = {"rare": 900, "slow": 300}
YOUNG = 300_000  # objects of tests that ended, some 200 MB: collected in half a second
# Tests that start many processes, which run first: one after the other, while the second process of
# pytest runs others, and not two of them side by side at the end. What is left then is short.
CLUSTERS = (
    *("test_strategies", "test_agn_servers", "test_multi_worker", "test_launch"),
    *("test_dtensor", "test_mesh", "test_trust"),
)


def pytest_configure(config):
    hands_out = config.getoption("numprocesses", None) and not hasattr(config, "workerinput")
    if not hands_out:  # that process runs no test
        from support import devices

        devices.prepare()
    config.stash[STDERR] = os.dup(2)  # in a test, pytest captures what is written to the original
    # `.ci/run` sends this signal if a process hangs outside of its tests.
    faulthandler.register(signal.SIGTERM, file=config.stash[STDERR], chain=True)


def pytest_timeout_set_timer(item, settings):
    """Ends the process of a test that hangs, and prints the stacks of its threads.

    The plugin's own timers run Python code, which never starts while TensorFlow blocks Python.
    """
    stderr = item.config.stash[STDERR]
    faulthandler.dump_traceback_later(settings.timeout, exit=True, file=stderr)
    return True


def pytest_timeout_cancel_timer():
    faulthandler.cancel_dump_traceback_later()
    return True


def pytest_itemcollected(item):
    """Of a slow test, the cells that are slow themselves are rare; a rare test is not slow."""
    if len(list(item.iter_markers("slow"))) > 1 or not represents(item):
        item.add_marker("rare")
    if item.get_closest_marker("rare"):
        item.own_markers = [mark for mark in item.own_markers if mark.name != "slow"]
    for mark, seconds in LIMITS.items():
        if item.get_closest_marker(mark):
            item.add_marker(pytest.mark.timeout(seconds))


def represents(item):
    """Whether a case is one of those that `representatives.toml` chooses; others are rare."""
    seen = item.config.stash.setdefault(SEEN, {})
    seen |= {name: set() for name in CHOSEN if name.startswith(f"{item.path.stem}::")} | seen
    name = f"{item.path.stem}::{getattr(item, 'originalname', None)}"
    if name not in CHOSEN:
        return True
    chosen = bool(re.search(CHOSEN[name], item.callspec.id))
    seen[name].add(chosen)
    return chosen


def pytest_collection_finish(session):
    """Refuses a choice that is none because names have changed, if whole files are collected."""
    whole = not any("::" in str(given) for given in session.config.args)
    for name, chosen in session.config.stash.get(SEEN, {}).items():
        if whole and chosen != {True, False}:
            raise pytest.UsageError(
                f"representatives.toml: {name} chooses all of its cases or none"
            )


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item):
    """Collects what slow tests have left; the quick ones leave no more than 2 GB a process."""
    quick = not (item.get_closest_marker("slow") or item.get_closest_marker("rare"))
    if not quick and gc.get_count()[0] > YOUNG:
        gc.collect()
        gc.freeze()  # what stays, as modules and caches do, is not looked at again


def pytest_sessionfinish():
    gc.freeze()  # pytest would collect all of it five times


def pytest_collection_modifyitems(items):
    items.sort(key=lambda item: "slow" not in item.keywords or item.path.stem not in CLUSTERS)


@pytest.fixture(scope="session")
def prepared_data(tmp_path_factory):
    """Prepared data sets in a folder of the tests', so that they do not touch the user's."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TFDS_DATA_DIR", str(tmp_path_factory.mktemp("data")))
        yield


@pytest.fixture(autouse=True)
def _same_random_numbers():
    import keras

    keras.utils.set_random_seed(0)


@pytest.fixture(autouse=True, scope="session")
def _hypothesis_begins_early():
    """At its first test it looks for who holds NumPy's random state: here, among little."""
    import hypothesis

    @hypothesis.given(hypothesis.strategies.none())
    def first(_):
        pass

    first()


@pytest.fixture
def undrawn(monkeypatch):
    """Runs leave an empty picture: drawing one takes longer than a small run."""
    from tf_graft.training import plots

    monkeypatch.setattr(plots.Figure, "savefig", lambda _, to, **__: to.write_bytes(b""))


@pytest.fixture
def keras_alone_has_ftrl(monkeypatch):
    """The name stands for Keras' optimizer, as that of a newer one of Keras would."""
    from tf_graft.core.arguments import names, registry

    others = [cls for cls in registry.OURS.classes() if cls.__name__ != "Ftrl"]
    monkeypatch.setattr(registry, "OURS", names.Registry("optimizer", others))


@pytest.fixture
def names_forgotten(monkeypatch):
    """The optimizers that a test registers are unknown to the next."""
    from tf_graft.core.arguments import registry

    monkeypatch.setattr(registry, "OURS", copy.deepcopy(registry.OURS))
