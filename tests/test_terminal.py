"""What a terminal shows: how soon commands answer, and that runs say nothing but what they are to.

Each test runs processes of its own, without the settings that keep TensorFlow quiet in other tests.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import tf_graft

CONFIGS = Path(__file__).parents[1] / "configs"
MODULE = (sys.executable, "-m", "tf_graft")
SCRIPT = (sys.executable, str(Path(sys.executable).with_name("tf-graft")))
HEAVY = {"tensorflow", "keras", "numpy", "matplotlib", "tensorflow_datasets"}


@pytest.fixture
def terminal(tmp_path, monkeypatch):
    """Runs a command in an empty folder: its exit code, standard output and standard error."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TF_CPP_MIN_LOG_LEVEL", raising=False)
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(path for path in sys.path if path))
    return lambda *command: subprocess.run(command, capture_output=True, text=True, timeout=300)


def imported(importtime):
    """The top-level names of the modules that `-X importtime` lists."""
    return {
        name.split(".")[0] for name in re.findall(r"^import time:.*\| +(\S+)$", importtime, re.M)
    }


@pytest.mark.parametrize(
    ("start", "arguments", "code", "says"),
    [
        (MODULE, ["--help"], 0, "report.html"),
        (SCRIPT, ["train", "--help"], 0, "run.epochs=5"),
        (SCRIPT, ["--version"], 0, f"tf_graft {tf_graft.__version__}\n"),
        (MODULE, ["train", "nowhere.yaml"], 2, "nowhere.yaml: no such file or directory.\n"),
        (
            MODULE,
            ["launch", str(CONFIGS / "digits_agn.yaml")],
            2,
            "digits_agn.yaml:8: this config runs in one process, with tf-graft train; ",
        ),
        (MODULE, ["train"], 2, "Missing argument"),
    ],
)
def test_what_needs_no_tensorflow_does_not_wait_for_it(start, arguments, code, says, terminal):
    done = terminal(start[0], "-X", "importtime", *start[1:], *arguments)
    assert done.returncode == code
    assert says in done.stdout + done.stderr
    names = imported(done.stderr)
    assert "tf_graft" in names
    assert not names & HEAVY


LAZY = """
import os, sys
sys.argv[0] = "/somewhere/bin/tf-graft"
import tf_graft
assert "tensorflow" not in sys.modules
try:
    tf_graft.Adm
except AttributeError as error:
    assert str(error) == "module 'tf_graft' has no attribute 'Adm'", error
else:
    raise AssertionError
from tf_graft import *
import keras
from keras.src.saving import saving_lib
assert not hasattr(saving_lib.load_weights_only, "__wrapped__")  # Keras' own, until it matters
Adam()
assert hasattr(saving_lib.load_weights_only, "__wrapped__")
assert keras.saving.get_registered_object("tf_graft>Adam") is Adam is tf_graft.Adam
assert {"Adam", "dtensor", "__version__"} <= set(dir(tf_graft))
assert os.environ["DTENSOR_ENABLE_COMBINE_ALL_REDUCES_OPTIMIZATION"] == "0"
"""


@pytest.mark.rare
def test_in_the_command_line_all_names_are_there_when_they_are_used(terminal):
    done = terminal(sys.executable, "-c", LAZY)
    assert done.returncode == 0, done.stderr


def test_in_any_other_process_all_names_are_there_from_the_start():
    # here, in pytest: not by way of `__getattr__`
    assert set(tf_graft.__all__) <= set(vars(tf_graft))
    assert "Adam" in tf_graft.__all__


@pytest.mark.rare
def test_a_run_says_nothing_on_standard_error(terminal):
    """Neither the launcher nor the chief, a worker and a server, which train."""
    config = CONFIGS / "digits_agn_parameter_server.yaml"
    done = terminal(*MODULE, "launch", "--ps", "1", str(config), "run.epochs=1")
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    lines = done.stdout.splitlines()
    assert [line for line in lines if line.startswith("Training a model of 17,226 parameters")]
    assert lines[-1].startswith("Done: test accuracy")


@pytest.mark.slow
def test_what_tensorflow_says_can_be_seen_and_errors_pass(terminal, monkeypatch):
    script = """
import os, sys
from tf_graft.training import start
with start._without_noise():
    os.write(2, b"I0000 00:00:1.5 1 port.cc:153] an information\\n")
    os.write(2, b"E0000 00:00:1.5 1 port.cc:153] an error\\n")
    print("of Python", file=sys.stderr)
    os.write(2, b"last words")
    os.abort()
"""
    monkeypatch.setattr(sys, "argv", ["tf-graft"])
    done = terminal(sys.executable, "-c", f"import sys; sys.argv = ['tf-graft']\n{script}")
    assert done.returncode < 0
    assert done.stderr.endswith("] an error\nof Python\nlast words\n")
    assert "information" not in done.stderr


@pytest.mark.rare
def test_a_new_config_has_the_optimizers_of_this_package(terminal, tmp_path):
    """Where no other module has registered them."""
    done = terminal(*MODULE, "new", "mlp", "digits")
    assert (done.returncode, done.stderr) == (0, "")
    assert "# decay of the mean square." in (tmp_path / "digits_mlp.yaml").read_text()
