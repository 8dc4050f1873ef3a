"""`tf-graft bench-apart ASKED`: measures an area in a process with two logical CPUs.

Prints a line for each case; see `run.py`. Logical devices can be set only once in a process.
"""

import json
import os
import signal
import sys

import tensorflow as tf

from tf_graft.bench import results, run
from tf_graft.bench.cases import Choice
from tf_graft.bench.fit import REPLICAS
from tf_graft.bench.turns import Pace


def main(asked: str) -> None:
    """Measures what is asked for, in JSON."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # the command says what there is to say
    lines = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what else is printed is no line
    tf.config.set_logical_device_configuration(
        tf.config.list_physical_devices("CPU")[0],
        [tf.config.LogicalDeviceConfiguration()] * REPLICAS,
    )
    given = json.loads(asked)
    choice, pace = Choice(*given["choice"]), Pace(*given["pace"])
    for measured in run.here(given["area"], choice, pace, say):
        print(results.line(measured), file=lines, flush=True)


def say(line: str) -> None:
    """Says on standard error what is being measured."""
    print(line, file=sys.stderr, flush=True)
