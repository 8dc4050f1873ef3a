"""Makes `start.ipynb`, the start page as a notebook for Jupyter and hosted services.

    python docs/make_notebook.py

Its second and third cells say how to install the package, and do it. Sphinx' roles become code, and
the cells that the page hides are left out.
"""

import re
from pathlib import Path

import jupytext
import nbformat
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

DOCS = Path(__file__).parent
PAGE, NOTEBOOK = DOCS / "start.md", DOCS / "start.ipynb"
KERNEL = {"display_name": "Python 3", "language": "python", "name": "python3"}
NEW_CELL = {"code": new_code_cell, "markdown": new_markdown_cell}
INSTALL = [
    (
        "markdown",
        "You are reading `docs/start.ipynb`, which installs the package from its own repository. On"
        " a hosted service, first clone the repository or upload it, and open the notebook there."
        " The next cell goes from `docs` to the repository's root and installs.",
    ),
    ("code", "%cd ..\n%pip install --quiet '.[train]'"),
]


def plain(markdown: str) -> str:
    """The text with code in place of each role: its title, or its target if it has none."""
    return re.sub(r"\{[\w:]+\}`(?:([^`<]+?) *<[^`]*>|([^`]*))`", r"`\1\2`", markdown)


def text() -> str:
    """The notebook that the page gives, without results; the same text each time."""
    page = jupytext.reads(PAGE.read_text("utf-8"), fmt="md:myst")
    shown = [c for c in page.cells if "remove-cell" not in c.metadata.get("tags", ())]
    title, *rest = [(c.cell_type, c.source) for c in shown]
    cells = [
        NEW_CELL[kind](plain(source) if kind == "markdown" else source, id=f"cell-{number}")
        for number, (kind, source) in enumerate([title, *INSTALL, *rest])
    ]
    notebook = new_notebook(cells=cells, metadata={"kernelspec": KERNEL})
    nbformat.validate(notebook)
    return nbformat.writes(notebook, version=4) + "\n"


if __name__ == "__main__":
    NOTEBOOK.write_text(text(), "utf-8")
