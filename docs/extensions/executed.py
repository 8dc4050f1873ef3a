"""Pages are executed again only after a change: of the page, of what it runs, or of TensorFlow.

What an execution writes is in the cache's folder, which git ignores.
"""

import hashlib
import shutil
import sys
from importlib.metadata import version
from pathlib import Path

from jupyter_cache import get_cache

ROOT = Path(__file__).parents[2]
RUN_BY_PAGES = (
    *("tf_graft/**/*", "configs/**/*", "studies/**/*", "tests/**/*"),
    *("docs/*.py", "docs/data/*", "docs/ipython/*/*.py"),
)


def cache():
    """The folder with the pages that were executed with the present sources; deletes all others."""
    digest = hashlib.sha256(f"{version('tensorflow')} {version('keras')}".encode())
    for path in sorted(path for pattern in RUN_BY_PAGES for path in ROOT.glob(pattern)):
        if path.is_file() and "__pycache__" not in path.parts:
            digest.update(f"{path.relative_to(ROOT)}\0".encode() + path.read_bytes())
    folder = ROOT / ".jupyter_cache" / digest.hexdigest()[:16]
    for other in folder.parent.glob("*"):
        if other != folder:
            shutil.rmtree(other)
    get_cache(folder).list_cache_records()  # makes the database before processes share it
    return folder


def profile(folder):
    """The folder of a copy of IPython's profile, to which IPython adds folders of its own."""
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(ROOT / "docs/ipython", folder)
    return folder


def show_stacks(path):
    """Prints what the kernels of hanging pages have written."""
    if path.exists():
        print(path.read_text(), file=sys.stderr)
