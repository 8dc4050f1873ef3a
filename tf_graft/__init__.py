"""Optimizers for Keras 3 on TensorFlow that give the same numbers everywhere."""

import importlib
import sys
from pathlib import PurePath
from typing import TYPE_CHECKING

__version__ = "1.0.0"


if not TYPE_CHECKING:  # a type checker would accept every name

    def __getattr__(name: str) -> object:
        if name in ("algorithm", "testing"):  # before the face is there; not in it
            return importlib.import_module(f"tf_graft.{name}")
        face = importlib.import_module("tf_graft.face")
        if name in (*face.__all__, "__all__"):
            return getattr(face, name)
        raise AttributeError(f"module 'tf_graft' has no attribute '{name}'")


def __dir__() -> list[str]:
    return sorted({*globals(), *importlib.import_module("tf_graft.face").__all__})


def _is_command() -> bool:
    """Returns whether this process is `tf-graft` or `python -m tf_graft`."""
    program = sys.argv[0] if sys.argv else ""
    if program == "-m":  # Python has not found the module yet
        return "tf_graft" in sys.orig_argv
    return PurePath(program).stem == "tf-graft"


# `tf-graft --help` must not wait for TensorFlow: the command line imports the names on first use.
# Every other process imports them at once, which registers the classes with Keras.
if TYPE_CHECKING or not _is_command():
    from tf_graft.face import *  # noqa: F403
    from tf_graft.face import __all__ as __all__
else:
    from tf_graft.exits import end_when_interrupted

    end_when_interrupted()
