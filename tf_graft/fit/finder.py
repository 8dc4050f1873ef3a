"""The learning rate finder: a range test that leaves everything as it was."""

import contextlib
import math
import random
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import keras
import numpy as np
import tensorflow as tf

from tf_graft.core import checks, keras_contract
from tf_graft.core.media import for_notebook
from tf_graft.core.nesting import nested
from tf_graft.core.state import write

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SMOOTHING = 0.9  # the weight of the past in the mean of the losses
FIRST = 10  # losses, in whose mean the noise of single batches is still large
OWNER = "find_learning_rate"


class _FadingMean:
    """The mean of numbers whose weights fade by `SMOOTHING` with each further number."""

    def __init__(self) -> None:
        self.total = self.weight = 0.0

    def add(self, number: float) -> float:
        """Adds a number, and returns the mean of all so far."""
        self.total = SMOOTHING * self.total + number
        self.weight = SMOOTHING * self.weight + 1
        return self.total / self.weight


@dataclass(frozen=True, repr=False)
class LearningRateCurve:
    """The result of `find_learning_rate`: the loss of each batch as the learning rate grew.

    A notebook shows it as `plot` draws it.

    Attributes:
        rates: the learning rate of each update, growing by the same factor at every step.
        losses: the loss of the batch that the update was made from, before the update.
        smoothed: the exponential moving average of the losses, corrected for its start.
            `smoothed_rates` are the learning rates that these averages belong to.
        exploded: whether the test ended early, because the loss exploded or was not finite.
    """

    rates: np.ndarray
    losses: np.ndarray
    smoothed: np.ndarray
    exploded: bool

    def __repr__(self) -> str:
        """Says how far the test went and what it suggests."""
        found = "none" if self.suggestion is None else f"{self.suggestion:.2g}"
        said = f"{len(self.rates)} updates"
        if len(self.rates):
            said += f", learning rates {self.rates[0]:.2g} to {self.rates[-1]:.2g}"
        if self.exploded:
            said += ", exploded"
        return f"<LearningRateCurve: {said}; suggestion: {found}>"

    def _repr_png_(self) -> bytes | None:
        def draw() -> "Figure":
            figure = _figure()
            self.plot(figure.subplots())
            return figure

        return for_notebook(draw)

    @property
    def smoothed_rates(self) -> np.ndarray:
        """The geometric mean of the learning rates, with the weights of the smoothed losses.

        A smoothed loss is a mean over past batches, which are up to nine batches old on average.
        Their learning rates were smaller than that of the last batch.
        """
        mean = _FadingMean()
        return np.exp([mean.add(rate) for rate in np.log(self.rates)])

    @property
    def suggestion(self) -> float | None:
        """The one of `smoothed_rates` at which the smoothed loss falls fastest from batch to batch.

        Learning rates above that of the lowest smoothed loss do not count, because there the loss
        falls only after a jump. The first ten losses do not count either (the first half, if there
        are fewer than 20), because their mean is taken over few batches. Losses before the last
        place where the smoothed loss is within the first quarter of its fall do not count, because
        the noise of batches can be steeper there. The suggestion is None if the smoothed loss never
        falls, or if there are fewer than three losses.
        """
        if len(self.rates) < 3:
            return None
        slope = np.gradient(self.smoothed, np.log(self.rates))
        first = min(FIRST, len(slope) // 2)
        last = first + int(np.argmin(self.smoothed[first:]))
        fall = self.smoothed[first : last + 1]
        first += int(np.flatnonzero(fall >= 0.75 * fall.max() + 0.25 * fall.min())[-1])
        steepest = first + int(np.argmin(slope[first : last + 1]))
        return float(self.smoothed_rates[steepest]) if slope[steepest] < 0 else None

    def plot(self, ax: "Axes | None" = None) -> "Axes":
        """Draws the losses, the smoothed losses and the suggestion; needs matplotlib.

        If there is a suggestion, the loss axis is cut off above the losses before the lowest
        smoothed one.

        Args:
            ax: where to draw; None for a new figure.

        Returns:
            The axes, with a logarithmic axis of learning rates.
        """
        ax = _figure().subplots() if ax is None else ax
        ax.plot(self.rates, self.losses, color="#4269d0", alpha=0.35, linewidth=0.8, label="loss")
        ax.plot(self.smoothed_rates, self.smoothed, color="#4269d0", label="smoothed")
        if self.suggestion is not None:
            label = f"suggestion: {self.suggestion:.2g}"
            ax.axvline(self.suggestion, color="#3ca951", linestyle="--", label=label)
            least, most = self.losses.min(), self.losses[: np.argmin(self.smoothed) + 1].max()
            ax.set_ylim(least - 0.1 * (most - least), most + 0.1 * (most - least))
        ax.set(xscale="log", xlabel="learning rate", ylabel="loss")
        ax.grid(alpha=0.3)
        ax.legend(frameon=False)
        return ax


def _figure() -> "Figure":
    from matplotlib.figure import Figure

    return Figure(figsize=(7, 3.8), layout="constrained")


def find_learning_rate(
    model: keras.Model,
    data: Any,
    *,
    low: float = 1e-6,
    high: float = 10.0,
    steps: int = 200,
    explosion: float = 4.0,
    batch_size: int | None = None,
) -> LearningRateCurve:
    """Trains for some steps at a growing learning rate, then restores everything.

        rate_i = low * (high / low)^(i / (steps - 1))
        m_i = 0.9 * m_(i-1) + 0.1 * loss_i;  smoothed_i = m_i / (1 - 0.9^(i+1))

    The test ends early when a loss is not finite, or when the smoothed loss exceeds the lowest one
    so far by `explosion - 1` times its size (a positive loss is then `explosion` times as large).
    The result's `suggestion` is the learning rate at which the smoothed loss falls fastest: a
    geometric mean of the rates, with the weights of the losses in `smoothed_i`.

    Afterwards the weights, the metrics, the optimizer's variables, its iterations and its learning
    rate or schedule are exactly as before, even if you interrupt the test or it fails. The model's
    seed generators and the generators of `random` and NumPy are restored, too, but TensorFlow's
    global generator is not. An optimizer that was not built is built afterwards.

    Args:
        model: A compiled model, with any loss and any optimizer that has one learning rate.
            Optimizers that find the length of their steps themselves, such as `Prodigy` and
            `COCOB`, are refused: train them at a learning rate of 1. A constant replaces a schedule
            during the test.
        data: What `model.fit` takes: a `tf.data.Dataset`, a `PyDataset`, or a tuple of arrays
            `(x, y)` or `(x, y, sample_weight)`. If the data end before the test, they are read
            again from the start.
        low: The first learning rate, above 0. Default: 1e-6.
        high: The last learning rate, above `low`. Default: 10.
        steps: The number of batches, at least 3 (of executions, if the model was compiled with
            `steps_per_execution`). Default: 200.
        explosion: How much the smoothed loss may grow, above 1; see above. Default: 4.
        batch_size: The examples in a batch, if `data` are arrays. Default: None, 32 as in `fit`.

    Returns:
        A `LearningRateCurve`.

    Raises:
        TypeError: If an argument is not of its type, or the optimizer has no single learning rate
            or finds the length of its steps itself.
        ValueError: If an argument lies outside its range; if the model is not compiled or built, or
            its `train_step` returns no `"loss"`; if there is no batch.

    Example:
        >>> import tf_graft as tg
        >>> model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
        >>> model.compile(tg.SGD(0.1), loss="mse")
        >>> curve = find_learning_rate(model, (np.ones((8, 1)), np.ones((8, 1))), steps=5)
        >>> [float(f"{rate:.3g}") for rate in curve.rates]
        [1e-06, 5.62e-05, 0.00316, 0.178, 10.0]
        >>> float(model.optimizer.learning_rate), int(model.optimizer.iterations)
        (0.10000000149011612, 0)

    Reference:
        Smith, Cyclical Learning Rates for Training Neural Networks, arXiv:1506.01186, section 3.3.
    """
    low, high = checked(model, low, high)
    steps = checks.integer(OWNER, "steps", steps, low=3)
    explosion = checks.number(OWNER, "explosion", explosion, low=1, open_low=True)
    batch_size = checks.integer(OWNER, "batch_size", batch_size, 1, optional=True)
    x, *others = _given(data)
    targets = dict(zip(("y", "sample_weight"), others, strict=False))
    whole = isinstance(x, tf.data.Dataset | tf.distribute.DistributedDataset)
    test = _RangeTest(np.geomspace(low, high, steps), explosion)
    fit = {"batch_size": batch_size, "shuffle": not whole, "verbose": 0, "callbacks": [test]}
    with _kept(model), test.put_back:
        model.fit(x, **targets, **fit, epochs=steps)  # as many as are needed if data are short
    if not test.losses and not test.exploded:
        raise ValueError(f"{OWNER}: there is no batch in the data.")
    return test.curve()


def _given(data: Any) -> tuple[Any, ...]:
    """Returns the arguments of `fit` that the data stand for."""
    given = data if isinstance(data, tuple) else (data,)
    if data is None or isinstance(data, list | str) or not 0 < len(given) <= 3:
        raise TypeError(
            f"{OWNER}(data={checks.shown(data)}): data must be a tuple (x, y), or one thing that "
            "has both, such as a tf.data.Dataset."
        )
    return given


def checked(model: keras.Model, low: float, high: float) -> tuple[float, float]:
    """Returns the first and the last learning rate of a test as numbers.

    Raises:
        TypeError, ValueError: those of `find_learning_rate`, for these arguments.
    """
    low = checks.number(OWNER, "low", low, low=0, open_low=True)
    high = checks.number(OWNER, "high", high, low=low, open_low=True)
    checks.refuse_tf_keras(f"{OWNER}({checks.shown(model)})", model, "a model")
    if not isinstance(model, keras.Model) or getattr(model, "optimizer", None) is None:
        raise ValueError(f"{OWNER}({checks.shown(model)}): give a model that is compiled.")
    if not model.built:
        raise ValueError(
            f"{OWNER}: the model '{model.name}' has no weights yet; call it on a batch, or give it "
            "a keras.Input."
        )
    try:
        float(keras.ops.convert_to_numpy(model.optimizer.learning_rate))
    except (AttributeError, NotImplementedError, ValueError) as error:
        raise TypeError(
            f"{OWNER}: {type(model.optimizer).__name__} has no single learning rate to find; give "
            "a model with one of its optimizers."
        ) from error
    free = [each for each in nested(model.optimizer) if getattr(each, "finds_rate", False)]
    if free and getattr(model.optimizer, "finds_rate", True):  # True: one of Keras' is around it
        raise TypeError(
            f"{OWNER}: {free[-1].rule.called} finds the length of its steps itself, and its "
            "learning rate is a factor of that; train at a learning rate of 1."
        )
    return low, high


@contextlib.contextmanager
def _kept(model: keras.Model) -> Iterator[None]:
    """Restores the state of a model and the process that is not in variables."""
    attributes = {name: getattr(model, name, None) for name in ("history", "stop_training")}
    python, of_numpy = random.getstate(), np.random.get_state()
    try:
        with keras_contract.rates_kept(nested(model.optimizer)) as computed:
            if computed:  # a compiled step contains the schedule
                model.train_function = None
            try:
                yield
            finally:
                if computed:
                    model.train_function = None
    finally:
        random.setstate(python)
        np.random.set_state(of_numpy)
        for name, value in attributes.items():
            setattr(model, name, value)


class _RangeTest(keras.callbacks.Callback):
    """Sets the learning rate before each batch, and records the loss after it."""

    def __init__(self, rates: np.ndarray, explosion: float):
        super().__init__()
        self.rates, self.explosion = rates, explosion
        self.losses: list[float] = []
        self.smoothed: list[float] = []
        self.mean = _FadingMean()
        self.exploded = False
        self.put_back = contextlib.ExitStack()

    def on_train_begin(self, logs: Any = None) -> None:
        """Remembers all variables: by now Keras has made the model's and the metrics'."""
        model = self.model
        if not model.optimizer.built:
            with model.distribute_strategy.scope():
                model.optimizer.build(model.trainable_variables)
        lists = [model.variables, model.metrics_variables]
        lists += [optimizer.variables for optimizer in nested(model.optimizer)]
        variables = {id(variable): variable for each in lists for variable in each}
        self.put_back.callback(write.snapshot(list(variables.values())))
        self.put_back.callback(keras_contract.snapshot_of_tables(self.model))
        self._set = _setter(model.optimizer)

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        """Sets the rate; resets the metrics, whose loss is otherwise the mean since the start."""
        self._set(float(self.rates[len(self.losses)]))
        self.model.reset_metrics()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Notes the loss; ends the test at its last rate, or if the loss explodes."""
        logs = logs or {}
        if "loss" not in logs:
            raise ValueError(f"{OWNER}: the model's train_step returns no 'loss', only {[*logs]}.")
        loss = float(logs["loss"])
        if math.isfinite(loss):
            self.losses.append(loss)
            self.smoothed.append(self.mean.add(loss))
            least = min(self.smoothed)
            self.exploded = self.smoothed[-1] - least > (self.explosion - 1) * abs(least)
        else:
            self.exploded = True
        self.model.stop_training = self.exploded or len(self.losses) == len(self.rates)

    def curve(self) -> LearningRateCurve:
        """Returns what was measured."""
        rates = self.rates[: len(self.losses)]
        return LearningRateCurve(
            rates, np.array(self.losses), np.array(self.smoothed), self.exploded
        )


def _setter(optimizer: keras.optimizers.Optimizer) -> Callable[[float], None]:
    """Returns a function that sets the learning rate, also in place of a schedule."""
    try:
        optimizer.learning_rate = float(keras.ops.convert_to_numpy(optimizer.learning_rate))
    except TypeError:  # a schedule or a callable
        variable = tf.Variable(0.0, trainable=False)
        with warnings.catch_warnings(action="ignore"):  # the step is compiled anew
            optimizer.learning_rate = variable.read_value
        return lambda rate: write.put_everywhere(variable, rate)

    def assign(rate: float) -> None:
        optimizer.learning_rate = rate

    return assign
