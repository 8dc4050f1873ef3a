"""Standard output: plain texts and tables, without markup."""

from pathlib import Path
from typing import Any

import typer
from rich.console import Console
from rich.text import Text

from tf_graft.core.media import for_terminal


class Terminal(Console):
    """rich's console without its markup, and without control characters except its own."""

    def __init__(self, **options: Any):
        super().__init__(markup=False, emoji=False, highlight=False, **options)

    def render_str(self, text: str, **options: Any) -> Text:
        """Returns a text that is not a `rich.text.Text` as one."""
        return super().render_str(for_terminal(text), **options)


def png(path: Path | None) -> Path | None:
    """Refuses an option's value that is not the name of a PNG."""
    if path and path.suffix != ".png":
        raise typer.BadParameter(f"{path} must end in .png.")
    return path
