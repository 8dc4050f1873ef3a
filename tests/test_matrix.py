"""What `matrix.py` makes of cells: its tables, and the file that the site shows."""

import json

import pytest

import matrix

KNOWN = "AGN.round: a round on a worker of parameter servers keeps no loss scale; give it none."


@pytest.fixture
def part():
    """One optimizer, of whose executions two were run."""
    part = matrix.Part("apply", ["adam"], options=["plain", "accumulation"])
    for option, column, error, refusal in (
        ("plain", "eager", 0.1234, ""),
        ("accumulation", "eager", 0.5, ""),
        ("plain", "function", None, KNOWN),
        ("accumulation", "function", None, KNOWN),
    ):
        line = {"error": error, "refusal": refusal}
        part.cells["adam", option, column] = line
    part.columns = ["eager", "function"]
    part.dates = {"eager": "2026-11-22", "function": "2026-11-22"}
    return part


def test_a_cell_is_an_error_or_a_numbered_refusal(part):
    assert part.row("adam", "plain") == [0.123, "no 1"]
    assert part.reasons == [KNOWN]
    assert [part.worst("adam", column) for column in part.columns] == ["0.50", "no 1"]
    assert (part.count(), part.wrong()) == (4, 0)


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ({"error": 1.01, "refusal": ""}, "**1.01**"),
        ({"error": float("nan"), "refusal": ""}, "**nan**"),
        ({"error": None, "refusal": "RuntimeError: it broke"}, "**no 1**"),
        (None, "**None**"),
    ],
)
def test_what_is_wrong_is_counted_and_shown(part, line, text):
    part.cells["adam", "plain", "eager"] = line
    assert part.wrong() == 1
    assert part.worst("adam", "eager") == text


def test_the_file_keeps_the_other_part_and_other_columns(part, tmp_path):
    path = tmp_path / "matrix.json"
    path.write_text('{"model": {"every": 3}}')
    matrix.save(path, [part])
    assert '"plain": [ 0.123, "no 1" ]' in path.read_text()
    later = matrix.Part("apply", ["adam"], options=["plain", "accumulation"])
    later.columns = ["eager", "xla"]
    refused = {"error": None, "refusal": "another reason"}
    for option in later.options:
        later.cells["adam", option, "eager"] = {"error": 0.25, "refusal": ""}
        later.cells["adam", option, "xla"] = refused
    later.dates = {"eager": "2026-11-23", "XLA": "2026-11-23"}
    matrix.save(path, [later])
    content = json.loads(path.read_text())
    assert list(content) == ["apply", "model"]
    part = content["apply"]
    assert part["columns"] == ["eager", "function", "XLA"]
    assert part["dates"]["function"] == "2026-11-22"
    assert part["dates"]["eager"] == "2026-11-23"
    assert part["optimizers"]["adam"]["options"]["plain"] == [0.25, "no 2", "no 1"]
    assert part["refusals"] == ["another reason", KNOWN]
    assert (part["cells"], part["wrong"]) == (6, 2)


def test_other_rows_take_the_place_of_those_in_the_file(part, tmp_path):
    path = tmp_path / "matrix.json"
    matrix.save(path, [part])
    other = matrix.Part("apply", ["adam"], options=["plain"])
    other.columns = ["xla"]
    other.cells["adam", "plain", "xla"] = {"error": 0.5, "refusal": ""}
    other.dates = {"XLA": "2026-11-23"}
    matrix.save(path, [other])
    content = json.loads(path.read_text())["apply"]
    assert (content["columns"], content["cells"]) == (["XLA"], 1)
