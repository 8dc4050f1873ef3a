"""`%%bash` for pages: plain text in one piece, and a command that fails is an error."""

import os
import subprocess

from IPython.core.magic import register_cell_magic


@register_cell_magic
def bash(line, cell):
    """As IPython's, whose pieces MyST-NB would print on lines of their own."""
    plain = {k: v for k, v in os.environ.items() if k not in ("FORCE_COLOR", "CLICOLOR_FORCE")}
    said = subprocess.run(["bash", "-ec", cell], capture_output=True, text=True, env=plain)
    print(said.stdout, end="")
    if said.returncode:
        raise RuntimeError(said.stderr)


del bash, register_cell_magic
