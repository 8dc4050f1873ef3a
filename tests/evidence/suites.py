"""The suites of the evidence: what each of them shows, and its parts, which are made one by one."""

import functools
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import matrix
import recordings
from evidence import changes, reach
from evidence.ledger import Row
from support import samples
from tpu import replays
from trust import AREAS, clusters

Arguments = list[str]
MATRIX, TPU = "docs/data/matrix.json", "docs/data/tpu.json"
DRAWS = 1000
# Folders and files of the package that take no part in the step of an optimizer.
COMMANDS = ("study", "training", "processes", "cli", "listing", "terminal", "exits")
BESIDE = (*COMMANDS, "vocabulary", "fit", "monitor", "averages")
OF_MATRIX = ("tests/matrix.py", "tests/programs/strategy_cases.py")
# Code of the matrix that a part reaches only with one of these: the way, the run, or a row.
ONLY_IN_MATRIX = {
    "tests/support/model_cells.py": {"model"},
    "tests/support/model_columns.py": {"model"},
    "tests/support/model_rows.py": {"model"},
    "tests/support/columns.py": {"apply"},
    "tests/support/columns.py::Servers": {"parameter_server", "shards"},
    "tests/support/columns.py::ON_SHARDS": {"shards"},
    "tests/support/cells.py::split": {"shards"},
    "tests/support/cells.py::joined": {"shards"},
    "tests/support/cells.py::REFUSALS": {"model"},  # through `apply`, nothing is refused
    "tests/support/oracles.py::multi": {"multi"},
}
_CHECKPOINTS = "tf_graft/core/keras_contract/checkpoints.py"
# Code that runs only where a model is saved, or a file is loaded, which no optimizer's step does.
FILES = (
    f"{_CHECKPOINTS}::all_or_nothing",
    f"{_CHECKPOINTS}::layers_of",
    f"{_CHECKPOINTS}::_of_this_package",
    f"{_CHECKPOINTS}::_optimizers_of",
    f"{_CHECKPOINTS}::_variables_of_other_optimizers",
    "tf_graft/dtensor/clients.py::meet",
    "tf_graft/dtensor/clients.py::written_by_one",
)
_RATES, _WRAPPER = "tf_graft/core/arguments/rates.py", "tf_graft/compose/wrapper.py"
# Code that sets attributes. In the checks only constructors and builds do, before the first step.
SETTING = (
    f"{_RATES}::LearningRate.__set__",
    f"{_RATES}::warnings",
    f"{_WRAPPER}::Wrapper.__setattr__",
    f"{_WRAPPER}::Wrapper._refuse_of_inner",
    *(f"{_WRAPPER}::{name}" for name in ("declared", "nested", "signatures")),
)
# Code that only some kinds of clusters run.
ONLY_IN_CLUSTERS = {
    "tf_graft/training/servers.py": {"parameter_server"},
    "tf_graft/training/shared_state.py": {"mesh"},
    "tf_graft/dtensor/clients.py": {"mesh"},
    "tf_graft/processes/watch.py": {"parameter_server"},
}


class Suite(NamedTuple):
    """Checks of one kind.

    Attributes:
        shows: what holds if nothing is wrong.
        parts: for each part the arguments that Python is called with.
        rests_on: how the names of the code begin that the parts depend on, see `changes.changed`.
        limit: seconds after which a part is ended.
        but_not: how the names begin of code that a part does not reach, by part.
    """

    shows: str
    parts: Mapping[str, Arguments]
    rests_on: Sequence[str] = ("tf_graft/", "tests/")
    limit: float = 3600.0
    but_not: Mapping[str, Sequence[str]] = {}

    def stale(self, part: str, row: Row) -> bool:
        """Returns whether code that a part rests on has changed since it ended, or may have."""
        return row.stale(self.rests_on, self.but_not.get(part, ()))


def suites(jax: str = sys.executable) -> dict[str, Suite]:
    """Returns the suites by name, in the order in which they are shown.

    Args:
        jax: a Python that has jax and libtpu.
    """
    return {
        "rare tests": Suite(
            "The tests that `.ci/run` leaves out pass: cases similar to those that it runs.",
            dict(_rare_tests()),
            but_not=dict(_unreached_by_tests()),
        ),
        "recordings": Suite(
            "Recorded runs of other programs are repeated with this package.",
            {"all": ["tests/recordings.py"]},
            but_not={"all": _other_tests(recordings.files())},
        ),
        "matrix, apply": Suite(
            "Through `apply`, weights equal a float64 computation: each execution, each option.",
            dict(_matrix("apply")),
            _optimizers(*OF_MATRIX),
            but_not=dict(_unreached("apply")),
        ),
        "matrix, fit": Suite(
            "Through `fit`, weights equal a float64 computation: each execution, each option.",
            dict(_matrix("model")),
            _optimizers(*OF_MATRIX),
            but_not=dict(_unreached("model")),
        ),
        "draws": Suite(
            "Random optimizers on random devices equal a float64 computation.",
            dict(_draws()),
            _optimizers("tests/draws/"),
        ),
        "attacks": Suite(
            "Hostile gradients, arguments, configs, names, files, runs and states do no harm.",
            {area: ["tests/trust", area] for area in AREAS if area != "clusters"},
            ("tf_graft/", "tests/trust/"),
            limit=7200.0,
        ),
        "kills of clusters": Suite(
            "If processes of a cluster are killed or stopped, it ends as if nothing had happened.",
            dict(_clusters()),
            ("tf_graft/", "tests/trust/clusters.py", "tests/trust/lives.py"),
            but_not=dict(_unreached_by_clusters()),
        ),
        "TPU programs": Suite(
            "The TPU's compiler compiles each step, and the program copies no table.",
            dict(_tpu("programs", jax, samples.BY_NAME)),
            _optimizers("tests/tpu/"),
            but_not=dict(_unreached_by(samples.BY_NAME)),
        ),
        "TPU replays": Suite(
            "Compiled programs, run on four replicas, equal a float64 computation.",
            dict(_tpu("replays", jax, [*samples.BY_NAME, *replays.WRAPPERS])),
            _optimizers("tests/tpu/"),
            but_not=dict(_unreached_by([*samples.BY_NAME, *replays.WRAPPERS])),
        ),
        "TPU controls": Suite(
            "The checks find errors that were put into the TPU's programs on purpose.",
            {"all": [*_asking(jax, "controls")]},
            _optimizers("tests/tpu/"),
            but_not={"all": (*FILES, *SETTING)},
        ),
    }


