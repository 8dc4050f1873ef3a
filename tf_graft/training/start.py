"""Imports TensorFlow in a command, without the messages it logs on every machine."""

import contextlib
import importlib
import os
import re
import signal
import sys
from collections.abc import Iterator

LEVEL, QUIET = "TF_CPP_MIN_LOG_LEVEL", "2"
# Logged before TensorFlow reads that variable: information, and an error (303) that repeats the
# information that there is no CUDA driver.
NOISE = re.compile(
    rb"WARNING: All log messages before absl::InitializeLog\(\) is called|I\d{4} "
    rb"|E\d{4} .*failed call to cuInit: .*\(303\)$"
)


def tensorflow() -> None:
    """Imports TensorFlow and Keras and looks for devices, unless TensorFlow is imported already.

    From then on TensorFlow's runtime logs errors, but no information and no warnings. A
    `TF_CPP_MIN_LOG_LEVEL` in the environment takes precedence; 0 shows everything.
    """
    if "tensorflow" in sys.modules:
        return
    level = os.environ.setdefault(LEVEL, QUIET)
    quiet = level != "0" and hasattr(os, "fork") and sys.stderr is not None
    with _without_noise() if quiet else contextlib.nullcontext():
        importlib.import_module("keras")
        importlib.import_module("tensorflow").config.list_physical_devices()


@contextlib.contextmanager
def _without_noise() -> Iterator[None]:
    """Filters standard error in a child process, so that nothing is lost in a crash."""
    reading, writing = os.pipe()
    sys.stderr.flush()
    child = os.fork()
    if child == 0:
        os.close(writing)
        _pass_on(reading)
    terminal = os.dup(2)
    os.dup2(writing, 2)
    os.close(reading)
    os.close(writing)
    try:
        yield
    finally:
        sys.stderr.flush()
        os.dup2(terminal, 2)  # this ends the child
        os.close(terminal)
        os.waitpid(child, 0)


def _pass_on(reading: int) -> None:
    """Copies lines that are not noise until the other end closes; then ends this process."""
    for signum in (signal.SIGINT, signal.SIGTERM):
        signal.signal(signum, signal.SIG_IGN)
    with contextlib.suppress(OSError), open(reading, "rb") as lines:
        for line in lines:
            if not NOISE.match(line):
                os.write(2, line)
    os._exit(0)
