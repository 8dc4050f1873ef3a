"""Imports TensorFlow in a command, without the messages it logs on every machine."""

import contextlib
import importlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator

LEVEL, QUIET = "TF_CPP_MIN_LOG_LEVEL", "2"
# Logged before TensorFlow reads that variable: information, and an error (303) that repeats the
# information that there is no CUDA driver.
NOISE = (
    r"^(WARNING: All log messages before absl::InitializeLog\(\) is called|I[0-9]{4} "
    r"|E[0-9]{4} .*failed call to cuInit: .*\(303\)$)"
)


def tensorflow() -> None:
    """Imports TensorFlow and Keras and looks for devices, unless TensorFlow is imported already.

    From then on TensorFlow's runtime logs errors, but no information and no warnings. A
    `TF_CPP_MIN_LOG_LEVEL` in the environment takes precedence; 0 shows everything.
    """
    if "tensorflow" in sys.modules:
        return
    quiet = os.environ.setdefault(LEVEL, QUIET) != "0" and sys.stderr is not None
    with _without_noise() if quiet else contextlib.nullcontext():
        importlib.import_module("keras")
        importlib.import_module("tensorflow").config.list_physical_devices()


@contextlib.contextmanager
def _without_noise() -> Iterator[None]:
    """Filters standard error by `grep`, which also shows what a process says before it crashes."""
    grep = shutil.which("grep")
    if grep is None:
        yield
        return
    command = [grep, "--text", "--line-buffered", "-vE", NOISE]
    reading, writing = os.pipe()
    sys.stderr.flush()
    with subprocess.Popen(command, stdin=reading, stdout=2, start_new_session=True):
        terminal = os.dup(2)
        os.dup2(writing, 2)
        os.close(reading)
        os.close(writing)
        try:
            yield
        finally:
            sys.stderr.flush()
            os.dup2(terminal, 2)  # `grep` reaches the end of its input
            os.close(terminal)
