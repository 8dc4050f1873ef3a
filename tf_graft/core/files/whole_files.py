"""Files that are written whole or not at all, whatever happens to the process or machine.

Links are never followed: a link itself is replaced or removed. Anything that is not a file, such as
a FIFO, is neither waited for nor replaced.
"""

import contextlib
import errno
import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

NOT_FILES = {
    stat.S_IFDIR: "folder",
    stat.S_IFIFO: "named pipe",
    stat.S_IFSOCK: "socket",
    stat.S_IFCHR: "device",
    stat.S_IFBLK: "device",
}
AT_ONCE = getattr(os, "O_NONBLOCK", 0)  # Windows has neither this nor FIFOs


class Moved(FileNotFoundError):
    """A process's file or folder is no longer at its path, where another's may be now."""

    def __init__(self, path: Path) -> None:
        super().__init__(errno.ENOENT, "it was moved or removed while it was in use", str(path))


@contextlib.contextmanager
def whole(path: Path) -> Iterator[Path]:
    """Yields a path to write to, whose file replaces `path` if the context ends without an error.

    The yielded path is in a folder of its own, `<path>.part`. Once all files of the folder are on
    disk, they are moved next to `path` in the order of their names: the last one, such as a
    checkpoint's index, completes them. The folder of `path` must exist and is not created, because
    somebody may have moved it.

    Raises:
        OSError: a file cannot be written, `path` is not a file, or `<path>.part` is not such a
            folder.
    """
    if not path.is_symlink() and kind(path) not in ("file", None):
        raise _no_file(path, kind(path))
    part = part_of(path)
    if not part.is_symlink() and not _is_part(part, path.name):
        raise _no_file(part, "file or folder of another program")
    remove(part)
    part.mkdir()
    made = part.stat()
    try:
        yield part / path.name
        if not is_at(made, part):  # TensorFlow makes folders that are missing
            raise Moved(path)
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
    """Returns the folder in which `path` is written; it remains if the process is killed."""
    return path.with_name(f"{path.name}.part")


def _is_part(part: Path, name: str) -> bool:
    """Returns whether there is nothing, or a folder that holds only what `whole` had begun."""
    if kind(part) is None:
        return True
    return kind(part) == "folder" and all(each.name.startswith(name) for each in part.iterdir())


def remove(path: Path) -> None:
    """Removes a file, a link, or a folder with its contents; the target of a link stays."""
    if path.is_symlink() or not path.is_dir():
        path.unlink(missing_ok=True)
        return
    for inner in path.iterdir():
        remove(inner)
    path.rmdir()


def kind(path: Path) -> str | None:
    """Says what is at a path, or where a link at it leads; None if there is nothing.

    Raises:
        OSError: the kind cannot be determined.
    """
    try:
        return _kind(path.stat())
    except (FileNotFoundError, NotADirectoryError):
        return "link that leads nowhere" if path.is_symlink() else None


def file_only(path: str, flags: int) -> int:
    """Opens a file, as the `opener` of Python's `open`; does not wait for the writer of a FIFO.

    Raises:
        OSError: the path cannot be opened, or is no file.
    """
    number = os.open(path, flags | AT_ONCE, 0o666)
    found = _kind(os.fstat(number))
    if found != "file":
        os.close(number)
        raise _no_file(Path(path), found)
    return number


def same_only(known: os.stat_result) -> Callable[[str, int], int]:
    """Returns an `opener` that opens a known file, and raises `Moved` if another is at its path."""

    def opener(path: str, flags: int) -> int:
        number = file_only(path, flags)
        if not os.path.samestat(known, os.fstat(number)):
            os.close(number)
            raise Moved(Path(path))
        return number

    return opener


def is_at(known: os.stat_result, path: Path) -> bool:
    """Returns whether a known file or folder is still the one at `path`."""
    try:
        return os.path.samestat(known, path.stat())
    except FileNotFoundError:
        return False


def _kind(found: os.stat_result) -> str:
    return NOT_FILES.get(stat.S_IFMT(found.st_mode), "file")


def _no_file(path: Path, what: str | None) -> OSError:
    return OSError(errno.EEXIST, f"a {what} is in its place", str(path))


def _sync(path: Path) -> None:
    """Waits until a file's content is on disk."""
    with open(path, "rb", opener=file_only) as file:
        os.fsync(file.fileno())
