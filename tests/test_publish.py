"""The sites of several versions in one folder."""

import importlib.util
import json
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / "docs" / "publish.py"
SPEC = importlib.util.spec_from_file_location("publish", SCRIPT)
script = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(script)


@pytest.fixture
def site(tmp_path):
    """Makes a built site of a version."""

    def make(version, text):
        folder = tmp_path / "site"
        (folder / "_static").mkdir(parents=True, exist_ok=True)
        options = f"const DOCUMENTATION_OPTIONS = {{\n    VERSION: '{version}',\n}};\n"
        (folder / "_static" / "documentation_options.js").write_text(options)
        (folder / "searchindex.js").write_text("")
        (folder / ".buildinfo").write_text("")
        (folder / "index.html").write_text(text)
        return folder

    return make


def test_versions_lie_beside_each_other_the_newest_first(site, tmp_path):
    public = tmp_path / "public"
    for version in ("0.2.0", "0.10.0", "0.9.1"):
        assert script.publish(site(version, f"this is {version}"), public) == version
    assert json.loads((public / "versions.json").read_text()) == ["0.10.0", "0.9.1", "0.2.0"]
    assert 'url=0.10.0/index.html"' in (public / "index.html").read_text()
    assert (public / "0.9.1" / "index.html").read_text() == "this is 0.9.1"
    assert not (public / "0.9.1" / ".buildinfo").exists()


def test_a_version_that_is_published_again_leaves_no_old_pages(site, tmp_path):
    public = tmp_path / "public"
    former = site("0.2.0", "old")
    (former / "gone.html").write_text("")
    script.publish(former, public)
    (former / "gone.html").unlink()
    script.publish(site("0.2.0", "new"), public)
    assert (public / "0.2.0" / "index.html").read_text() == "new"
    assert not (public / "0.2.0" / "gone.html").exists()
