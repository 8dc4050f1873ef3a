"""Docstrings as this package writes them: Google's sections, and code between fences."""

import re


def fences_as_blocks(app, what, name, obj, options, lines):
    """Makes literal blocks of what stands between ``` in a docstring."""
    text = re.sub(
        r"^( *)```\w*\n(.*?)^ *```$",
        lambda match: f"{match[1]}.. code-block:: text\n\n{indented(match[2])}\n",
        "\n".join(lines),
        flags=re.M | re.S,
    )
    lines[:] = text.split("\n")


def indented(block):
    return re.sub(r"^(?=.)", "    ", block, flags=re.M)


def setup(app):
    app.connect("autodoc-process-docstring", fences_as_blocks, priority=400)  # before napoleon
    return {"parallel_read_safe": True}
