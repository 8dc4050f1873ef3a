"""A lock on a folder, which the operating system releases when its process dies."""

import contextlib
import errno
import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from tf_graft.core.files.whole_files import file_only, is_at

try:
    import fcntl
except ImportError:  # Windows has none
    fcntl = None  # type: ignore[assignment]

UNSUPPORTED = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)


class InUse(Exception):
    """Another process holds the lock; the message says which."""


@contextlib.contextmanager
def locked(path: Path) -> Iterator[bool]:
    """Holds a lock on the file `path`, which names the process that holds it.

    Yields whether the file system supports locks. The file is removed at the end; a file that a
    killed process has left locks nothing.

    Raises:
        InUse: another process holds the lock.
        OSError: the file cannot be written, or is a link, or has another name too.
    """
    file, holds = _acquired(path)
    try:
        file.truncate(0)
        started = time.strftime("%Y-%m-%d %H:%M:%S")
        file.write(f"process {os.getpid()} on {socket.gethostname()}, since {started}\n")
        file.flush()
        yield holds
    finally:
        with contextlib.suppress(OSError):
            if is_at(os.fstat(file.fileno()), path):
                path.unlink()  # before the lock is released: a process that waits checks again
        file.close()


def _acquired(path: Path) -> tuple[IO[str], bool]:
    while True:
        with contextlib.ExitStack() as stack:
            file = stack.enter_context(open(path, "a+", errors="replace", opener=_own))
            holds = _lock(file)
            if is_at(os.fstat(file.fileno()), path):  # otherwise its holder has removed it since
                stack.pop_all()
                return file, holds


def _own(path: str, flags: int) -> int:
    """Opens a file that is not a link: writing to a link's target would overwrite another file."""
    if os.path.islink(path):
        raise OSError(errno.ELOOP, "a link is in its place", path)
    number = file_only(path, flags | getattr(os, "O_NOFOLLOW", 0))
    if os.fstat(number).st_nlink > 1:
        os.close(number)
        raise OSError(errno.EMLINK, "a file with another name too is in its place", path)
    return number


def _lock(file: IO[str]) -> bool:
    """Locks a file; returns False if the file system has no locks."""
    if fcntl is None:
        return False
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.seek(0)
        raise InUse(file.readline(200).strip() or "another process") from None
    except OSError as error:
        if error.errno not in UNSUPPORTED:
            raise
        return False
    return True
