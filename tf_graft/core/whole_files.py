"""Files that are written whole or not at all, whatever happens to the process or machine."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def whole(path: Path) -> Iterator[Path]:
    """A path to write to; when the context ends without an error, its file replaces `path`.

    The path is in a folder of its own, `<path>.part`. Once all files of the folder are on disk,
    they are moved beside `path` in the order of their names: the last one, such as a checkpoint's
    index, completes them.
    """
    part = part_of(path)
    remove(part)
    part.mkdir(parents=True)
    try:
        yield part / path.name
        files = sorted(part.iterdir())
        for file in files:
            _sync(file)
        for file in files:
            os.replace(file, path.parent / file.name)
    except OSError as error:
        error.filename = error.filename or str(path)  # the error of a full disk lacks it
        raise
    finally:
        remove(part)


def write(path: Path, content: str | bytes) -> None:
    """Replaces a file as a whole: a reader sees either the old content or the new one."""
    with whole(path) as part:
        part.write_bytes(content.encode() if isinstance(content, str) else content)


def part_of(path: Path) -> Path:
    """The folder in which `path` is written; it remains when the process is killed."""
    return path.with_name(f"{path.name}.part")


def remove(path: Path) -> None:
    """Removes a file, or a folder with its contents; of a link to a folder, only the contents."""
    if not path.is_dir():
        path.unlink(missing_ok=True)
        return
    for inner in path.iterdir():
        if inner.is_symlink():
            inner.unlink()
        else:
            remove(inner)
    if not path.is_symlink():
        path.rmdir()


def _sync(path: Path) -> None:
    """Waits until a file's content is on disk."""
    with open(path, "rb") as file:
        os.fsync(file.fileno())
