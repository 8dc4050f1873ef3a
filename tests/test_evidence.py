"""The ledger of long checks: what a part came to, what is stale, and going on where it was."""

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time

import pytest
from packaging.version import Version

from evidence import changes, reach, running, state
from evidence.ledger import Ledger, Row
from evidence.suites import FILES, ONLY_IN_CLUSTERS, ONLY_IN_MATRIX, SETTING, Suite, suites

DATA = changes.ROOT / "docs" / "data"
ROW = Row(3, [], 1.0, "abc", "0.2.0", "TensorFlow 2.21.0, Keras 3.15.1", "2026-11-27")


def said(text, code=0):
    """The arguments of a part that prints a text."""
    return ["-c", f"import sys; print({text!r}); sys.exit({code})"]


@pytest.fixture
def repository(tmp_path, monkeypatch):
    """A repository with one module, and what commits a change of it."""
    monkeypatch.setattr(changes, "ROOT", tmp_path)
    changes.changed.cache_clear()
    (tmp_path / "tf_graft").mkdir()
    (tmp_path / changes.PACKAGE).write_text('__version__ = "0.3.0"\n')
    path = tmp_path / "tf_graft" / "step.py"

    def commit(text):
        path.write_text(text)
        for command in (["init", "-q"], ["add", "."], ["commit", "-qm", "change"]):
            who = ["-c", "user.name=x", "-c", "user.email=x@x"]
            subprocess.run(["git", *who, *command], cwd=tmp_path, check=True)
        changes.changed.cache_clear()
        return changes.head()

    yield commit
    changes.changed.cache_clear()


@pytest.mark.parametrize(
    ("text", "code", "tried", "wrong"),
    [
        ("all 1,200 tried, 0 wrong, in 3 s\n20 tried, 0 wrong", 0, 1220, []),
        ("WRONG  adam, plain: 1.5\n4 tried, 1 wrong", 1, 4, ["adam, plain: 1.5"]),
        (".... [100%]\n== 12 passed, 3 skipped in 4.5s ==", 0, 12, []),
        ("FAILED tests/test_a.py::test_b\n1 failed, 2 passed", 1, 3, ["tests/test_a.py::test_b"]),
        ("no tests ran in 0.1s", running.NO_TESTS, 0, []),
        ("Traceback\nValueError: it broke", 1, 0, ["code 1: ValueError: it broke"]),
        ("3 tried, 0 wrong", 1, 3, ["code 1: 3 tried, 0 wrong"]),
        (".... [100%]", 0, 0, ["no checks counted: .... [100%]"]),
        ("WRONG  adam, plain: 1.5", 0, 0, ["adam, plain: 1.5"]),
    ],
)
def test_a_part_says_how_it_ended(text, code, tried, wrong):
    row = running.Processes().made(said(text, code), 60, "abc")
    assert (row.tried, row.wrong, row.commit) == (tried, wrong, "abc")
    assert row.on.startswith("TensorFlow 2.")
    assert row.version == changes.version()


@pytest.mark.slow
def test_a_part_that_does_not_end_is_killed_with_what_it_started(tmp_path):
    sleeps = f"open({str(tmp_path / 'lives')!r}, 'w').close(); import time; time.sleep(60)"
    starts = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {sleeps!r}])"
    row = running.Processes().made(["-c", starts], 2, "abc")
    assert row.wrong == ["no end in 2 s: no output"]
    assert (tmp_path / "lives").exists()
    found = subprocess.run(["pgrep", "-f", str(tmp_path / "lives")], capture_output=True)
    assert not found.stdout


@pytest.mark.parametrize("inside", [True, False], ids=["venv_in_clone", "venv_beside_clone"])
def test_what_is_wrong_names_no_folder_of_this_machine(monkeypatch, inside):
    monkeypatch.setattr(sys, "prefix", f"{changes.ROOT}/.venv" if inside else "/home/ada/venv")
    text = f"WRONG  {changes.ROOT}/tests/a.py, {sys.prefix}/lib/b.py: 1.5\n1 tried, 1 wrong"
    row = running.Processes().made(said(text, 1), 60, "abc")
    assert row.wrong == ["tests/a.py, lib/b.py: 1.5"]


