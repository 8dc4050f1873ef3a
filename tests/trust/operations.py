"""Each operation on the files of a folder: what it finds, and a way to have it fail.

What Python does is seen by an audit hook, which may raise in its place; what TensorFlow does,
around the call that writes a checkpoint.
"""

import contextlib
import errno
import os
import sys
from pathlib import Path

import pytest
import tensorflow as tf

CHANGES = ("os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.truncate")
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT
SHARD = "part-00000-of-00001"
DATA = "data-00000-of-00001"

_watching = []  # (folder, what is called), one at most
_hooked = []


@contextlib.contextmanager
def watched(folder, called):
    """Calls `called(operation, path)` before each operation that changes a file of the folder.

    The path is relative. The operations are "open", "rename", "remove", "mkdir", "rmdir",
    "truncate", "sync", and "checkpoint" and "checkpoint written" around TensorFlow's.
    """
    if not _hooked:
        _hooked.append(sys.addaudithook(_audit))
    whole, sync = tf.train.Checkpoint._write, os.fsync

    def write(self, prefix, *args, **kwargs):
        _tell("checkpoint", prefix)
        path = whole(self, prefix, *args, **kwargs)
        _tell("checkpoint written", prefix)
        return path

    def fsync(number):
        _tell("sync", os.readlink(f"/proc/self/fd/{number}"))
        sync(number)

    _watching.append((str(folder), called))
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(tf.train.Checkpoint, "_write", write)
            patch.setattr(os, "fsync", fsync)
            yield
    finally:
        _watching.clear()


def _audit(event, args):
    if not _watching:
        return
    if event == "open" and isinstance(args[2], int) and args[2] & WRITING:
        _tell("open", args[0])
    elif event in CHANGES:
        descriptor = args[-1] if event != "os.truncate" else -1
        _tell(event.removeprefix("os."), args[0], descriptor)


def _tell(operation, path, descriptor=-1):
    if not _watching or not isinstance(path, str | os.PathLike):
        return
    folder, called = _watching[0]
    path = os.fspath(path)
    if descriptor != -1 and not os.path.isabs(path):
        path = os.path.join(os.readlink(f"/proc/self/fd/{descriptor}"), path)
    if path == folder or path.startswith(f"{folder}/"):
        watching = _watching.pop()  # what is called looks at the files itself
        try:
            called(operation, os.path.relpath(path, folder))
        finally:
            _watching.append(watching)


def content(folder):
    """The files of a folder, {relative path: bytes}, with None for a folder in it."""

    def held(path):
        if path.is_symlink():
            return os.readlink(path)
        return None if path.is_dir() else path.read_bytes()

    return {
        path.relative_to(folder).as_posix(): held(path) for path in sorted(Path(folder).rglob("*"))
    }


def put(folder, files):
    """Makes a folder hold what `content` returned, and nothing else; None for no folder."""
    for path in sorted(Path(folder).rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() and not path.is_symlink() else path.unlink()
    if files is None:
        if Path(folder).exists():
            Path(folder).rmdir()
        return
    Path(folder).mkdir(parents=True, exist_ok=True)
    for name, value in files.items():
        path = Path(folder) / name
        (path if value is None else path.parent).mkdir(parents=True, exist_ok=True)
        if value is not None:
            path.write_bytes(value)


def torn(before, after):
    """What a kill leaves that falls between two contents: new files empty or half, rows half."""
    changed = [
        name
        for name, value in after.items()
        if value and value not in before.values()
        if not (before.get(name) or b"").startswith(value)  # to cut a file is one operation
    ]
    for number, name in enumerate(changed):
        later = set(changed[number + 1 :])
        found = {key: value for key, value in after.items() if key not in later}
        found |= {key: before[key] for key in later if key in before}
        old = before.get(name) or b""
        kept = len(old) if after[name].startswith(old) else 0
        for end in {kept, kept + (len(after[name]) - kept) // 2}:
            yield f"{name} of {end} bytes", {**found, name: after[name][:end]}


def torn_checkpoint(before, after, prefix):
    """What a kill leaves while TensorFlow writes a checkpoint, as a trace of its calls has it."""
    data, index = (after[f"{prefix}.{kind}"] for kind in (DATA, "index"))
    shard = f"{prefix}_temp/{SHARD}"
    temporary = {**before, f"{prefix}_temp": None}
    moved = {**temporary, f"{prefix}.{DATA}": data, f"{shard}.index": index}
    yield "its folder", temporary
    yield "half its data", {**temporary, f"{shard}.{DATA}.tempstate7": data[: len(data) // 2]}
    with_data = {**temporary, f"{shard}.{DATA}": data}
    yield "half its shard's index", {**with_data, f"{shard}.index.tempstate8": index[:40]}
    yield "its shard", {**with_data, f"{shard}.index": index}
    yield "its data", moved
    yield "an empty index", {**moved, f"{prefix}.index": b""}
    yield "half its index", {**moved, f"{prefix}.index": index[: len(index) // 2]}
    yield "all but its folder", {**moved, f"{prefix}.index": index}


def full(folder, operation, path):
    """Raises what a full disk says of an operation that needs room."""
    if operation in ("open", "mkdir", "sync", "checkpoint"):
        _fail(errno.ENOSPC, tf.errors.ResourceExhaustedError, operation, folder / path)


def read_only(folder, operation, path):
    """Raises what a file system says that has become read-only, as it does after an error."""
    _fail(errno.EROFS, tf.errors.UnknownError, operation, folder / path)


def _fail(number, kind, operation, path):
    if operation.startswith("checkpoint"):
        raise kind(None, None, f"{path}_temp/{SHARD}.{DATA}; {os.strerror(number)} [Op:SaveV2]")
    raise OSError(number, os.strerror(number), str(path))
