"""How a page's cells run, fail and draw: vectors, on white in the dark theme too."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

c = get_config()  # noqa: F821
c.InteractiveShellApp.extensions = ["page"]
c.InteractiveShell.xmode = "Minimal"  # of an error, its class and its message
c.InlineBackend.figure_formats = ["svg"]
c.InlineBackend.rc = {
    "axes.spines.right": False,
    "axes.spines.top": False,
    "figure.constrained_layout.use": True,
    "figure.facecolor": "white",
    "figure.figsize": (7, 3.6),
    "legend.frameon": False,
    "svg.hashsalt": "tf_graft",
}
