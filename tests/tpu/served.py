"""A process that has jax: compiles and replays what it is asked for, a line of JSON each.

    python -m tpu.served

It reads a line such as `["compiled", {"file": ..., ...}]` and writes one with what was found.
"""

import json
import os
import sys
import traceback
from importlib import metadata

REPLICAS = 4
os.environ |= {
    "JAX_PLATFORMS": "cpu",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",  # by several processes: no chip is held
    "TPU_SKIP_MDS_QUERY": "1",  # no metadata server is there
    "TPU_WORKER_HOSTNAMES": "localhost",
    "TPU_ACCELERATOR_TYPE": "v5litepod-4",
    "TPU_WORKER_ID": "0",
    "XLA_FLAGS": f"--xla_force_host_platform_device_count={REPLICAS}",
}


def versions():
    """Of what compiles."""
    return {name: metadata.version(name) for name in ("jax", "libtpu")}


def main():
    import jax

    jax.config.update("jax_enable_x64", True)  # counters are int64
    from tpu import compiling, replaying

    asked = {
        "versions": versions,
        "compiled": compiling.compiled,
        "replayed": replaying.replayed,
    }
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what libraries print is no answer
    for line in sys.stdin:
        name, arguments = json.loads(line)
        try:
            answer = asked[name](**arguments)
        except Exception:  # whoever asked is to know, and may ask for something else
            answer = {"failed": traceback.format_exc()}
        answers.write(json.dumps(answer) + "\n")


if __name__ == "__main__":
    main()
