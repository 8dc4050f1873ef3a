"""The stages of `.ci/run`, and tests that hang: all end in time, and say where they were."""

import os
import re
import subprocess
import textwrap
from pathlib import Path

import pytest

from support import column_runs

ROOT = Path(__file__).parents[1]
STAGES = """
    source .ci/stages
    good() { echo fine; }
    bad() { echo broken; false; echo unseen; }
    hung() { echo waiting; sleep 60 & sleep 60; }
    export -f good bad hung
    for stage in bad hung good; do begin $stage 1s; test -e "$logs/$stage"; done
    for stage in bad hung good; do finish $stage "Title of $stage"; done
    verdict
"""


@pytest.mark.slow
def test_a_stage_that_fails_or_hangs_stops_no_other(tmp_path):
    said = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", textwrap.dedent(STAGES)],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env=os.environ | {"logs": str(tmp_path), "LC_ALL": "C"},
        timeout=60,
    )
    assert said.returncode == 1, said.stderr
    shown, summary = re.sub(r" \(\d+s\)", "", said.stdout).split("\n== FAILED: bad", 1)
    assert shown == (
        "\n== Title of bad\nbroken\n"
        "\n== Title of hung\nwaiting\ntimeout: sending signal TERM to command 'bash'\n"
        "\n== Title of good\nfine\n"
    )
    assert summary == (
        ". The last lines of its output:\nbroken\n"
        "\n== FAILED: hung. The last lines of its output:\nwaiting\n"
        "timeout: sending signal TERM to command 'bash'\n"
        "\n== 2 stages failed: bad hung\n"
    )


@pytest.mark.slow
def test_a_test_that_hangs_ends_with_its_stack():
    case = ROOT / "tests/programs/hanging_cases.py"
    options = ["-n", "0", "-p", "no:cacheprovider", "--timeout=1"]
    said = subprocess.run(
        column_runs.program("pytest", *options, case),
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=60,
    )
    assert said.returncode == 1
    assert "Timeout (0:00:01)!" in said.stderr
    assert 'hanging_cases.py", line 7 in test_hangs' in said.stderr


@pytest.mark.slow
def test_a_slow_test_may_take_longer(request):
    assert request.node.get_closest_marker("timeout").args == (300,)
    assert request.config.getini("timeout") == "120"
