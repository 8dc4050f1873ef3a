"""Steps of optimizers compiled by the TPU's own compiler, which needs no TPU, and run on CPUs.

`lowering.py` lowers a step with TensorFlow, as one replica of a TPU would run it. `compiling.py`
compiles it with libtpu, and `replaying.py` runs four replicas of it on four CPU devices of XLA;
both need jax, which may be in another environment, and run in a process of their own (`served.py`).
`checks.py` says what must hold, and `exceptions.py` where it is known not to.

The program comes from the kernels that TensorFlow has for XLA on CPUs, not from the bridge that
`TPUStrategy` uses.

`python tests/tpu` does it all; `tests/test_tpu_programs.py` does a part.
"""
