"""Steps of four replicas, run on four CPU devices of XLA and compared with the float64 oracle."""

import functools

import numpy as np

import tf_graft
from support import cells, oracles, rounds, samples
from tpu.lowering import Step

REPLICAS = 4
MOMENTUM = rounds.by(oracles.sgd, cells.RATE, momentum=0.9)
# Rows beside those of `samples.py`: AGN by what it accumulates, with what updates its center.
AGN = {"agn": ("gradients", MOMENTUM), "agn_updates": ("updates", rounds.by(oracles.sgd, 1.0))}
SCALED = "mixed_precision"
WRAPPERS = (*AGN, SCALED)
PERIOD = 2
AGN_STEPS = 3  # after two the replicas are alike


class Left:
    """What a program left: by path the value of each replica."""

    def __init__(self, step, option, jax, folder, steps):
        self.step, self.option, self.steps = step, option, steps
        program, inputs, left = (folder / name for name in ("step.hlo", "in.npz", "out.npz"))
        program.write_bytes(step.lowered())
        np.savez(inputs, **self.inputs())
        jax.ask(
            "replayed",
            file=str(program),
            inputs=str(inputs),
            left=str(left),
            replicas=REPLICAS,
            steps=steps,
        )
        with np.load(left) as found:
            self.values = {path: found[f"state/{n}"] for n, path in step.paths().items()}

    def inputs(self):
        """By name each array that the program is given, with a value for each replica."""
        found = {f"state/{number}": array for number, array in self.step.state().items()}
        for number, values in enumerate(cells.shares(self.option, REPLICAS)[: self.steps]):
            for position, array in enumerate([cells.ids(REPLICAS), *values]):
                found[f"given/{number}/{position}"] = np.stack(array)
        return found

    def differing(self):
        """The paths of what is not the same bit for bit on all replicas."""
        return sorted(
            path
            for path, (first, *others) in self.values.items()
            if any(other.tobytes() != first.tobytes() for other in others)
        )

    def read_into(self, optimizer, model):
        """Gives variables of one device what the first replica has."""
        every = {v.path: v for v in optimizer.variables}
        every |= {f"model/{path}": v for path, v in model.items()}
        for path, value in self.values.items():
            every[path].assign(value[0])


def sample_of(row):
    return samples.BY_NAME["adam" if row == SCALED else row]


def make_of(row, option):
    """Makes the optimizer of a row with an option."""
    if row == SCALED:  # whose option is its scale
        inner = sample_of(row).make
        return lambda: tf_graft.MixedPrecision(inner(), cells.OPTIONS[option]["loss_scale_factor"])
    return functools.partial(sample_of(row).make, name="optimizer", **cells.OPTIONS[option])


def replayed(row, option, jax, folder, control=None):
    """A cell, as in the matrix: its error as a share of what is allowed, or a known refusal."""
    if row in AGN:
        return replayed_agn(row, jax, folder)
    make = make_of(row, option)
    try:
        step = Step(make, cells.weights(), REPLICAS, control=control)
    except (TypeError, ValueError) as error:
        reason = str(error).partition("\n")[0]
        assert cells.known_refusal(reason), reason
        return cells.Cell(row, option, None, reason)
    left = Left(step, option, jax, folder, cells.STEPS)
    assert not left.differing(), f"{row}, {option}: replicas differ in {left.differing()}"
    model, optimizer = samples.variables(cells.weights()), make()
    optimizer.build(list(model.values()))
    left.read_into(optimizer, model)
    found = cells.left_by(optimizer, model)
    return cells.judged(sample_of(row), option, found)._replace(sample=row)


def replayed_agn(row, jax, folder):
    """AGN of momentum: the copy of each replica, and the center, which has the same bits on all."""
    mode, center = AGN[row]

    def make():
        local = tf_graft.SGD(cells.RATE, momentum=0.9)
        return tf_graft.AGN(local, communication_period=PERIOD, mode=mode)

    step = Step(make, cells.weights(), REPLICAS)
    left = Left(step, "plain", jax, folder, AGN_STEPS)
    shared = {path for path in left.values if path.endswith("/center")}
    assert len(shared) == len(cells.SHAPES)
    shared |= {variable.path for variable in step.optimizer.center_optimizer.variables}
    assert not shared & set(left.differing())
    truth = rounds.Rounds(cells.weights(), MOMENTUM, center, PERIOD, REPLICAS, mode == "updates")
    for number, parts in enumerate(cells.parts("plain")[:AGN_STEPS]):
        each = [cells.dense(part, i, cells.SHAPES) for i, part in enumerate(parts)]
        truth.steps_together(each, number)
    return cells.Cell(row, "plain", max(agn_errors(left.values, truth)))


def agn_errors(values, truth):
    """Of each variable the error of the replicas' copies, and of the center."""
    for path in cells.SHAPES:
        yield off(values[f"model/{path}"], np.stack([worker.w[path] for worker in truth.workers]))
        (center,) = (v for name, v in values.items() if name.endswith(f"/{path}/center"))
        yield off(center, truth.c[path])


def off(found, right, allowed=2e-6):
    """The largest error, as a share of what is allowed."""
    return float(np.max(np.abs(found - right) / (allowed + allowed * np.abs(right))))
