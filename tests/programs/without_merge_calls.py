"""Replicas without merge calls, as of GPUs under XLA; a program, run by `test_replicas.py`."""

import tensorflow as tf

from support import devices


def main() -> None:
    devices.prepare()
    from support import replica_problems as of  # makes tensors
    from support.replicas import mirrored

    strategy = mirrored()
    strategy.extended._use_merge_call = lambda: False  # as TensorFlow's own tests imitate it
    tf.distribute.ReplicaContext.merge_call = None
    for option in ("plain", "together", "not_finite_on_1"):
        optimizer, model = of.problem("adam", option, "dense", strategy.scope(), strategy.scope())
        optimizer.build(model)
        steps = of.data("dense", of.bad_replica(option))
        of.run_replicas(optimizer, model, "dense", steps, graph=True)
        of.assert_equals_one(optimizer, model, of.one_device("adam", option, "dense"))
        print(option)


if __name__ == "__main__":
    main()
