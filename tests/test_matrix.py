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


def test_the_file_keeps_the_other_part(part, tmp_path):
    path = tmp_path / "matrix.json"
    path.write_text('{"model": {"every": 3}}')
    matrix.save(path, [part])
    content = json.loads(path.read_text())
    assert list(content) == ["apply", "model"]
    assert content["apply"]["optimizers"]["adam"]["options"]["plain"] == [0.123, "no 1"]
    assert '"plain": [ 0.123, "no 1" ]' in path.read_text()