def test_a_part_that_is_stopped_is_not_kept():
    processes = running.Processes()
    processes.stopped = True
    with pytest.raises(running.Stopped):
        processes.made(said("1 tried, 0 wrong"), 60, "abc")


def test_only_code_that_a_part_rests_on_makes_it_stale(repository):
    first = repository('"""A step."""\n\n__version__ = "0.2"\n\n\ndef step(w):\n    return w - 1\n')
    row = ROW._replace(commit=first)
    assert not row.stale(["tf_graft/"])
    repository(
        '"""In other words."""\n__version__ = "1.0"\ndef step(w):  # of w\n    return w - 1\n'
    )
    assert not row.stale(["tf_graft/"])
    repository("def step(w):\n    return w - 2\n")
    assert row.stale(["tf_graft/"])
    assert not row.stale(["tests/"])
    assert ROW._replace(commit="0000000").stale(["tests/"])


def test_what_changed_is_named(repository):
    first = repository(
        "x: int = 1\ny = 2\nx, y = y, x\nclass A:\n    z = 1\n    def f(self): ...\n"
        "class B:\n    z = 1\n    def f(self): ...\ndef f(): ...\n"
    )
    repository(
        "x: int = 1\ny = 3\ny, x = x, y\nclass A:\n    z = 1\n    def f(self): return 1\n"
        "class B:\n    z = 2\n    def f(self): ...\ndef f(): ...\n"
    )
    assert changes.changed(first) == {f"tf_graft/step.py::{name}" for name in ("", "y", "A.f", "B")}
    row = ROW._replace(commit=first)
    assert row.stale(["tf_graft/"], ["tf_graft/step.py::A", "tf_graft/step.py::y"])
    assert not row.stale(["tf_graft/"], ["tf_graft/step.py::"])
    assert not row.stale(["tf_graft/step.py::f"])


def test_what_is_imported_is_named(repository):
    first = repository("import a.b\nfrom m import x, y\nfrom n import z as w\n")
    repository("import a.b\nfrom m import y, v\nfrom n import x\nfrom m import z as w\n")
    assert changes.changed(first) == {f"tf_graft/step.py::{name}" for name in "xvw"}


@pytest.mark.slow
def test_a_part_of_the_matrix_does_not_rest_on_what_only_others_reach(monkeypatch):
    columns, cells = "tests/support/columns.py", "tests/support/cells.py"
    found, row = suites(), ROW
    apply, fit = found["matrix, apply"], found["matrix, fit"]

    def stale(name):
        monkeypatch.setattr(changes, "changed", lambda commit: {name})
        parts = [(apply, "shards, hyperball to multi"), (apply, "eager, sgd to ftrl_regularized")]
        parts.append((fit, next(part for part in fit.parts if part.startswith("shards"))))
        assert all(part in suite.parts for suite, part in parts)
        return [suite.stale(part, row) for suite, part in parts]

    assert stale(f"{columns}::Servers") == [True, False, False]
    assert stale(f"{columns}::OneDevice") == [True, True, False]
    assert stale(f"{cells}::split") == [True, False, True]
    assert stale(f"{cells}::weights") == [True, True, True]
    assert stale("tests/support/oracles.py::multi") == [True, False, False]
    assert stale("tests/support/model_cells.py::weights") == [False, False, True]
    assert stale("tests/matrix.py::save") == [True, True, True]
    assert stale("tests/test_files.py::SHAPES") == [False, False, False]
    assert stale(FILES[0]) == [False, False, False]


def test_code_of_an_optimizer_makes_only_its_own_parts_stale(monkeypatch):
    """A part reaches the classes in its optimizers, their base classes, and what these import."""
    found = suites()
    titles = ["matrix, apply", "matrix, fit", "TPU programs", "TPU replays"]

    def stale(file):
        monkeypatch.setattr(changes, "changed", lambda commit: {f"{file}::x"})
        return {t: sum(found[t].stale(part, ROW) for part in found[t].parts) for t in titles}

    everything = {title: len(found[title].parts) for title in titles}
    assert stale("tf_graft/core/pipeline/engine.py") == everything
    assert stale("tf_graft/optimizers/__init__.py") == everything
    group = {"matrix, apply": 10, "matrix, fit": 11, "TPU programs": 1, "TPU replays": 1}
    more = {"TPU replays": 2}  # with wrappers, of which it is not known what they reach
    assert stale("tf_graft/optimizers/yogi.py") == {t: n + more.get(t, 0) for t, n in group.items()}
    some = stale("tf_graft/optimizers/roots.py")  # of Shampoo and its relatives, in two groups
    assert some == {t: 2 * n + more.get(t, 0) for t, n in group.items()}
    assert reach.unreached(["shampoo", "unknown"]) == []


