"""`tf-graft bench-process apart ASKED`: measures an area in a process with two logical CPUs.

Prints a line for each case; see `run.py`. Logical devices can be set only once in a process.
"""

import json

from tf_graft.bench import process
from tf_graft.training import start


def main(asked: str) -> None:
    """Measures the area that `asked` describes in JSON."""
    lines = process.output()
    start.tensorflow()
    import tensorflow as tf

    from tf_graft.bench import cases, fit, results, run, turns

    tf.config.set_logical_device_configuration(
        tf.config.list_physical_devices("CPU")[0],
        [tf.config.LogicalDeviceConfiguration()] * fit.REPLICAS,
    )
    given = json.loads(asked)
    choice, pace = cases.Choice(*given["choice"]), turns.Pace(*given["pace"])
    for measured in run.here(given["area"], choice, pace, process.say):
        print(results.line(measured), file=lines, flush=True)
