"""What each page's kernel starts with: a folder of its own, and commands that print plain text."""

import atexit
import faulthandler
import functools
import os
import shutil
import subprocess
import tempfile


def load_ipython_extension(ipython):
    enter_folder()
    ipython.register_magic_function(bash, "cell")
    notice_hangs(ipython.events)


def notice_hangs(events):
    """Writes where the kernel is when a cell takes too long, even if no other thread can run."""
    stacks = open(os.environ["STACKS"], "a")  # noqa: SIM115  (as long as the kernel runs)
    seconds = float(os.environ["STACKS_AFTER"])
    later = functools.partial(faulthandler.dump_traceback_later, seconds, file=stacks)
    events.register("pre_run_cell", lambda _: later())
    events.register("post_run_cell", lambda _: faulthandler.cancel_dump_traceback_later())


def enter_folder():
    """Enters a folder of the page's own, which has what the root of a checkout has."""
    folder = tempfile.mkdtemp(prefix="tf_graft_page_")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    for name in ("configs", "docs", "studies", "tests"):
        os.symlink(os.path.join(os.environ["CHECKOUT"], name), os.path.join(folder, name))
    os.chdir(folder)


def bash(line, cell):
    """Runs a cell's commands; unlike IPython's, prints all at once, and raises where one fails.

    MyST-NB would print the pieces on lines of their own, and Jupyter asks commands for colors.
    """
    plain = {k: v for k, v in os.environ.items() if k not in ("FORCE_COLOR", "CLICOLOR_FORCE")}
    said = subprocess.run(["bash", "-ec", cell], capture_output=True, text=True, env=plain)
    print(said.stdout, end="")
    if said.returncode:
        raise RuntimeError(said.stderr)
