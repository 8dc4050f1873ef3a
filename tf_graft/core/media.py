"""Escapes names from users, and texts with them, so that each medium shows them as they are.

A name read from a file may contain text that a medium takes for a command: escape sequences of a
terminal, mathematics between dollars, tags, lines of a table.
"""

import html
import io
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LONGEST = 200  # characters of a text in a message
IN_FIGURE = 80  # and in a figure


def for_message(text: str) -> str:
    """Returns a text as a part of a sentence: on one line, truncated if it is long."""
    line = " ".join(text.split())
    return line if len(line) <= LONGEST else f"{line[:LONGEST]}..."


def for_terminal(text: str) -> str:
    r"""Returns a text with control characters, except line breaks, in Python's notation.

    Example:
        >>> print(for_terminal("\x1b[31mred \u202e"))
        \x1b[31mred \u202e
    """
    return "".join(c if c.isprintable() or c == "\n" else _notation(c) for c in text)


def for_figure(text: str) -> str:
    r"""Returns a text for matplotlib, which reads text between dollars as mathematics.

    Matplotlib also leaves a label that begins with `_` out of the legend, so a blank precedes it.

    Example:
        >>> print(for_figure("$x$"), for_figure("_a/kernel"))
        \$x\$  _a/kernel
    """
    shown = for_terminal(text)
    if len(shown) > IN_FIGURE:
        shown = f"{shown[: IN_FIGURE // 2]}...{shown[-IN_FIGURE // 2 :]}"
    blank = " " if shown.startswith("_") else ""
    return blank + shown.replace("$", r"\$")


def for_html(text: str) -> str:
    """Returns a text for an HTML page, inside and outside of attributes.

    Example:
        >>> for_html("<b>'x'")
        '&lt;b&gt;&#x27;x&#x27;'
    """
    return html.escape(for_terminal(text))


def for_markdown(text: str) -> str:
    r"""Returns a text for a cell of a table in Markdown.

    Example:
        >>> print(for_markdown("a|b <i>"))
        a\|b &lt;i&gt;
    """
    return for_html(text).replace("\\", r"\\").replace("|", r"\|").replace("\n", " ")


def _notation(character: str) -> str:
    return character.encode("unicode_escape").decode()


def for_notebook(draw: "Callable[[], Figure]") -> bytes | None:
    """Returns a figure as a PNG for a notebook; None if matplotlib is not installed."""
    try:
        figure = draw()
    except ModuleNotFoundError:
        return None
    drawn = io.BytesIO()
    figure.savefig(drawn, format="png")
    return drawn.getvalue()
