"""The pages of the site: what their cells name is in the folder in which they are executed."""

import importlib.util
import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
CELL = re.compile(r"^```\{code-cell\} ipython3\n(.*?)^```$", re.M | re.S)
SCRIPT = ROOT / "docs" / "ipython" / "profile_default" / "page.py"
SPEC = importlib.util.spec_from_file_location("page", SCRIPT)
page = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(page)


def test_files_of_this_repository_are_where_pages_are_executed(monkeypatch, tmp_path):
    folders = [path.name for path in ROOT.iterdir() if path.is_dir()]
    named = re.compile(rf"(?<![\w/.])(?:{'|'.join(map(re.escape, folders))})/\w[\w/.\-]*\.\w+")
    cells = [
        (path, cell)
        for path in ROOT.glob("docs/**/*.md")
        for cell in CELL.findall(path.read_text("utf-8"))
    ]
    found = {(path, file) for path, cell in cells for file in named.findall(cell)}
    monkeypatch.setenv("CHECKOUT", str(ROOT))
    monkeypatch.chdir(tmp_path)
    page.enter_folder()
    assert len(found) > 20
    assert not [(path, file) for path, file in sorted(found) if not Path(file).exists()]
