"""The benchmark: what it measures and notices, and the cost of a step as ratios within one run.

Bounds on time are loose: only the wrong cost breaks them.
"""

import contextlib
import functools
import gc
import io
import itertools
import json
import shlex
import signal
import subprocess
import sys
import types

import keras
import numpy as np
import pytest
import tensorflow as tf
from rich.console import Console
from typer.testing import CliRunner

from benchmarks import (
    areas,
    command,
    fit,
    floor,
    given,
    growth,
    optimizers,
    peers,
    process,
    results,
    rows,
    run,
    sheets,
    training,
    turns,
)
from benchmarks.__main__ import app
from benchmarks.cases import Candidate, Case, Choice
from support import forked

ALL_INSTALLED = {package: "1.0" for names in peers.NEEDED.values() for package in names}
PACE = turns.Pace(least=4, most=4, seconds=0, firsts=2, first_seconds=1e9)


@pytest.fixture(autouse=True)
def _leaves_no_tables(request, monkeypatch):
    """Few objects, and a gigabyte; a quick test has small ones, and looks at no others' objects."""
    quick = not {"slow", "rare"} & {mark.name for mark in request.node.iter_markers()}
    if quick:
        monkeypatch.setattr(turns, "gc", types.SimpleNamespace(collect=lambda: None))
    yield
    if not quick:
        gc.collect()


@pytest.fixture
def small(monkeypatch):
    """A ResNet-50 of two tensors, and a bandwidth that is measured at once."""
    monkeypatch.setattr(given, "resnet", lambda: ((64, 8), (3,)))
    monkeypatch.setattr(floor, "SIZE", 1000)
    monkeypatch.setattr(floor, "MOVED", 12_000)
    monkeypatch.setattr(run, "warm_up", lambda: None)


class Clock:
    """Time that passes when a step says so."""

    def __init__(self):
        self.now, self.speed, self.order = 0.0, 1.0, []

    def __call__(self):
        return self.now

    def candidate(self, name, seconds, moves=(1, 1), fails_at=None, skips=0):
        """Prepares two weights; a step after the skipped ones moves them, and one of them fails."""
        weights = [np.zeros(2), np.zeros(3)]
        count = itertools.count()

        def step():
            number = next(count)
            if number == fails_at:
                raise ValueError("no such luck\nat all")
            self.order.append(name)
            self.now += seconds * self.speed
            self.speed *= 1.5
            for weight, move in zip(weights, moves, strict=True):
                weight += move if number >= skips else 0

        return Candidate(lambda: step, lambda: weights)


@pytest.fixture
def clock(monkeypatch):
    made = Clock()
    monkeypatch.setattr(turns, "clock", made)
    return made


def measured(clock, **candidates):
    makers = {
        name: functools.partial(clock.candidate, name, **given)
        for name, given in candidates.items()
    }
    return turns.measure("fit", Case("a case", makers), PACE)


