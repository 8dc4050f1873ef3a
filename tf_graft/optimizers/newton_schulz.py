"""Newton-Schulz iterations, which make a matrix orthogonal by products of matrices alone."""

import functools
import math
from collections.abc import Callable, Sequence
from typing import Annotated, Any

import tensorflow as tf

from tf_graft import algorithm as ta

Triple = list[float]
QUINTIC = (3.4445, -4.7750, 2.0315)  # Jordan's: steepest at zero, and not quite one in the end
# The best of degree 5 for singular values from 0.001 to 1, one iteration after the other, as in
# Amsel et al., 2025 (arXiv 2505.16932), algorithm 1.
OPTIMAL = (
    (8.28721201814563, -23.595886519098837, 17.300387312530933),
    (4.107059111542203, -2.9478499167379106, 0.5448431082926601),
    (3.9486908534822946, -2.908902115962949, 0.5518191394370137),
    (3.3184196573706015, -2.488488024314874, 0.51004894012372),
    (2.300652019954817, -1.6689039845747493, 0.4188073119525673),
    (1.891301407787398, -1.2679958271945868, 0.37680408948524835),
    (1.8750014808534479, -1.2500016453999487, 0.3750001645474248),
)
RUN = 3  # iterations of long matrices that are taken together
SAFETY = 1.01  # rounding may raise singular values up to here
NAMED: dict[str, list[Triple]] = {
    "polar_express": [
        *([a / SAFETY, b / SAFETY**3, c / SAFETY**5] for a, b, c in OPTIMAL),
        [1.875, -1.25, 0.375],
    ]
}


def named_or_triples(owner: str, name: str, given: object) -> str | list[Triple]:
    """Returns a name among `NAMED`, or the coefficients a, b and c of each iteration.

    Raises:
        TypeError, ValueError: it is not a known name, three numbers, or a list of three numbers for
            each iteration.
    """
    return given if isinstance(given, str) and given in NAMED else _triples(owner, name, given)


def _triples(owner: str, name: str, given: object) -> list[Triple]:
    listed = [given] if _three(given) else given
    if not isinstance(listed, list | tuple) or not listed or not all(map(_three, listed)):
        raise ValueError(
            f"{owner}({name}={ta.shown(given)}): {name} must be 'polar_express', three numbers a, "
            "b and c, or a list of threes, one for each iteration."
        )
    return [[ta.number(owner, name, x) for x in three] for three in listed]


def _three(given: object) -> bool:
    if not isinstance(given, list | tuple):
        return False
    return len(given) == 3 and not any(isinstance(x, list | tuple) for x in given)


Coefficients = Annotated[str | Sequence[Any], ta.Checked(named_or_triples)]
Precision = Annotated[str | None, ta.Checked(ta.choice, (None, "bfloat16"))]
# By what a step is multiplied, from the numbers of inputs and outputs of a matrix.
SCALES: dict[str, Callable[[int, int], float]] = {
    "original": lambda inputs, outputs: math.sqrt(max(1.0, outputs / inputs)),
    "spectral": lambda inputs, outputs: math.sqrt(outputs / inputs),
    "match_rms_adamw": lambda inputs, outputs: 0.2 * math.sqrt(max(inputs, outputs)),
    "none": lambda inputs, outputs: 1.0,
}
Scale = Annotated[str, ta.Checked(ta.choice, tuple(SCALES))]


class Orthogonal:
    """The arguments of optimizers whose steps are orthogonal matrices, and how these are made."""

    scale: Any
    ns_steps: Any
    ns_coefficients: Any
    epsilon: Any
    ns_dtype: Any

    def orthogonal(self, u: tf.Tensor) -> tf.Tensor:
        """Returns matrices with all singular values made one."""
        return orthogonalized(u, self.ns_coefficients, self.ns_steps, self.epsilon, self.ns_dtype)

    def factor(self, u: tf.Tensor) -> float:
        """Returns the factor of the step of a matrix."""
        _, inputs, outputs = u.shape
        return SCALES[self.scale](inputs, outputs)

    def orthogonal_step(self, u: tf.Tensor) -> tf.Tensor:
        """Returns the orthogonal matrices times their factor."""
        return self.factor(u) * self.orthogonal(u)


