"""Notices a process that no longer answers: it is stopped, or its machine has vanished.

The workers of a mesh or of a strategy notice by TensorFlow's heartbeats. Parameter servers have
none: who waits for such a process waits for ever.
"""

import socket
import threading
from collections.abc import Callable, Mapping

EVERY, PATIENCE = 5.0, 5.0  # seconds between two questions to a process, and for an answer
MISSES = 6  # the answers in a row that a lost process has not given
# How a client begins to speak with a server of gRPC, which answers: HTTP/2, with no settings.
GREETING = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\4\0\0\0\0\0"


def watch(addresses: Mapping[str, str], lost: Callable[[str], None]) -> None:
    """Asks processes in a thread of its own; calls `lost` with the name of one that is silent.

    A process counts from its first answer on. One that has ended is not silent: its machine
    refuses the connection, and TensorFlow notices.

    Args:
        addresses: of servers of gRPC, by name.
        lost: called once for each such process.
    """
    threading.Thread(target=_ask, args=(addresses, lost), daemon=True).start()


def answers(address: str, seconds: float = PATIENCE) -> bool:
    """Returns whether a server of gRPC answers, or whether its machine says that it has ended."""
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host, int(port)), seconds) as connection:
            connection.sendall(GREETING)
            connection.recv(1)
    except ConnectionError:
        return True
    except OSError:
        return False
    return True


def _ask(addresses: Mapping[str, str], lost: Callable[[str], None]) -> None:
    misses: dict[str, int] = {}  # in a row, of those that have answered
    pause = threading.Event()
    while not pause.wait(EVERY):
        for name, address in addresses.items():
            if answers(address):
                misses[name] = 0
            elif name in misses:
                misses[name] += 1
                if misses[name] == MISSES:
                    lost(name)
