"""How a page's cells draw: vectors, on white in the dark theme too."""

c = get_config()  # noqa: F821
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
