"""Whole training steps, as in `fit`."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import keras
import tensorflow as tf

from benchmarks.cases import Candidate, Step
from benchmarks.optimizers import Make


class Task(NamedTuple):
    """A model, the examples on which it is trained repeatedly, and the loss."""

    model: Callable[[], keras.Model]
    examples: Callable[[], tuple[Any, Any]]  # inputs and targets
    batch: int  # examples of an update
    loss: str


def training(
    task: Task,
    make: Make,
    *,
    policy: str = "float32",
    compiled: bool | str = "auto",
    strategy: tf.distribute.Strategy | None = None,
) -> Candidate:
    """Prepares a model that `fit` trains with an optimizer.

    The first call is `compile` and `fit` of one update; a step is the function that `fit` calls per
    update. The weights that must move are those of the last layer.

    Args:
        task: the model and its data.
        make: makes the optimizer.
        policy: the dtype policy of all layers.
        compiled: `jit_compile` of `Model.compile`.
        strategy: the strategy in which the model is made; None for the default one.
    """
    strategy = strategy or tf.distribute.get_strategy()
    keras.utils.set_random_seed(0)
    with strategy.scope(), _policy(policy):
        model = task.model()
    examples = tf.data.Dataset.from_tensor_slices(task.examples())
    data = examples.batch(task.batch, drop_remainder=True).cache().repeat().prefetch(2)

    def start() -> Step:
        with strategy.scope():
            optimizer = make()
            model.compile(optimizer, task.loss, jit_compile=compiled)
        calls = optimizer.gradient_accumulation_steps or 1
        model.fit(data, steps_per_epoch=calls, shuffle=False, verbose=0)
        batches = iter(strategy.experimental_distribute_dataset(data))

        def step() -> None:
            for _ in range(calls):
                model.train_function(batches)

        return step

    return Candidate(start, lambda: model.layers[-1].trainable_variables)


@contextlib.contextmanager
def _policy(name: str) -> Iterator[None]:
    """Makes layers with a dtype policy."""
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy(name)
    try:
        yield
    finally:
        keras.config.set_dtype_policy(before)