def test_candidates_take_turns_and_ratios_are_of_one_turn(clock):
    """The machine slows down with every step; a ratio of medians would not be the same."""
    result = measured(clock, ours={"seconds": 0.1}, stock={"seconds": 0.2})
    assert clock.order == ["ours", "stock"] * (len(clock.order) // 2)
    assert {len(samples) for samples in result.steps.values()} == {4}
    assert {len(samples) for samples in result.firsts.values()} == {2}
    spread = result.compared("step", "stock", "ours")
    np.testing.assert_allclose(spread[:5], 2 * 1.5)
    assert spread.turns == 4
    np.testing.assert_allclose(np.diff(np.log(result.steps["ours"])), 2 * np.log(1.5))


@pytest.mark.parametrize(
    ("broken", "says"),
    [
        ({"moves": (0, 1)}, "RuntimeError: an update did not move the weights"),
        ({"moves": (1, 0)}, "RuntimeError: 1 of 2 weights did not move"),
        ({"fails_at": 0}, "ValueError: no such luck"),
        ({"fails_at": 5}, "ValueError: no such luck"),
    ],
)
def test_a_candidate_that_does_nothing_or_fails_is_named_and_the_others_stay(broken, says, clock):
    result = measured(clock, ours={"seconds": 0.1}, stock={"seconds": 0.2, **broken})
    assert result.errors == {"stock": says}
    assert list(result.steps) == list(result.firsts) == ["ours"]
    assert len(result.steps["ours"]) == 4
    (sheet, _) = sheets.sheets([result])
    assert sheet.header == ["ours", "stock", "ours / stock"]
    assert sheet.rows[0][2:] == ["failed", "-"]
    assert sheet.notes == [f"a case, stock: {says}"]


def test_a_first_call_is_timed_in_parts(clock):
    def traced():
        clock.now += 0.3

    def candidate():
        return clock.candidate("ours", 0.1)._replace(trace=traced)

    result = turns.measure("first", Case("Adam", {"ours": candidate}), turns.ONCE)
    assert result.firsts == {"ours": [pytest.approx(0.4)]}
    assert result.builds == {"ours": [0]}
    assert result.traces == {"ours": [pytest.approx(0.3)]}
    assert [figure["quantity"] for figure in results._figures(result)] == [
        "first call",
        "build",
        "trace",
    ]


@pytest.mark.slow
def test_a_first_call_is_measured_with_grappler_and_without(small, monkeypatch):
    options, off = tf.config.optimizer.get_experimental_options, []

    def make():
        made = optimizers.PLAIN["Adam"].ours()
        apply = made.apply

        @functools.wraps(apply)
        def looking(*args):
            tf.py_function(lambda: off.append(options().get("disable_meta_optimizer")), [], [])
            return apply(*args)

        made.apply = looking
        return made

    monkeypatch.setitem(optimizers.OPTIMIZERS, "Adam", optimizers.Named(make, None, 3))
    cases = {case.name: case for case in given.first(Choice())}
    assert {"Adam", "LAMB", "XLA: Adam"} <= cases.keys()
    result = turns.measure("first", cases["Adam"], turns.ONCE)
    assert result.errors == {}
    assert result.traces.keys() == {"ours", "ours, as traced"}
    turn = [False, True]  # in order: with Grappler's passes, then without
    assert [bool(o) for o in off] == turn * (len(off) // 2)
    assert len(off) >= 6
    assert not options().get("disable_meta_optimizer")


def test_the_turns_begin_once_an_update_is_not_skipped(clock):
    """A loss scale may begin too large for the first gradients."""
    result = measured(clock, ours={"seconds": 0.1}, stock={"seconds": 0.2, "skips": 7})
    assert not result.errors
    assert {len(samples) for samples in result.steps.values()} == {4}


def test_an_area_that_cannot_be_made_leaves_the_others(monkeypatch, small):
    def broken(_):
        raise MemoryError("no memory for its tables")

    monkeypatch.setattr(given, "tables", broken)
    said = []
    done = list(run.run(["tables", "dense"], Choice(only=("LARS",)), turns.ONCE, said.append))
    assert [m.area for m in done] == ["tables", "dense"]
    assert done[0].errors == {"all": "MemoryError: no memory for its tables"}
    assert done[1].steps.keys() == {"ours"}
    assert not done[1].errors
    assert said == ["dense, 1 of 1: LARS"]


def test_libraries_that_are_not_installed_are_said_and_not_measured(monkeypatch):
    monkeypatch.setattr(peers, "_versions", lambda _: {"jax": "1.0"})
    assert peers.candidates("Adam", [(2,)], 1) == {}
    assert list(peers.on_table("Adam", 10**4, beside=True)) == ["ours", "stock"]
    assert peers.missing() == [
        "torch is not installed, and is not measured: pip install torch.",
        "fbgemm is not installed, and is not measured: pip install fbgemm-gpu-cpu torch.",
        "optax is not installed, and is not measured: pip install optax jax.",
    ]
    monkeypatch.setattr(peers, "_versions", lambda _: ALL_INSTALLED)
    assert list(peers.candidates("Adam", [(2,)], 1)) == ["torch", "optax"]
    assert peers.missing() == []


@pytest.mark.parametrize(
    ("name", "rows", "others"),
    [
        ("Adam", 10**6, ["torch", "optax"]),
        ("Adagrad", 10**6, ["torch", "fbgemm", "optax"]),
        ("Adagrad", 10**7, ["torch", "fbgemm"]),  # optax goes through the whole table
    ],
)
def test_a_table_is_given_to_the_libraries_that_have_the_optimizer(name, rows, others, monkeypatch):
    monkeypatch.setattr(peers, "_versions", lambda _: ALL_INSTALLED)
    assert list(peers.on_table(name, rows, beside=True)) == ["ours", "stock", *others]
    assert list(peers.on_table(name, rows, beside=False)) == ["ours", "stock"]


ANOTHER_PYTHON = """#!/bin/sh
if [ "$1" = -c ]
then echo '{"torch": "9.8", "fbgemm-gpu-cpu": "7.6"}'
else echo '{"error": "another Python runs '"$2"'"}'
fi
"""


def test_the_libraries_may_be_installed_for_another_python(monkeypatch, tmp_path):
    python = tmp_path / "python"
    python.write_text(ANOTHER_PYTHON)
    python.chmod(0o755)
    monkeypatch.setenv(peers.PYTHON, str(python))
    assert [sentence.split()[0] for sentence in peers.missing()] == ["optax"]
    assert results.machine().items() >= {"torch": "9.8", "fbgemm-gpu-cpu": "7.6"}.items()
    with pytest.raises(RuntimeError, match=r"another Python runs benchmarks\.peer"):
        peers.on_table("RowWiseAdagrad", 10**4, beside=True)["fbgemm"]()


WITHOUT_TENSORFLOW = """
import sys
sys.modules.update(dict.fromkeys(["tf_graft", "keras", "tensorflow"]))
import benchmarks.peer
"""


@pytest.mark.slow
def test_another_library_needs_neither_tensorflow_nor_this_package():
    subprocess.run([sys.executable, "-c", WITHOUT_TENSORFLOW], cwd=process.ROOT, check=True)


@pytest.mark.slow
def test_a_table_is_measured_in_processes_with_their_memory(small_process):
    tables = peers.on_table("Adagrad", 10_000, beside=False)
    result = turns.measure("sizes", Case("10,000 rows, Adagrad", tables), PACE)
    assert not result.errors
    assert result.steps.keys() == result.peaks.keys() == {"ours", "stock"}
    (sheet,) = (sheet for sheet in sheets.sheets([result]) if "peak memory, MB" in sheet.title)
    assert sheet.header == ["ours", "stock", "ours / stock"]
    assert all(float(text) > 1 for text in sheet.rows[0][1:3])


@pytest.mark.rare
@pytest.mark.parametrize("area", ["dense", "sizes"])
def test_a_library_is_asked_in_a_process_of_its_own_and_answers_its_errors(area, monkeypatch):
    monkeypatch.setattr(peers, "_versions", lambda _: ALL_INSTALLED)
    made = {
        "dense": peers.candidates("Adagrad", [(3,), (2, 2)], 1),
        "sizes": peers.on_table("Adagrad", 100, beside=True),
    }[area]
    others = {name: make for name, make in made.items() if name in peers.NEEDED}
    result = turns.measure(area, Case("Adagrad", others), PACE)
    monkeypatch.undo()
    for library in others:
        if library in result.errors:
            assert "ModuleNotFoundError: No module named" in result.errors[library]
            assert not peers._installed(library)
        else:
            assert len(result.steps[library]) == PACE.least


def test_the_floor_counts_what_an_optimizer_holds():
    assert optimizers.OPTIMIZERS["Adam"].moved(1000) == 4000 * (1 + 2 * 3)
    assert optimizers.OPTIMIZERS["Adam, accumulation"].moved(1000) == 4000 * (2 + 2 * 4)
    for name, named in optimizers.OPTIMIZERS.items():
        weights = tf.Variable(tf.ones([16, 64], named.dtype))
        optimizer = named.ours()
        optimizer.build([weights])
        held = sum(int(np.prod(v.shape)) for v in optimizer.variables if len(v.shape) == 2)
        own = 0 if named.dtype == "bfloat16" else 1  # its masters are among the variables
        assert held / 1024 + own == named.state, name
        assert (optimizer.gradient_accumulation_steps or 1) == named.calls, name


@pytest.mark.slow
def test_the_command_writes_figures_and_draws_them(small, tmp_path):
    files = {name: tmp_path / f"bench.{name}" for name in ("json", "png")}
    options = ["--quick", "--first-calls", "2"]
    options += ["--output", str(files["json"]), "--plot", str(files["png"])]
    done = CliRunner().invoke(app, ["dense", "--only", "rmsprop", *options])
    assert done.exit_code == 0, done.output
    assert done.stderr == "dense, 1 of 1: RMSprop\n"
    assert files["png"].read_bytes().startswith(b"\x89PNG")
    content = json.loads(files["json"].read_text())
    assert content["machine"].keys() >= {"processor", "cores", "python", "tensorflow", "date"}
    figures = {(f["candidate"], f["quantity"]): f for f in content["figures"]}
    candidates = ("ours", "stock", "unchecked")
    assert figures.keys() == {
        *itertools.product(candidates, ("step", "first call")),
        ("floor", "step"),
    }
    for (candidate, quantity), figure in figures.items():
        assert (figure["area"], figure["case"]) == ("dense", "RMSprop")
        assert figure["unit"] == {"step": "ms", "first call": "s"}[quantity]
        order = ("least", "lower_quartile", "median", "upper_quartile", "most")
        assert sorted(figure[key] for key in order) == [figure[key] for key in order]
        assert figure["least"] > 0
        assert figure["turns"] == (2 if quantity == "first call" else 10)
        assert ("of_floor" in figure) == (quantity == "step" and candidate != "floor")
        assert ("of_stock" in figure) == (candidate != "floor")
    assert figures["stock", "step"]["of_stock"]["most"] == 1


def test_the_command_refuses_what_it_cannot_do(small, tmp_path):
    command = functools.partial(CliRunner().invoke, app)
    for arguments, says in (
        (["dens"], "there is no area 'dens'"),
        (["dense", "--only", "Ftrl"], "no case of dense has one of ['Ftrl'] in its name"),
        (["dense", "--plot", "a.pdf"], "a.pdf must end in .png"),
    ):
        done = command(arguments)
        assert done.exit_code == 2
        assert done.stdout == ""
        assert says in " ".join(done.stderr.replace("│", "").split())
    (tmp_path / "file").write_text("")
    done = command(["dense", "--output", str(tmp_path / "file" / "a.json")])
    assert done.exit_code == 1
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("lost", [False, True])
def test_ctrl_c_leaves_what_was_measured(lost, monkeypatch, clock, tmp_path, request):
    def interrupted(*_):
        if not lost:
            yield measured(clock, ours={"seconds": 0.1}, stock={"seconds": 0.2})
        with contextlib.suppress(*[KeyboardInterrupt] * lost):
            signal.raise_signal(signal.SIGINT)
        yield measured(clock, ours={"seconds": 0.1}, stock={"seconds": 0.2})
        raise AssertionError("it goes on")

    monkeypatch.setattr(command, "run", interrupted)

    def ends_the_process(*_):
        """What a command does at Ctrl-C elsewhere."""

    before = signal.signal(signal.SIGINT, ends_the_process)
    request.addfinalizer(lambda: signal.signal(signal.SIGINT, before))
    done = CliRunner().invoke(app, ["fit", "--output", str(tmp_path / "a.json")])
    assert done.exit_code == 130
    assert signal.getsignal(signal.SIGINT) is ends_the_process
    assert "a case" in done.stdout
    assert done.stderr.endswith("Interrupted; this is what was measured.\n")
    assert len(json.loads((tmp_path / "a.json").read_text())["figures"]) == 4


def fabricated(area, case):
    """What a case of an area may look like, with the longest figures there are."""
    names = areas.AREAS[area].columns
    steps = {name: [123.4, 1234.5, 2345.6] for name in names}
    floors = [12.3, 45.6, 78.9] if "unchecked" in names else []
    once = {name: [12.34] for name in names}
    return results.Measured(area, case, steps, once, {}, floors, once, once, once)


def test_tables_fit_a_terminal_and_a_case_is_one_line():
    name = "Adam, global_clipnorm"
    for area, its in areas.AREAS.items():
        made = sheets.sheets([fabricated(area, name)])
        assert len(made) == len(its.quantities)
        for sheet in made:
            text = io.StringIO()
            Console(file=text, width=80).print(sheets.rich(sheet))
            lines = text.getvalue().splitlines()
            assert "…" not in text.getvalue()
            assert sum(line.startswith(name) for line in lines) == 1
            assert sheet.rows[0][-1] == "1.00"
            assert sheets.markdown(sheet).splitlines()[2].startswith(f"| {name} | ")


def test_pages_can_tell_every_published_figure():
    """Also one that could not be measured."""
    published = json.loads((process.ROOT / "docs/data/bench.json").read_text())["figures"]
    keys = {"area", "case", "candidate", "quantity", "unit"}
    assert [figure for figure in published if not keys <= figure.keys()] == []


def test_a_failure_is_a_figure_like_the_others(clock):
    result = measured(clock, ours={"seconds": 0.1}, stock={"seconds": 0.2, "fails_at": 0})
    keys = {"area", "case", "candidate", "quantity", "unit"}
    figures = results._figures(result)
    assert [figure["candidate"] for figure in figures if "error" in figure] == ["stock"]
    assert all(keys <= figure.keys() for figure in figures)


def tiny():
    """A model with a table that is trained in no time."""

    def model():
        layers = [keras.layers.Embedding(20, 4), keras.layers.Flatten(), keras.layers.Dense(1)]
        return keras.Sequential([keras.Input((2,), dtype="int64"), *layers])

    def examples():
        return np.arange(16).reshape(8, 2), np.ones([8, 1], "float32")

    return training.Task(model, examples, 4, "mse")


@pytest.mark.slow
@pytest.mark.parametrize("area", ["fit", "half", "fit-xla", "wrappers"])
def test_every_case_of_fit_trains(area, monkeypatch):
    monkeypatch.setattr(fit, "MODELS", {"Transformer": tiny})
    every = areas.AREAS[area].of(Choice())
    done = [
        turns.measure(area, case, turns.ONCE)
        for case in every
        if "Ada" in case.name or area != "fit"
    ]
    assert len(done) >= 3
    for result in done:
        assert not result.errors, result
        assert result.steps.keys() == {"ours", "stock"}


@pytest.mark.slow
def test_every_kind_of_work_grows(monkeypatch):
    """The least amounts: the largest take minutes, and several replicas another process."""
    monkeypatch.setattr(growth, "COUNT", 10)
    every = [*areas.AREAS["growth"].of(Choice())]
    for unit, kind in growth.KINDS.items():
        assert list(kind.amounts) == sorted(kind.amounts)
        least = next(case for case in every if case.name.endswith(f" {unit}"))
        result = turns.measure("growth", least, turns.ONCE)
        assert not result.errors
        assert result.steps.keys() == ({"ours", "stock"} if kind.stock else {"ours"})


ITS_TABLES_SMALL = """
import runpy, sys
from benchmarks import models
models.ROWS, sys.argv = 1000, sys.argv[2:]
runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
"""


@pytest.fixture
def small_process(monkeypatch, tmp_path):
    """The process that a benchmark starts is forked, and has small tables."""
    program = tmp_path / "python"
    command = shlex.join([forked.python(), "-c", ITS_TABLES_SMALL])
    program.write_text(f'#!/bin/sh\nexec {command} "$@"\n')
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))


