"""The page of a class or a function lists the guides that mention it, most mentions first."""

import collections
import functools
import re
from pathlib import Path

FOLDERS = ("guides", "grafting", "migrate")
MENTION = re.compile(r"\{py:(?:class|func)\}`(?:[^`<]*<|~)?(tf_graft\.[\w.]+)")
MOST = 5


@functools.cache
def guides(source):
    """Returns how often each guide mentions each name: counters of pages, by name."""
    found = collections.defaultdict(collections.Counter)
    for path in sorted(path for folder in FOLDERS for path in Path(source, folder).glob("*.md")):
        page = f"/{path.relative_to(source).with_suffix('')}"
        for name in MENTION.findall(path.read_text()):
            found[name][page] += 1
    return found


def list_guides(app, what, name, obj, options, lines):
    """Adds the list at the end of a docstring."""
    pages = guides(app.srcdir)[name].most_common(MOST)
    if pages and lines:
        listed = ", ".join(f":doc:`{page}`" for page, _ in pages)
        lines += ["", ".. seealso::", "", f"   {listed}", ""]


def setup(app):
    app.connect("autodoc-process-docstring", list_guides, priority=600)  # after napoleon's
    return {"parallel_read_safe": True}
