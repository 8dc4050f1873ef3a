"""The parts of a table's variance: of its rows, of its columns, and the rest."""

from typing import NamedTuple

import numpy as np


class Shares(NamedTuple):
    """The variance of a table, steps by layers, and the shares of its three parts.

    ```
    x[t, l] = mean + shared[t] + layer[l] + own[t, l]
    ```

    `shared` and `layer` are the means over layers and over steps, minus the mean of all; `own` is
    the remainder, each layer's deviation from the shared course. The parts are orthogonal, so the
    shares sum to 1; if nothing varies they are 0. All entries have the same weight.

    Args:
        total: the variance.
        shared: the share of the common course of all layers.
        layer: the share of constant differences between layers.
        own: the share of each layer's own course over time.

    Example:
        >>> decomposed(np.array([[0.0, 2.0], [0.0, 2.0]]))
        Shares(total=1.0, shared=0.0, layer=1.0, own=0.0)
    """

    total: float
    shared: float
    layer: float
    own: float


def parts(x: np.ndarray) -> tuple[float, np.ndarray, np.ndarray, np.ndarray]:
    """Returns the mean of a table and its three parts: by row, by column, and the rest."""
    mean = float(x.mean())
    shared, layer = x.mean(axis=1) - mean, x.mean(axis=0) - mean
    return mean, shared, layer, x - mean - shared[:, np.newaxis] - layer


def decomposed(x: np.ndarray) -> Shares:
    """Returns the shares in the variance of a table without gaps."""
    variances = [float(np.mean(part**2)) for part in parts(x)[1:]]
    total = float(np.mean((x - x.mean()) ** 2))
    # Below this it is rounding error.
    if total <= 1e-24 * max(1.0, float(np.mean(x**2))):
        return Shares(0.0, 0.0, 0.0, 0.0)
    return Shares(total, *(variance / total for variance in variances))
