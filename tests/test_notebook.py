"""The start page as a notebook: made of the page as it is now, and as Jupyter shows it."""

import importlib.util
import json
from pathlib import Path

import pytest

pytest.importorskip("jupytext", reason="jupytext, which reads the page, is not installed")

SCRIPT = Path(__file__).parents[1] / "docs" / "make_notebook.py"
SPEC = importlib.util.spec_from_file_location("make_notebook", SCRIPT)
made = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(made)


def test_is_up_to_date():
    assert made.NOTEBOOK.read_text("utf-8") == made.text(), "run python docs/make_notebook.py"


def test_has_the_cells_that_the_page_shows():
    cells = json.loads(made.text())["cells"]
    code = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    assert code[0] == "%cd ..\n%pip install --quiet '.[train]'"
    page = made.PAGE.read_text("utf-8")
    hidden = page.count(":tags: [remove-cell]")
    assert hidden
    assert len(code) - 1 == page.count("```{code-cell}") - hidden
    for source in code[1:]:
        assert source in page


def test_the_links_lead_from_its_folder():
    text = made.text()
    assert "{py:" not in text
    assert "](guides/embeddings.md)" in text
    assert (made.DOCS / "guides" / "embeddings.md").is_file()


@pytest.mark.parametrize(
    ("role", "shown"),
    [
        ("{py:class}`tg.Adam <tf_graft.Adam>` and", "`tg.Adam` and"),
        ("{py:func}`tf_graft.wrap`", "`tf_graft.wrap`"),
        ("`a < b` and `c > d`", "`a < b` and `c > d`"),
    ],
)
def test_roles_become_code(role, shown):
    assert made.plain(role) == shown