@pytest.mark.rare
def test_replicas_are_measured_in_a_process_that_may_die(small_process):
    choice = Choice(only=("Embeddings, Adam",))
    (result,) = run.run(["replicas"], choice, turns.ONCE, print)
    assert not result.errors
    assert result.steps.keys() == {"ours", "stock"}
    (result,) = run.run(["replicas"], choice, ("no pace",), print)
    assert result.errors == {"all": "its process ended with code 1"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "options"),
    [("SGD, momentum", {}), ("Adam", rows.ALL_ON), ("AdaGraft", rows.ALL_ON), ("AGN of Adam", {})],
    ids=str,
)
def test_a_row_sparse_step_costs_what_its_rows_cost(name, options):
    make = functools.partial(rows.EVERY[name], **options)
    pace = turns.Pace(least=15, most=15, seconds=0, firsts=1, first_seconds=0)
    result = turns.measure("rows", rows.of(name, make, None, rows=200_000), pace)
    # The table is 20 times the small one; a step that followed it would be far above 3.
    assert result.compared("step", "large", "small").median < 3, result


@pytest.mark.slow
def test_a_row_sparse_step_beats_one_that_follows_the_table():
    stock = optimizers.PLAIN["Adam"].stock
    case = rows.of("Adam", rows.EVERY["Adam"], stock, rows=400_000)
    result = turns.measure("rows", case, turns.QUICK)
    # It would be about as long, if it followed the table; it is 11 to 25 times shorter.
    assert result.compared("step", "stock", "large").median > 5, result


@pytest.mark.rare
def test_a_dense_step_is_faster_than_stock_and_traced_no_slower():
    names = ("SGD, momentum", "Adam")
    cases_ = [given.on(given.resnet(), name, unchecked=True) for name in names]
    measured = [turns.measure("dense", case, turns.QUICK) for case in cases_]

    def of_all(quantity, name):
        """One of them alone, of a step or two, is at the mercy of what else the machine does."""
        return sum(results.Spread.of(m.samples(quantity)[name]).median for m in measured)

    assert of_all("step", "stock") > 1.2 * of_all("step", "unchecked"), measured
    assert of_all("step", "stock") > of_all("step", "ours"), measured
    # A trace is timed once only; twice the work would still show.
    assert of_all("first call", "unchecked") < 1.5 * of_all("first call", "stock"), measured
