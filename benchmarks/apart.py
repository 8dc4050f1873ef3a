"""`python -m benchmarks.apart ASKED`: measures an area in a process with several logical CPUs.

Prints a line for each case; see `run.py`. Logical devices can be set only once in a process.
"""

import json
import sys

from benchmarks import process
from tf_graft.training import start


def main(asked: str) -> None:
    """Measures the area that `asked` describes in JSON."""
    lines = process.output()
    start.tensorflow()
    import tensorflow as tf

    from benchmarks import areas, cases, results, run, turns

    given = json.loads(asked)
    tf.config.set_logical_device_configuration(
        tf.config.list_physical_devices("CPU")[0],
        [tf.config.LogicalDeviceConfiguration()] * areas.AREAS[given["area"]].devices,
    )
    choice, pace = cases.Choice(*given["choice"]), turns.Pace(*given["pace"])
    for measured in run.here(given["area"], choice, pace, process.say):
        print(results.line(measured), file=lines, flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