def test_a_file_of_tests_makes_only_parts_stale_that_run_it(monkeypatch):
    found = suites()

    def stale(path):
        monkeypatch.setattr(changes, "changed", lambda commit: {f"{path}::test_this"})
        suite = found["rare tests"]
        parts = [suite.parts[part] for part in suite.parts if suite.stale(part, ROW)]
        return parts, found["recordings"].stale("all", ROW)

    (part,), recordings = stale("tests/test_muon.py")
    assert "tests/test_muon.py" in part
    assert recordings
    (part,), recordings = stale("tests/test_cli.py")
    assert "tests/test_cli.py" in part
    assert not recordings
    assert len(stale("tests/support/samples.py")[0]) == len(found["rare tests"].parts)


def test_code_that_only_some_parts_reach_is_there():
    for name in (*ONLY_IN_MATRIX, *FILES, *SETTING, *ONLY_IN_CLUSTERS):
        path, _, defined = name.partition("::")
        code = changes.now(path)
        assert code
        assert not defined or defined in code, name


def test_uncommitted_files_are_found(repository, tmp_path):
    repository("x = 1\n")
    assert changes.uncommitted(["tf_graft"]) == []
    (tmp_path / "tf_graft" / "step.py").write_text("x = 2\n")
    (tmp_path / "tf_graft" / "new.py").write_text("")
    assert changes.uncommitted(["tf_graft"]) == ["tf_graft/step.py", "tf_graft/new.py"]


def test_the_ledger_is_read_as_it_was_written(tmp_path):
    path = tmp_path / "evidence.json"
    wrong = ROW._replace(wrong=["one", 'the "other"'])
    parts = ["0 to 49", "50 to 99", "100 to 149"]
    for part, row in (("0 to 49", ROW), ("50 to 99", wrong)):
        ledger = Ledger(path)
        ledger.enter("draws", "They are right.", parts)
        ledger.keep("draws", part, row)
    again = Ledger(path)
    assert again.row("draws", "0 to 49") == ROW
    assert again.row("draws", "50 to 99") == wrong
    assert again.row("draws", "100 to 149") is None
    again.enter("draws", "They are right.", parts[1:])
    again.write()
    content = json.loads(path.read_text())["draws"]
    assert (content["shows"], content["parts"]) == ("They are right.", 2)
    assert content["rows"].keys() == {"50 to 99"}


def test_what_is_missing_is_made_first_then_what_is_wrong_or_stale(tmp_path, repository):
    now = repository("x = 1\n")
    ledger = Ledger(tmp_path / "evidence.json")
    rows = {
        "right": ROW._replace(commit=now),
        "stale": ROW._replace(commit="0000000"),
        "wrong": ROW._replace(commit=now, wrong=["it"]),
        "no longer": ROW,
    }
    ledger.enter("draws", "", rows)
    for part, row in rows.items():
        ledger.keep("draws", part, row)
    parts = dict.fromkeys(["right", "stale", "wrong", "missing"], said("1 tried, 0 wrong"))
    found = state.State({"draws": Suite("", parts)}, (), ledger)
    assert found.to_make() == [("draws", name) for name in ("missing", "wrong", "stale")]
    header, line, wrong = found.table()
    assert header.split()[:6] == ["suite", "parts", "missing", "stale", "wrong", "tried"]
    assert line.split() == ["draws", "4", "1", "1", "1", "9", "0", "2026-11-27", "2026-11-27"]
    assert wrong == "WRONG  draws: wrong: it"
    assert found.wrong()


def test_each_suite_has_parts_that_differ():
    found = suites()
    assert set(found) >= {"matrix, apply", "matrix, fit", "draws", "kills of clusters"}
    for name, suite in found.items():
        made = {" ".join(arguments) for arguments in suite.parts.values()}
        drawn_at_random = 4 if name == "kills of clusters" else 1
        assert 0 < len(made) * drawn_at_random == len(suite.parts)
        assert all((changes.ROOT / path).exists() for path in suite.rests_on)
    assert len(found["kills of clusters"].parts) * 5 == 180
    assert not any("study" in path for path in found["draws"].rests_on)


