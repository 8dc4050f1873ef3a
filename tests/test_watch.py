"""Who is asked whether it still answers, and what becomes of its silence."""

import os
import signal
import socket
import subprocess
import sys
import threading

import pytest

from tf_graft.processes import watch as watching
from tf_graft.processes.cluster import free_ports

SERVER = """
import os, sys, tensorflow as tf
spec = tf.train.ClusterSpec({"worker": [sys.argv[1]]})
server = tf.distribute.Server(spec, job_name="worker", task_index=0)
print(os.getpid(), flush=True)
server.join()
"""


@pytest.mark.slow
def test_a_server_answers_until_it_is_stopped():
    address = f"localhost:{free_ports(1)[0]}"
    server = subprocess.Popen(
        # Not a forked one: a signal that stops reaches the client alone.
        [sys.executable, "-c", SERVER, address],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert int(server.stdout.readline()) == server.pid
        assert watching.answers(address, 60)
        server.send_signal(signal.SIGSTOP)
        os.waitpid(server.pid, os.WUNTRACED)  # until all its threads have stopped
        assert not watching.answers(address, 0.5)
        server.send_signal(signal.SIGCONT)
        assert watching.answers(address, 60)
    finally:
        server.kill()
        server.communicate()
    assert watching.answers(address, 0.5)  # of a process that has ended the machine says so


def test_who_takes_a_call_and_says_nothing_does_not_answer():
    with socket.create_server(("localhost", 0)) as listening:
        address = f"localhost:{listening.getsockname()[1]}"
        assert not watching.answers(address, 0.1)
    assert watching.answers(address, 0.1)  # there is nobody: the machine says so


@pytest.mark.parametrize(
    ("said", "lost"),
    [
        ([True, False, False, True, False, False], []),
        ([False] * 6, []),  # not there yet
        ([True, False, False, False, False, False], ["worker 0"]),  # once
    ],
)
def test_silence_is_lost_after_several_misses(said, lost, monkeypatch):
    left, done, found = list(said), threading.Event(), []

    def answer(address):
        if not left:
            done.set()
            threading.Event().wait()  # this thread is over
        return left.pop(0)

    monkeypatch.setattr(watching, "answers", answer)
    monkeypatch.setattr(watching, "EVERY", 0.0)
    monkeypatch.setattr(watching, "MISSES", 3)
    watching.watch({"worker 0": "here:1"}, found.append)
    assert done.wait(10)
    assert found == lost


def test_the_first_question_comes_at_once(monkeypatch):
    """A process that is stopped in its first seconds is missed, too."""
    asked = threading.Event()

    def answer(address):
        asked.set()
        threading.Event().wait()  # this thread is over

    monkeypatch.setattr(watching, "answers", answer)
    watching.watch({"worker 0": "here:1"}, [].append)
    assert asked.wait(watching.EVERY / 2)
