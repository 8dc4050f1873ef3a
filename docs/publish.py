"""Puts a built site into a folder for any web server, beside the sites of other versions.

    python docs/publish.py site public

The site goes to `public/VERSION`. `public/index.html` leads to the newest version. Each page reads
its list of versions from `public/versions.json`.
"""

import json
import re
import shutil
import sys
from pathlib import Path

from packaging.version import Version

LEADS = """<!doctype html>
<meta charset="utf-8">
<title>tf_graft</title>
<meta http-equiv="refresh" content="0; url={0}/index.html">
<p><a href="{0}/index.html">tf_graft {0}</a></p>
"""


def version_of(site: Path) -> str:
    """Returns the version of a built site."""
    options = (site / "_static" / "documentation_options.js").read_text("utf-8")
    return re.findall(r"VERSION: '(.+?)'", options)[0]


def publish(site: Path, public: Path) -> str:
    """Copies a site into the folder, in place of one of its own version; returns the version."""
    version = version_of(site)
    shutil.rmtree(public / version, ignore_errors=True)
    shutil.copytree(
        site, public / version, ignore=shutil.ignore_patterns(".doctrees", ".buildinfo")
    )
    found = [path.parent.name for path in public.glob("*/searchindex.js")]
    versions = sorted(found, key=Version, reverse=True)
    (public / "versions.json").write_text(json.dumps(versions) + "\n", "utf-8")
    (public / "index.html").write_text(LEADS.format(versions[0]), "utf-8")
    return version


if __name__ == "__main__":
    print(f"Version {publish(*map(Path, sys.argv[1:]))} is in {sys.argv[2]}.")
