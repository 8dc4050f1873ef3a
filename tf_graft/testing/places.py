"""Guarantees for variables on replicas and on a mesh."""

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.experimental import dtensor

from tf_graft.core.optimizer import Optimizer
from tf_graft.dtensor import create_mesh, from_mesh, to_mesh
from tf_graft.testing.trials import (
    SHAPES,
    Rows,
    Skipped,
    Trial,
    gradients,
    same,
    skip_unless_steps_alone,
    with_rows,
)

Make = Callable[..., Optimizer]
ROWS = [4, 1, 4, 2]
FEW = "fewer than 2 devices; call tf_graft.dtensor.logical_cpus(2) before TensorFlow starts"
SPECS = {
    "table": [dtensor.UNSHARDED, "x"],
    "kernel": ["x", dtensor.UNSHARDED],
    "bias": ["x"],
    "scale": [],
}


def _devices() -> list[str]:
    """Returns two devices of one kind: GPUs, or logical CPUs."""
    for kind in ("GPU", "CPU"):
        found = tf.config.list_logical_devices(kind)
        if len(found) >= 2:
            return [f"{kind}:0", f"{kind}:1"]
    raise Skipped(FEW)


def replicas(make: Make) -> str:
    """Two replicas with half of a gradient each do the same as one device with all of it."""
    skip_unless_steps_alone(make)
    # Without collectives, because those of two strategies on the same devices break each other.
    alone = tf.distribute.ReductionToOneDevice()
    strategy = tf.distribute.MirroredStrategy(_devices(), cross_device_ops=alone)
    with strategy.scope():
        trial = Trial(make())
        trial.optimizer.build(list(trial.model.values()))
    variables = list(trial.model.values())

    @tf.function
    def apply(*shares: Any) -> None:
        def on_replica(*gradients: Any) -> None:
            trial.optimizer.apply(list(gradients), variables)

        strategy.run(on_replica, args=shares)

    for step in with_rows(ROWS):
        apply(*(_shared(strategy, trial, gradient) for gradient in step.values()))
    for variable in (*variables, *trial.optimizer.variables):
        first, second = (v.numpy() for v in strategy.experimental_local_results(variable.value))
        if first.tobytes() != second.tobytes():
            raise AssertionError(f"'{variable.path}' differs from replica to replica")
    return same("one device", trial.state(), Trial(make()).run(with_rows(ROWS)).state())


def _shared(strategy: tf.distribute.Strategy, trial: Trial, gradient: Any) -> Any:
    def share(context: Any) -> Any:
        first = context.replica_id_in_sync_group == 0
        if isinstance(gradient, Rows):
            half = slice(0, 2) if first else slice(2, None)
            return trial.tensor(Rows(gradient.values[half], gradient.ids[half]))
        return trial.tensor(gradient * np.float32(0.25 if first else 0.75))

    return strategy.experimental_distribute_values_from_function(share)


def mesh(make: Make) -> str:
    """An optimizer on a mesh of two devices does the same as on one device."""
    grid = create_mesh({"x": 2}, devices=_devices())
    layouts = {path: dtensor.Layout(spec, grid) for path, spec in SPECS.items()}
    one = Trial(make())
    model = {
        path: dtensor.DVariable(to_mesh(variable.numpy(), layouts[path]), name=path)
        for path, variable in one.model.items()
    }
    optimizer = make()
    optimizer.build(list(model.values()))
    for step in gradients():
        shares = [to_mesh(step[path], layouts[path]) for path in SHAPES]
        optimizer.apply(shares, list(model.values()))
    found = {path: from_mesh(v.read_value()).numpy() for path, v in model.items()}
    prefix = f"{optimizer.name}/"
    found |= {
        f"optimizer/{v.path.removeprefix(prefix)}": from_mesh(v.value.read_value()).numpy()
        for v in optimizer.variables
    }
    return same("one device", found, one.run(gradients()).state())


GUARANTEES = (replicas,)