def orthogonalized(
    m: tf.Tensor,
    coefficients: str | list[Triple],
    iterations: int,
    epsilon: float,
    precision: str | None = None,
) -> tf.Tensor:
    """Returns matrices whose singular values are brought near 1.

    ```
    x = m / (||m|| + epsilon)
    x <- a * x + (b * x x^T + c * (x x^T)^2) x          `iterations` times
    ```

    The smaller side of the matrices is squared, on the left or on the right. If the other side is
    at least twice as long, `RUN` iterations at a time work on the square alone, and x is multiplied
    once by their product, as in github.com/Dao-AILab/gram-newton-schulz. That takes fewer
    operations; as each run squares x anew, rounding errors are at most twice those of single
    iterations. With products in bfloat16 they would be three times as large, so there each
    iteration is a run of its own.

    Args:
        m: matrices, [batch, inputs, outputs].
        coefficients: a name, or a, b and c of each iteration; the last ones serve for all that
            follow.
        iterations: the number of iterations.
        epsilon: a term added to the norm of each matrix.
        precision: `"bfloat16"` for the products of matrices; None for that of `m`.
    """
    matmul = functools.partial(_matmul, precision)
    triples = NAMED[coefficients] if isinstance(coefficients, str) else coefficients
    of_each = [triples[min(i, len(triples) - 1)] for i in range(iterations)]
    short, long = sorted(m.shape[1:])
    tall, run = m.shape[1] > m.shape[2], RUN if long >= 2 * short and precision is None else 1
    length = lengths(m) + epsilon
    x = m * ta.quotient(tf.ones_like(length), length)
    for first in range(0, iterations, run):
        square = matmul(x, x, transpose_a=tall, transpose_b=not tall)
        factor, y = _product(matmul, square, of_each[first : first + run])
        x = factor * x + (matmul(x, y) if tall else matmul(y, x))
    return x


def _matmul(precision: str | None, x: tf.Tensor, y: tf.Tensor, **transposed: bool) -> tf.Tensor:
    """Returns the product of matrices, of numbers rounded to a precision unless it is None.

    The sums with it have the precision of `x`, which halves the error of the iterations.
    """
    if precision is None:
        return tf.matmul(x, y, **transposed)
    rounded = (tf.cast(each, precision) for each in (x, y))
    return tf.cast(tf.matmul(*rounded, **transposed), x.dtype)


def _product(
    matmul: Callable[..., tf.Tensor], square: tf.Tensor, triples: Sequence[Triple]
) -> tuple[float, tf.Tensor]:
    """Returns a factor and a matrix y, of which `factor * x + y x` is x after some iterations.

    Each iteration multiplies x by a symmetric matrix, and so the square by that matrix on both
    sides.

    Args:
        matmul: multiplies matrices.
        square: `x x^T`.
        triples: a, b and c of each iteration.
    """
    (a, b, c), *others = triples
    inner = b * square + c * matmul(square, square)
    factor, y = a, inner
    for following in others:
        half = a * square + matmul(inner, square)
        square = a * half + matmul(inner, half)
        a, b, c = following
        inner = b * square + c * matmul(square, square)
        # In a graph, TensorFlow would take equal factors of two neighbors out of a sum.
        factor, y = a * factor, a * y + matmul(inner, y) + factor * inner
    return factor, y


def lengths(m: tf.Tensor) -> tf.Tensor:
    """Returns the norm of each matrix, [batch, 1, 1]."""
    return tf.sqrt(tf.reduce_sum(m * m, [1, 2], keepdims=True))
