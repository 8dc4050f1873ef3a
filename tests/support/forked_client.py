#!/usr/bin/env -S python3 -IS
"""Asks for a process as `forked.py` says, passes signals on to it, and ends as it does."""

import array
import json
import os
import signal
import socket
import sys

server = socket.socket(socket.AF_UNIX)
server.connect(os.path.join(os.path.dirname(sys.argv[0]), "socket"))
files = array.array("i", [0, 1, 2])
asked = {
    "python": sys.argv[0],
    "arguments": sys.argv[1:],
    "environment": dict(os.environ),
    "folder": os.getcwd(),
}
message = json.dumps(asked).encode() + b"\n"
sent = server.sendmsg([message], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, files)])
server.sendall(message[sent:])
for each in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
    signal.signal(each, lambda number, _: server.sendall(bytes([number])))
for number in (0, 1, 2):
    os.close(number)  # those who read them see the other's end
code = int(server.recv(16) or b"-9")
if code < 0:
    signal.signal(-code, signal.SIG_DFL) if -code != signal.SIGKILL else None
    os.kill(os.getpid(), -code)
sys.exit(code)
