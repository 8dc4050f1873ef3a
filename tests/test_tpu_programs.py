"""Programs for TPUs (see `tpu`): what is lowered, and what the TPU's compiler makes of it."""

import argparse
import functools
import json
import os
import subprocess
import sys

import keras
import pytest

from support import cells, column_runs, samples
from tpu import checks, exceptions, hlo_text, programs, run
from tpu.asking import has_jax
from tpu.lowering import Step

PYTHON = os.environ.get("TPU_COMPILER_PYTHON", sys.executable)  # one that has jax and libtpu


@functools.cache
def lowered(name, **how):
    make = functools.partial(samples.BY_NAME[name].make, name="optimizer")
    return Step(make, cells.weights(), **how).lowered("hlo")


@pytest.mark.parametrize(
    ("name", "replicas", "dense", "sums"),
    [
        ("adam", 4, False, checks.SUMMED["rows"]),
        ("adam", 1, False, 0),
        ("sgd", 4, True, checks.SUMMED["dense"]),
    ],
)
def test_a_lowered_step_writes_all_state_in_place(name, replicas, dense, sums):
    text = lowered(name, replicas=replicas, dense=dense)
    slots = len(samples.BY_NAME[name].slots)
    assert hlo_text.not_aliased(text) == []
    assert len(hlo_text.aliases(text)) >= (1 + slots) * len(cells.SHAPES) + 1  # and the counter
    assert hlo_text.sums(text) == sums


def test_notices_a_sum_left_out():
    text = lowered("adam", replicas=4, control="a sum left out")
    assert hlo_text.sums(text) == checks.SUMMED["rows"] - 1


def test_notices_a_result_that_is_not_in_place():
    text = lowered("adam", replicas=1, dense=False)
    assert hlo_text.not_aliased(text.replace("{0}: (", "{99}: (", 1)) == [0]


TEXT = """HloModule m, input_output_alias={ {0}: (1, {}, may-alias) }, entry_computation_layout={\
(s64[2]{0}, f32[6,4]{1,0:T(8,128)})->(f32[6,4]{1,0:T(8,128)}, pred[])}, replica_count=4

ENTRY %main {
  %copy.1 = f32[6,4]{1,0:T(8,128)} copy(%p.1)
  %copy-start.2 = (f32[600,4]{1,0}, f32[600,4]{1,0:S(1)}, u32[]) copy-start(%p.2)
  %copy-start.3 = (f32[700,4]{1,0:T(8,128)S(1)}, f32[700,4]{1,0}, u32[]) copy-start(%p.2)
  %all-reduce.3 = (f32[4,2,4]{2,1,0}, s32[4,2]{1,0}) all-reduce(%a, %b), to_apply=%add
  %all-reduce.4 = f32[] all-reduce(%c), to_apply=%add
}
"""


def test_a_text_is_read():
    assert hlo_text.signature(TEXT) == (
        [("s64", (2,)), ("f32", (6, 4))],
        [("f32", (6, 4)), ("pred", ())],
    )
    assert hlo_text.aliases(TEXT) == {0: 1}
    assert hlo_text.not_aliased(TEXT) == [1]
    assert hlo_text.copies(TEXT, 24) == ["f32[6, 4]", "f32[600, 4]"]
    assert hlo_text.copies(TEXT, 25) == ["f32[600, 4]"]
    assert (hlo_text.all_reduces(TEXT), hlo_text.sums(TEXT)) == (2, 3)


# What must hold, on figures that are made up.

ADAM = programs.Program("adam", replicas=4)
RIGHT = {
    "results": 3,
    "not_aliased": [],
    "copies": [],
    "temporary": 1 << 20,
    "accessed": 1 << 24,
    "sums": checks.SUMMED["rows"],
}


@pytest.mark.parametrize(
    ("wrong", "check"),
    [
        ({"error": "XlaRuntimeError: no"}, "compiles"),
        ({"not_aliased": [2]}, "aliased"),
        ({"copies": ["f32[400000, 128]"]}, "copies"),
        ({"temporary": 400_000 * 128 * 4}, "temporary"),
        ({"accessed": 1 << 26}, "rows"),  # of the smaller table they are the same as before
        ({"sums": 4}, "sums"),
    ],
)
def test_each_check_notices(wrong, check):
    assert checks.judged(ADAM, RIGHT, RIGHT) == ({}, {})
    found, known = checks.judged(ADAM, RIGHT | wrong, RIGHT)
    assert ([*found], known) == ([check], {})


def test_an_exception_is_one_as_long_as_it_is(monkeypatch):
    known = exceptions.Known("^adam; ", {"copies"}, "a reason")
    monkeypatch.setattr(checks, "EXCEPTIONS", (known,))
    wrong, excepted = checks.judged(ADAM, RIGHT | {"copies": ["f32[1]"]}, RIGHT)
    assert (wrong, excepted) == ({}, {"a reason": ["copies as large as the table: 1"]})
    wrong, _ = checks.judged(ADAM, RIGHT, RIGHT)
    assert "no longer" in wrong["copies"]


def test_every_optimizer_and_wrapper_has_programs():
    rows = programs.rows_of()
    assert {sample for sample, _, _ in rows} == set(samples.BY_NAME)
    assert {how for _, _, how in rows} >= {None, *programs.WRAPPED["adam"]}
    assert len({p.name for p in programs.programs(rows)}) == 4 * len(rows)


@pytest.mark.skipif(
    not hasattr(keras.optimizers, "ScheduleFreeAdamW"),
    reason="the exceptions are those of Keras 3.15's optimizers",
)
def test_every_exception_is_of_a_program():
    every = programs.programs(programs.rows_of())
    assert all(any(known.is_of(program) for program in every) for known in exceptions.EXCEPTIONS)


def test_names_that_are_nowhere_are_told():
    given = argparse.Namespace(samples=["adam", "nobody", "agn"], options=None, wrapped=["agn"])
    assert run.unknown_names(given) == ["nobody"]


def test_what_is_written_is_json_with_a_line_for_each_name():
    content = {"measured": {"jax": "1"}, "programs": {"a": {"known": {"b": ["c"]}}, "d": {}}}
    text = run.written(content)
    assert json.loads(text) == content
    assert len(text.splitlines()) == 2 + 3 + 4


@pytest.mark.slow
def test_some_programs_compile_and_replay(tmp_path):
    """And those that are broken on purpose are noticed."""
    if not has_jax(PYTHON):
        pytest.skip("jax and libtpu are not here: pip install 'tf_graft[tpu-compiler]'")
    output = tmp_path / "tpu.json"
    command = [sys.executable, column_runs.TESTS / "tpu", "--jax", PYTHON, "--output", output]
    limits = ["--samples", "adam", "--options", "plain", "--chips", "4"]
    said = column_runs.run_alone([*map(str, command), *limits], column_runs.SECONDS)
    assert " 0 wrong." in said
    found = json.loads(output.read_text())
    assert found["replays"]["adam, plain"]["error"] <= 1
    assert set(found["controls"]) >= set(programs.CONTROLS)


def test_without_jax_the_command_says_what_to_install(tmp_path):
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\nexit 1\n")
    python.chmod(0o755)
    command = [sys.executable, column_runs.TESTS / "tpu", "--jax", python]
    said = subprocess.run(command, capture_output=True, text=True)
    assert said.returncode == 2
    assert "pip install 'tf_graft[tpu-compiler]'" in said.stderr
