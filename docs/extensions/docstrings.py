"""Docstrings as this package writes them: Google's sections, and code set off as in Markdown."""

import re

FENCED = re.compile(r"^( *)```\w*\n(.*?)^ *```$", re.M | re.S)
# Lines further in than the paragraph before them: no section, whose lines follow its title at once.
SET_OFF = re.compile(
    r"(?<=\n)(?P<text>(?P<in> *)(?![*-]|\.\. )\S.*\n)\n"
    r"(?P<code>(?P=in)    (?!\.\. ).*\n(?:(?P=in)    .*\n|\n)*)"
)


def code_as_blocks(app, what, name, obj, options, lines):
    """Makes literal blocks of what stands between ``` or is set off by four spaces."""
    text = "\n" + "\n".join(lines) + "\n"
    text = FENCED.sub(lambda match: block(match[1], match[2]), text)
    text = SET_OFF.sub(lambda match: match["text"] + "\n" + block(match["in"], match["code"]), text)
    lines[:] = text[1:-1].split("\n")


def block(indent, code):
    inside = re.sub(r"^(?=.*\S)", "    ", code, flags=re.M)
    return f"{indent}.. code-block:: text\n\n{inside}\n"


def setup(app):
    app.connect("autodoc-process-docstring", code_as_blocks, priority=400)  # before napoleon's
    return {"parallel_read_safe": True}