def _optimizers(*more: str) -> tuple[str, ...]:
    """What a step depends on, and more."""
    return (*more, "tests/support/", *_steps())


@functools.cache
def _steps() -> tuple[str, ...]:
    """The package without its commands."""
    paths = (changes.ROOT / "tf_graft").iterdir()
    return tuple(sorted(f"tf_graft/{path.name}" for path in paths if path.stem not in BESIDE))


def _groups(names: Iterable[str], size: int) -> Iterator[tuple[str, list[str]]]:
    """Yields so many names at a time, and what to call them."""
    every = list(names)
    for at in range(0, len(every), size):
        group = every[at : at + size]
        yield " to ".join(dict.fromkeys([group[0], group[-1]])), group


def _rare_tests() -> Iterator[tuple[str, Arguments]]:
    pytest = ["-m", "pytest", "-n0", "-p", "no:cacheprovider", "-m", "rare"]
    for title, files in _of_tests():
        yield title, [*pytest, *files]


def _unreached_by_tests() -> Iterator[tuple[str, Sequence[str]]]:
    """Yields the parts of the rare tests, each with the files of tests that it does not run."""
    for title, files in _of_tests():
        yield title, _other_tests(files)


def _of_tests() -> Iterator[tuple[str, list[str]]]:
    """Yields the parts of the rare tests: what to call it, and its files."""
    by_name = {path.partition("test_")[2].removesuffix(".py"): path for path in _tests()}
    for title, group in _groups(by_name, 8):
        yield title, [by_name[name] for name in group]


def _other_tests(files: Sequence[str]) -> list[str]:
    """The files of tests but for these; no file of tests imports another (`test_layers.py`)."""
    return [path for path in _tests() if path not in files]


@functools.cache
def _tests() -> tuple[str, ...]:
    paths = changes.ROOT.glob("tests/test_*.py")
    return tuple(sorted(str(path.relative_to(changes.ROOT)) for path in paths))


def _matrix(through: str) -> Iterator[tuple[str, Arguments]]:
    command = ["tests/matrix.py", "--through", through, "--output", MATRIX]
    for title, run, group in _of_matrix(through):
        yield title, [*command, "--run", run, "--samples", ",".join(group)]


def _unreached(through: str) -> Iterator[tuple[str, Sequence[str]]]:
    """Yields the parts of the matrix, each with the names of code that it does not reach."""
    for title, run, group in _of_matrix(through):
        has = {through, run, *group}
        names = [name for name, needs in ONLY_IN_MATRIX.items() if not has & needs]
        yield title, [*names, *FILES, *SETTING, *reach.unreached(group)]


def _of_matrix(through: str) -> Iterator[tuple[str, str, list[str]]]:
    """Yields the parts of the matrix: what to call it, the run, and the rows."""
    part = matrix.Part(through, matrix.rows_of(through))
    for run in part.runs:
        for title, group in _groups(part.names, 6):
            yield f"{run}, {title}", run, group


def _draws() -> Iterator[tuple[str, Arguments]]:
    for title, group in _groups(map(str, range(DRAWS)), 50):
        yield title, ["tests/draws", "--first", group[0], "--count", str(len(group))]


def _clusters() -> Iterator[tuple[str, Arguments]]:
    for kind in clusters.KINDS:
        for way in clusters.WAYS:
            command = ["tests/trust", "clusters", "--kind", kind, "--way", way]
            for title, group in _groups(map(str, range(1, clusters.EACH + 1)), 5):
                yield f"{kind}, {way}, {title}", [*command, "--count", str(len(group))]


def _unreached_by_clusters() -> Iterator[tuple[str, Sequence[str]]]:
    """Yields the parts of the kills, each with the names of code that it does not reach."""
    files = [f"tf_graft/fit/{name}.py" for name in ("finder", "variable_groups")]
    others = [*SETTING, *files, *reach.unreached(["adam"])]  # not in their config
    for title, _ in _clusters():
        kind = title.partition(",")[0]
        yield title, [*others, *(name for name, on in ONLY_IN_CLUSTERS.items() if kind not in on)]


def _tpu(what: str, jax: str, names: Iterable[str]) -> Iterator[tuple[str, Arguments]]:
    for title, group in _groups(names, 6):
        yield title, [*_asking(jax, what), "--samples", ",".join(group)]


def _unreached_by(names: Iterable[str]) -> Iterator[tuple[str, Sequence[str]]]:
    """Yields the parts of the TPU's programs, each with the optimizers that it does not reach."""
    for title, group in _groups(names, 6):
        yield title, [*FILES, *SETTING, *reach.unreached(group)]


def _asking(jax: str, what: str) -> Arguments:
    return ["tests/tpu", "--jax", jax, "--do", what, "--output", TPU]
