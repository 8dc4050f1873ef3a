"""Asks a process that has jax, which this one need not have."""

import json
import os
import pathlib
import subprocess
import tempfile

TESTS = pathlib.Path(__file__).parents[1]
NEEDED = "import jax, libtpu"


def has_jax(python):
    """Whether an interpreter has what compiles for TPUs."""
    return subprocess.run([python, "-c", NEEDED], capture_output=True).returncode == 0


class Jax:
    """A process with jax and libtpu, which is started when it is first asked, and after its end.

    Args:
        python: its interpreter.
    """

    def __init__(self, python):
        self.python, self.process, self.said = python, None, None

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.end()

    def start(self):
        self.said = tempfile.TemporaryFile("w+")  # noqa: SIM115 - it lives as long as the process
        self.process = subprocess.Popen(
            [self.python, "-m", "tpu.served"],
            env=os.environ | {"PYTHONPATH": str(TESTS)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.said,
            text=True,
        )

    def end(self):
        """Ends the process; the end of what it printed."""
        if self.process is None:
            return ""
        self.process.kill()
        self.process.communicate()
        self.said.seek(0)
        with self.said:
            self.process, text = None, self.said.read()
        return text[-3000:]

    def ask(self, name, **arguments):
        """What the process says; what fails there is an error here."""
        if self.process is None:
            self.start()
        try:
            self.process.stdin.write(json.dumps([name, arguments]) + "\n")
            self.process.stdin.flush()
            line = self.process.stdout.readline()
        except BrokenPipeError:
            line = ""
        answer = json.loads(line) if line else {"failed": f"it ended: {self.end()}"}
        if "failed" in answer:
            raise RuntimeError(f"{self.python}: {name}: {answer['failed']}")
        return answer