def test_the_command_goes_on_where_it_was(tmp_path, monkeypatch, capsys, repository):
    from evidence import __main__ as command

    repository("x = 1\n")
    parts = {"one": said("2 tried, 0 wrong"), "two": said("WRONG  it\n2 tried, 1 wrong", 1)}
    few = {"draws": Suite("Right.", parts)}
    monkeypatch.setattr(command.suites, "suites", lambda jax: few)
    monkeypatch.setattr(command, "State", lambda *given: state.State(*given, Ledger(path)))
    path = tmp_path / "evidence.json"
    monkeypatch.setattr(sys, "argv", ["evidence", "--run", "--jobs", "2"])
    assert command.main() == 1
    lines = capsys.readouterr().out.splitlines()
    assert {"draws: one: 2 tried, 0 wrong", "draws: two: 2 tried, 1 wrong"} < {*lines}
    parts["two"] = said("2 tried, 0 wrong")
    assert command.main() == 0
    assert "draws: one" not in capsys.readouterr().out
    assert Ledger(path).row("draws", "two").wrong == []
    (tmp_path / "tf_graft" / "step.py").write_text("x = 2\n")
    with pytest.raises(SystemExit):
        command.main()
    assert "commit tf_graft/step.py first" in capsys.readouterr().err


@pytest.fixture
def signals():
    """The handlers of this process are as before afterwards."""
    before = {each: signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)}
    signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    for each, handler in before.items():
        signal.signal(each, handler)


def test_a_second_signal_leaves_no_process_behind(tmp_path, monkeypatch, repository, signals):
    from evidence import __main__ as command

    repository("x = 1\n")
    lives, kill = tmp_path / "lives", running.kill
    sleeps = f"open({str(lives)!r}, 'w').close(); import time; time.sleep(60)"
    suite = {"draws": Suite("Right.", {"one": ["-c", sleeps]})}
    ledger = Ledger(tmp_path / "evidence.json")
    monkeypatch.setattr(command.suites, "suites", lambda jax: suite)
    monkeypatch.setattr(command, "State", lambda *given: state.State(*given, ledger))
    monkeypatch.setattr(sys, "argv", ["evidence", "--run"])

    def interrupt():
        while not lives.exists():
            time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGINT)

    def interrupted_kill(process):
        os.kill(os.getpid(), signal.SIGTERM)
        kill(process)

    monkeypatch.setattr(running, "kill", interrupted_kill)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    threading.Thread(target=interrupt).start()
    assert command.main() == 0
    assert ledger.row("draws", "one") is None
    assert not subprocess.run(["pgrep", "-f", str(lives)], capture_output=True).stdout


def minor(version):
    return Version(version).release[:2]


def last_minor():
    """The minor version that was released before the one of this folder."""
    changelog = (changes.ROOT / "CHANGELOG.md").read_text("utf-8")
    released = re.findall(r"^## \[(\d+\.\d+\.\d+)\]", changelog, re.M)
    return max(each for each in map(minor, released) if each < minor(changes.version()))


def test_no_published_figure_is_older_than_the_last_minor_version():
    bench, *tpu = (
        json.loads((DATA / f"{name}.json").read_text("utf-8"))
        for name in ("bench", "tpu", "tpu_oldest")
    )
    machines = (bench["machine"], *bench["machines"].values(), *(each["measured"] for each in tpu))
    rows = [row for rows in Ledger().rows.values() for row in rows.values()]
    found = {*(machine["tf_graft"] for machine in machines), *(row.version for row in rows)}
    assert rows
    assert {version for version in found if minor(version) < last_minor()} == set()


def test_no_file_of_figures_is_older_than_the_last_minor_version():
    """Not every file names its version: it is that of the commit which last changed the file."""
    old = {}
    for path in DATA.glob("*.json"):
        try:
            commit = changes.git("log", "-1", "--format=%H", "--", str(path)).strip() or "HEAD"
            version = changes.version(commit)
        except changes.UnknownCommit:
            pytest.skip("there is no repository")
        if minor(version) < last_minor():
            old[path.name] = version
    assert old == {}
