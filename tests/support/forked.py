"""Pythons with TensorFlow imported: a process is forked from one that has it, in place of a start.

`python()` is a program to be called as `python` is: `-m MODULE`, `-c CODE` or a script. What it
runs is a process of its own, with the environment, folder, input and output of its caller, which
ends with it; only the import, five seconds of a processor, is that of the server. What it
starts by `sys.executable` is forked as well.

Not for what is about the start itself: which modules are imported, what is said meanwhile, or
variables that TensorFlow reads while it is imported.
"""

import array
import atexit
import contextlib
import ctypes
import functools
import json
import os
import runpy
import selectors
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

DIES = 1  # PR_SET_PDEATHSIG


@functools.cache
def python() -> str:
    """The program; its server lives as long as this process."""
    if Path(sys.executable).with_name("socket").exists():  # in what was forked
        return sys.executable
    folder = Path(tempfile.mkdtemp(prefix="forked_"))
    program = folder / "python"
    program.symlink_to(Path(__file__).with_name("forked_client.py"))
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(str(folder / "socket"))
    listening.listen(64)
    fresh = {name: text for name, text in os.environ.items() if not name.startswith("DTENSOR_")}
    server = subprocess.Popen(
        [sys.executable, "-c", f"from support import forked; forked.serve({listening.fileno()})"],
        env=fresh | {"PYTHONPATH": os.pathsep.join(sys.path), "TF_CPP_MIN_LOG_LEVEL": "2"},
        stdin=subprocess.DEVNULL,
        pass_fds=[listening.fileno()],
        start_new_session=True,
    )
    listening.close()
    atexit.register(end, server, folder)
    return str(program)


def end(server, folder):
    """Ends the server, and whatever it has forked with it."""
    server.kill()
    server.wait()
    shutil.rmtree(folder)


def serve(number):
    """Forks what clients ask for, until whoever started it is gone."""
    ctypes.CDLL(None).prctl(DIES, signal.SIGKILL)
    import tf_graft  # noqa: F401  (and TensorFlow and Keras)

    listening, waiting = socket.socket(fileno=number), selectors.DefaultSelector()
    waiting.register(listening, selectors.EVENT_READ)
    woken, wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake)
    waiting.register(woken, selectors.EVENT_READ)
    clients = {}  # by the process that each waits for
    while True:
        for key, _ in waiting.select():
            if key.fileobj is listening:
                client, _ = listening.accept()
                pid = fork(client, [listening, client, *clients.values()])
                if pid is None:
                    client.close()
                    continue
                clients[pid] = client
                waiting.register(client, selectors.EVENT_READ, pid)
            elif key.fileobj is woken:
                os.read(woken, 1024)
            else:
                heed(key.fileobj, key.data)
        reap(clients, waiting)


def heed(client, pid):
    """A signal that a client was sent, or, when it is gone, the end."""
    numbers = b""
    with contextlib.suppress(ConnectionError):
        numbers = client.recv(16)
    for number in numbers or [signal.SIGKILL]:
        try:
            os.killpg(pid, number)
        except ProcessLookupError:  # it leads no group yet, or has ended
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)


def reap(clients, waiting):
    """Tells those whose process has ended how."""
    while clients:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if not pid:
            return
        client = clients.pop(pid)
        waiting.unregister(client)
        with contextlib.suppress(OSError):
            client.sendall(b"%d" % os.waitstatus_to_exitcode(status))
        client.close()


def fork(client, sockets):
    """The process that a client asks for."""
    files = array.array("i")
    message, ancillary, *_ = client.recvmsg(1 << 20, socket.CMSG_SPACE(3 * files.itemsize))
    if not ancillary:
        return None
    files.frombytes(ancillary[0][2])
    while not message.endswith(b"\n"):
        message += client.recv(1 << 20)
    pid = os.fork()
    if pid:
        for file in files:
            os.close(file)
        return pid
    try:
        code = 1
        for each in sockets:
            each.close()
        code = run(json.loads(message), files)
    finally:
        os._exit(code)


def run(asked, files):
    """Becomes what was asked for; the code it ends with."""
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    ctypes.CDLL(None).prctl(DIES, signal.SIGKILL)
    os.setsid()
    sys.executable = asked["python"]  # what it starts is forked as well
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    imported = {name: text for name, text in os.environ.items() if name.startswith("DTENSOR_")}
    os.environ.clear()
    os.environ.update(imported | asked["environment"])
    os.chdir(asked["folder"])
    tempfile.tempdir = None
    paths = asked["environment"].get("PYTHONPATH", "").split(os.pathsep)
    how, *arguments = asked["arguments"]
    sys.path[:0] = [asked["folder"] if how in ("-m", "-c") else str(Path(how).parent), *paths]
    try:
        if how == "-m":
            sys.argv = arguments
            runpy.run_module(arguments[0], run_name="__main__", alter_sys=True)
        elif how == "-c":
            sys.argv = ["-c", *arguments[1:]]
            exec(compile(arguments[0], "<string>", "exec"), {"__name__": "__main__"})
        else:
            sys.argv = [how, *arguments]
            runpy.run_path(how, run_name="__main__")
        return 0
    except SystemExit as end:
        if isinstance(end.code, int | None):
            return end.code or 0
        print(end.code, file=sys.stderr)
        return 1
    except BaseException:
        sys.excepthook(*sys.exc_info())
        return 1
    finally:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
