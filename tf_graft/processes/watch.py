"""Notices a process that no longer answers because it is stopped, or its machine is gone.

TensorFlow's heartbeats tell the workers of a mesh or of a strategy. Parameter servers have no
heartbeats: without this module, a process that waits for a lost one would wait forever.
"""

import socket
import threading
import time
from collections.abc import Callable, Mapping

EVERY, PATIENCE = 5.0, 5.0  # seconds between two questions to a process, and for an answer
MISSES = 6  # the number of missing answers in a row after which a process is lost
# The bytes with which a client greets a gRPC server, which answers: HTTP/2, with no settings.
GREETING = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\4\0\0\0\0\0"


def watch(addresses: Mapping[str, str], lost: Callable[[str], None]) -> None:
    """Asks processes in a thread of its own; calls `lost` with the name of a silent process.

    The first question comes at once, and a process counts from its first answer on. A process that
    has ended is not silent: its machine refuses the connection, and TensorFlow notices.

    Args:
        addresses: the addresses of gRPC servers, by name.
        lost: called once for each silent process.
    """
    threading.Thread(target=_ask, args=(addresses, lost), daemon=True).start()


def answers(address: str, seconds: float = PATIENCE) -> bool:
    """Returns whether a gRPC server answers, or its machine says that the server has ended."""
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
    misses: dict[str, int] = {}  # in a row, of processes that have answered before
    while True:
        for name, address in addresses.items():
            if answers(address):
                misses[name] = 0
            elif name in misses:
                misses[name] += 1
                if misses[name] == MISSES:
                    lost(name)
        time.sleep(EVERY)
