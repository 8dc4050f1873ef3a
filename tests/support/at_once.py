"""A time limit on what could wait forever, such as the opening of a FIFO."""

import contextlib
import signal

SECONDS = 20.0


@contextlib.contextmanager
def at_once():
    """Raises TimeoutError in the main thread where the context does not end in time."""

    def end(*_):
        raise TimeoutError(f"it still waits after {SECONDS} seconds")

    before = signal.signal(signal.SIGALRM, end)
    signal.setitimer(signal.ITIMER_REAL, SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
