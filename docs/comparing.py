"""What the comparisons of optimizers share: training a candidate, and keeping the figures.

    python docs/make_X.py [OPTIMIZER[:RATE,RATE...]]... [--seeds N] [--updates N] [--warm-up N]

Each optimizer trains at its rates, or at the given ones, with seed 0; then the rate with the lowest
validation loss trains with the other seeds. Figures that are there already are kept.
"""

import argparse
import contextlib
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf

SAME = ("optimizer", "rate", "seed", "updates", "warm_up")
VALIDATIONS = 20


class Course(NamedTuple):
    """The schedules of a run: `course(rate)` is a learning rate's."""

    updates: int
    warm_up: int

    def __call__(self, highest: float) -> keras.optimizers.schedules.LearningRateSchedule:
        return keras.optimizers.schedules.CosineDecay(
            0.0,
            self.updates - self.warm_up,
            alpha=0.1,
            warmup_target=highest,
            warmup_steps=self.warm_up,
        )

    def amid(self, value: float) -> keras.optimizers.schedules.LearningRateSchedule:
        """Returns a value from a tenth of the updates to three quarters of them, 0 elsewhere."""
        bounds = [self.updates // 10, self.updates * 3 // 4]
        return keras.optimizers.schedules.PiecewiseConstantDecay(bounds, [0.0, value, 0.0])


class Task(NamedTuple):
    """What the candidates of a comparison train.

    A batch is a tensor or a tuple of tensors; several have one more axis in front.
    """

    numbers: Path  # where the figures are kept
    candidates: dict  # by name: the optimizer of a rate, a course and a model; the rates to try
    course: Course  # unless another is asked for
    model: Callable[[], keras.Model]
    loss: Callable[[keras.Model, Any], tf.Tensor]  # of a batch
    batches: Callable[[int, int], Any]  # so many of them, with this seed
    held: dict[str, Any]  # by the name of their losses; `losses` are those with a goal
    chosen_by: str  # the name of the losses that choose a rate
    goal: float


def part_of(batches, part):
    return tf.nest.map_structure(lambda tensor: tensor[part], batches)


def trained(task: Task, name: str, rate: float, seed: int, course: Course) -> dict:
    """Trains once; returns the losses of what is held by update, and the seconds of an update."""
    keras.utils.set_random_seed(seed)
    model = task.model()
    optimizer = task.candidates[name][0](rate, course, model)
    optimizer.build(model)
    every = course.updates // VALIDATIONS
    train, validated = functions(task, model, optimizer, every)
    batches = task.batches(course.updates, seed)
    losses: dict[str, dict[int, float]] = {held: {} for held in task.held}
    seconds = []
    for done in range(0, course.updates, every):
        begin = time.perf_counter()
        train(part_of(batches, slice(done, done + every)))
        seconds.append((time.perf_counter() - begin) / every)
        with getattr(optimizer, "evaluation_weights", contextlib.nullcontext)():
            for held, data in task.held.items():
                losses[held][done + every] = round(float(validated(data)), 4)
    reached = (update for update, value in losses["losses"].items() if value <= task.goal)
    return {
        **dict(zip(SAME, (name, rate, seed, *course), strict=True)),
        **losses,
        "updates_to_goal": next(reached, None),
        "seconds_per_update": round(float(np.median(seconds[1:] or seconds)), 4),
    }


def functions(task: Task, model: keras.Model, optimizer, every: int) -> tuple[Callable, Callable]:
    """Returns a function that trains with `every` batches, and one of the loss of batches."""
    weights = model.trainable_variables

    @tf.function(reduce_retracing=True)
    def train(batches):
        for step in tf.range(every):
            with tf.GradientTape() as tape:
                value = task.loss(model, part_of(batches, step))
            optimizer.apply(tape.gradient(value, weights), weights)

    @tf.function(reduce_retracing=True)
    def validated(batches):
        losses = tf.map_fn(
            lambda batch: task.loss(model, batch), batches, fn_output_signature=tf.float32
        )
        return tf.reduce_mean(losses)

    return train, validated


def parser(about: str, *files: str) -> argparse.ArgumentParser:
    """Returns the command line that all comparisons have, after the names of files."""
    made = argparse.ArgumentParser(description=about.partition("\n")[0])
    for file in files:
        made.add_argument(file, type=Path)
    made.add_argument("optimizers", nargs="*")
    made.add_argument("--seeds", type=int, default=3)
    made.add_argument("--updates", type=int)
    made.add_argument("--warm-up", type=int)
    return made


def compare(task: Task, given: argparse.Namespace) -> None:
    """Trains what is asked for, unless its figures are there."""
    course = Course(given.updates or task.course.updates, given.warm_up or task.course.warm_up)
    for asked in given.optimizers or task.candidates:
        name, _, written = asked.partition(":")
        rates = map(float, written.split(",")) if written else task.candidates[name][1]
        runs = [figures(task, name, rate, 0, course) for rate in rates]
        last = [[*run[task.chosen_by].values()][-1] for run in runs]
        for seed in range(1, given.seeds):  # a loss can be NaN
            figures(task, name, runs[int(np.nanargmin(last))]["rate"], seed, course)


def figures(task: Task, name: str, rate: float, seed: int, course: Course) -> dict:
    """Returns a run that is kept, or trains and keeps it."""
    made = json.loads(task.numbers.read_text()) if task.numbers.exists() else []
    asked_for = (name, rate, seed, *course)
    for run in made:
        if tuple(run[key] for key in SAME) == asked_for:
            return run
    run = trained(task, name, rate, seed, course)
    print(*asked_for, [*run["losses"].values()][-1], flush=True)
    task.numbers.write_text(json.dumps([*made, run], indent=1) + "\n")
    return run
