"""A learning rate for each row by how often it was updated of late, which `count_rows` takes."""

import functools
import math

import keras
import tensorflow as tf

from tf_graft.core import checks
from tf_graft.core.arguments.plain import Plain


@keras.saving.register_keras_serializable(package="tf_graft")
class RowFrequency(Plain):
    """Multiplies the learning rate of each row by a power of how often the row is updated.

    ```
    c <- 1 + 2^(-k / half_life) * c                   k: updates since the row's last one, c_0 = 0
    learning_rate * clip((reference / (c + 1))^power, lowest, highest)
    ```

    A row that each update touches has a count c of about `1.44 * half_life`; one that every tenth
    update touches, a tenth of it. Rows whose count is at most `threshold` keep the learning rate.

    The defaults raise the rates of rows with fewer updates than `reference`, up to 10 times. To
    lower them instead, pass `RowFrequency(reference, power=-1.0, lowest=0.1, highest=1.0)`.

    Args:
        reference: above 0; a row with a count of `reference - 1` has a multiplier of 1.
        power: how fast the multiplier falls with the count; below 0 it rises.
        half_life: the number of updates after which a row that was not updated counts half, above
            0; None counts all updates of a row.
        threshold: the largest count that leaves the learning rate as it is, at least 0.
        lowest: the least multiplier, at least 0.
        highest: the largest multiplier, at least `lowest`.

    Raises:
        TypeError, ValueError: an argument of the wrong type or out of range.

    Example:
        >>> from tf_graft.optimizers import SGD
        >>> table = tf.Variable([[0.0], [0.0]], name="table")
        >>> optimizer = SGD(1.0, count_rows={"table": RowFrequency(reference=4.0)})
        >>> for rows in ([0], [0], [0, 1]):
        ...     optimizer.apply([tf.IndexedSlices(tf.ones([len(rows), 1]), rows)], [table])
        >>> [round(-x, 3) for x in table.numpy()[:, 0].tolist()]  # 4/2 + 4/3 + 4/4, and 4/2
        [4.333, 2.0]

    Reference:
        FBGEMM, `rowwise_adagrad_with_counter` with `CounterBasedRegularizationDefinition`: its
        `max_counter` is `reference`, its `adjustment_ub` is `power` (or `-power` for
        `TAIL_ID_LR_DECREASE`) and its `tail_id_threshold` is `threshold`.
    """

    def __init__(
        self,
        reference: float,
        power: float = 1.0,
        half_life: float | None = None,
        threshold: float = 0.0,
        lowest: float = 1.0,
        highest: float = 10.0,
    ):
        number = functools.partial(checks.number, "RowFrequency")
        self.reference: float = number("reference", reference, 0, open_low=True)
        self.power: float = number("power", power)
        self.half_life = number("half_life", half_life, 0, open_low=True, optional=True)
        self.threshold: float = number("threshold", threshold, 0)
        self.lowest: float = number("lowest", lowest, 0)
        self.highest: float = number("highest", highest, self.lowest)

    def __call__(self, count: tf.Tensor) -> tf.Tensor:
        """Returns the multipliers of rows by their counts, both of shape [k]."""
        ratio = self.reference / (count + 1)
        raised = tf.clip_by_value(ratio**self.power, self.lowest, self.highest)
        return tf.where(count > self.threshold, raised, tf.ones_like(raised))

    def faded(self, count: tf.Tensor, since: tf.Tensor) -> tf.Tensor:
        """Returns what is left of counts.

        Args:
            count: the counts after the rows' last updates, of shape [k].
            since: the numbers of updates since then, of the same dtype and shape.
        """
        return tf.exp(since * (-math.log(2) / (self.half_life or math.inf))) * count
