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
    assert (part.count(), part.wrong()) == (4, [])


@pytest.mark.parametrize(
    ("line", "text", "said"),
    [
        ({"error": 1.01, "refusal": ""}, "**1.01**", "1.01"),
        ({"error": float("nan"), "refusal": ""}, "**nan**", "nan"),
        (
            {"error": None, "refusal": "RuntimeError: it broke"},
            "**no 1**",
            "RuntimeError: it broke",
        ),
        (None, "**None**", "None"),
    ],
)
def test_what_is_wrong_is_listed_and_shown(part, line, text, said):
    part.cells["adam", "plain", "eager"] = line
    assert part.wrong() == [f"adam, plain, eager: {said}"]
    assert part.worst("adam", "eager") == text


def test_the_file_keeps_the_other_part_and_other_cells(part, tmp_path):
    path = tmp_path / "matrix.json"
    matrix.save(path, [part])
    later = matrix.Part("apply", ["adam", "lars"], options=["plain"])
    later.columns = ["eager", "xla"]
    refused = {"error": None, "refusal": "another reason"}
    for name in later.names:
        later.cells[name, "plain", "eager"] = {"error": 0.25, "refusal": ""}
        later.cells[name, "plain", "xla"] = refused
    model = matrix.Part("model", ["adam"], options=["plain"])
    model.cells["adam", "plain", "tpu"] = {"error": None, "refusal": ""}
    matrix.save(path, [later, model])
    content = json.loads(path.read_text())
    assert content["model"]["optimizers"]["adam"]["options"] == {"plain": ["traced"]}
    part = content["apply"]
    assert part["columns"] == ["eager", "function", "XLA"]
    assert part["optimizers"]["adam"]["options"] == {
        "plain": [0.25, "no 1", "no 2"],
        "accumulation": [0.5, "no 1", None],
    }
    assert part["optimizers"]["lars"]["options"] == {
        "plain": [0.25, None, "no 2"],
        "accumulation": [None, None, None],
    }
    assert part["refusals"] == [KNOWN, "another reason"]
    assert part["wrong"] == 2  # the cells with the unknown reason
    assert content["model"]["wrong"] == 0
    assert '"plain": [ 0.25, "no 1", "no 2" ]' in path.read_text()


def test_the_file_loses_rows_that_are_no_longer_in_the_table(part, tmp_path):
    path = tmp_path / "matrix.json"
    matrix.save(path, [part])
    path.write_text(path.read_text().replace('"adam"', '"an_old_one"'))
    other = matrix.Part("apply", ["lars"], options=["plain"])
    other.columns = ["eager"]
    other.cells["lars", "plain", "eager"] = {"error": 0.5, "refusal": ""}
    matrix.save(path, [other])
    assert list(json.loads(path.read_text())["apply"]["optimizers"]) == ["lars"]
