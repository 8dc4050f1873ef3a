"""The site: `sphinx-build -W -T -j 2 docs site`, with the extra `[docs]`, without a network."""

import os
import sys
import time
from pathlib import Path

began = time.perf_counter()
import tf_graft  # noqa: E402

seconds_of_import = time.perf_counter() - began
HERE = Path(__file__).parent
sys.path.insert(0, str(HERE / "extensions"))
import executed  # noqa: E402

project = "tf_graft"
author = "the tf_graft authors"
copyright = author
version = release = tf_graft.__version__

extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
    "sphinx_design",
    "sphinx-mathjax-offline",
    "docstrings",
    "drawn",
    "public_names",
    "see_also",
]
exclude_patterns = ["ipython", "start.ipynb"]  # the notebook is `start.md` once more
nitpicky = True
nitpick_ignore_regex = [
    ("py:.*", r"(tf|keras|collections|numpy)\..*"),  # whose inventories are online
    ("py:class", r"tf_graft\.(compose|core)\..*"),  # of what an optimizer holds
]

# Every code cell runs in the build, in a kernel of its page's, and an exception fails the build.
# The profile in `ipython` says in which folder, and how commands print. A page is executed again
# when it or the package changes. If a cell hangs, the build fails with its source and its stacks.
cached = executed.cache()
stacks = cached / "stacks.txt"
stacks.unlink(missing_ok=True)
nb_execution_mode = "cache"
nb_execution_cache_path = str(cached)
nb_execution_raise_on_error = True
nb_execution_timeout = round(180 * max(1, seconds_of_import / 7))  # 7 s on an idle machine
if os.environ.get("PAGES") == "few":  # `.ci/run` executes these; `.ci/full` and you, all of them
    few = {"start", "evidence", "guarantees", "write_an_optimizer"}
    guides = "command_line", "embeddings", "large_embeddings", "matrices", "wrappers"
    few |= {f"guides/{name}" for name in guides}
    pages = {str(path.relative_to(HERE).with_suffix("")) for path in HERE.rglob("*.md")}
    nb_execution_excludepatterns = [f"{page}.md" for page in sorted(pages - few)]
    suppress_warnings = ["myst-nb.lexer"]  # the language of a page that is not executed
nb_merge_streams = True
nb_output_stderr = "remove"  # TensorFlow's messages at its start
os.environ |= {
    "IPYTHONDIR": str(executed.profile(cached / "ipython")),
    "CHECKOUT": str(HERE.parent),
    "STACKS": str(stacks),
    "STACKS_AFTER": str(nb_execution_timeout - 5),
    "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
}
myst_enable_extensions = ["colon_fence", "deflist", "dollarmath"]
myst_heading_anchors = 3

templates_path = ["templates"]
autosummary_generate = (
    True  # a page for each name in the tables of `api`, in a folder beside its table
)
napoleon_custom_sections = ["Reference"]
autodoc_member_order = "bysource"
autodoc_inherit_docstrings = False
autodoc_typehints = "none"  # each docstring says what its arguments are
default_role = "code"  # a docstring's `x` is code

html_theme = "furo"
html_title = "tf_graft"
html_favicon = "static/favicon.svg"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_js_files = ["versions.js"]
html_show_copyright = False
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True


def setup(app):
    # The formulas' extension only adds files; that it may be read in parallel, it does not say.
    app.extensions["sphinx-mathjax-offline"].parallel_read_safe = True
    app.connect("build-finished", lambda *_: executed.show_stacks(stacks))
