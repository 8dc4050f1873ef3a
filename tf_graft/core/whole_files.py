"""Files that are whole or not there, whatever happens to the process or the machine."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def whole(path: Path) -> Iterator[Path]:
    """A path to write at; when the context ends well, what was written takes the place of `path`.

    It lies in a folder of its own, `<path>.part`, whose files are put beside `path` in the order of
    their names once all are on disk: the last of them, such as a checkpoint's index, completes it.
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
        error.filename = error.filename or str(path)  # a full disk is noticed without its name
        raise
    finally:
        remove(part)


def write(path: Path, content: str | bytes) -> None:
    """Replaces a file whole: a reader sees the old content or the new one."""
    with whole(path) as part:
        part.write_bytes(content.encode() if isinstance(content, str) else content)


def part_of(path: Path) -> Path:
    """Where what becomes `path` is written; a kill leaves it there."""
    return path.with_name(f"{path.name}.part")


def remove(path: Path) -> None:
    """Removes a file, or a folder with what is in it; of a link to a folder, what it holds."""
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
    """Returns when a file's content is on disk."""
    with open(path, "rb") as file:
        os.fsync(file.fileno())
