"""Steps of optimizers of matrices on given gradients, beside their `tf.matmul`s alone."""

import collections
import functools
import math
from collections.abc import Callable, Iterable

import keras
import numpy as np
import tensorflow as tf

from benchmarks import peers
from benchmarks.cases import RATE, Candidate, Case, Choice, Shapes, Step
from benchmarks.given import Tensors, prepared, resnet, tensors_of
from benchmarks.optimizers import OF_MATRICES

LAYERS, WIDTH, HIDDEN = 4, 128, 512
# Of a layer: query, key, value and output of the attention, then two of the MLP.
SHAPES = LAYERS * (*[(WIDTH, WIDTH)] * 4, (WIDTH, HIDDEN), (HIDDEN, WIDTH))
ITERATIONS = 5  # of Newton and Schulz


def newton_schulz(x: tf.Tensor) -> tf.Tensor:
    """Does the products of Muon as its author has them: three an iteration, on the smaller side.

    tf_graft does fewer for long matrices.
    """
    tall = x.shape[-2] > x.shape[-1]
    for _ in range(ITERATIONS):
        square = tf.matmul(x, x, transpose_a=tall, transpose_b=not tall)
        square = tf.matmul(square, square)
        x = tf.matmul(x, square) if tall else tf.matmul(square, x)
    return x


def two_sides(x: tf.Tensor) -> tf.Tensor:
    """Does the products of Shampoo between refreshes: the two factors, and a root on each side."""
    return tf.matmul(tf.matmul(tf.matmul(x, x, transpose_b=True), x), _right(x))


def one_side(x: tf.Tensor) -> tf.Tensor:
    """Does the products of one-sided Shampoo between refreshes, on the smaller side."""
    if x.shape[-2] > x.shape[-1]:
        return tf.matmul(x, _right(x))
    return tf.matmul(tf.matmul(x, x, transpose_b=True), x)


def rotations(x: tf.Tensor) -> tf.Tensor:
    """Does the products of SOAP between refreshes.

    These are the two factors, and three rotations: of the gradient, of the momentum, and back.
    """
    left, right = tf.matmul(x, x, transpose_b=True), _right(x)
    for _ in range(3):
        x = tf.matmul(tf.matmul(left, x), right)
    return x


def _right(x: tf.Tensor) -> tf.Tensor:
    return tf.matmul(x, x, transpose_a=True)


PRODUCTS: dict[str, Callable[[tf.Tensor], tf.Tensor]] = {
    "Muon": newton_schulz,
    "NorMuon": newton_schulz,
    "Shampoo": two_sides,
    "Shampoo, one side": one_side,
    "Graft of Shampoo": one_side,
    "SOAP": rotations,
}


def cases(choice: Choice) -> Iterable[Case]:
    """Makes a case of every optimizer of matrices, and of Adam on the same tensors.

    Muon has another case, with the convolutions of ResNet-50 as matrices: 23 million weights.
    """
    for name in OF_MATRICES:
        yield _case(name, name, SHAPES, choice.peers, usual=name in ("Muon", "Adam"))
    convolutions = [(math.prod(shape[:-1]), shape[-1]) for shape in resnet() if len(shape) == 4]
    yield _case("Muon, ResNet-50", "Muon", tuple(convolutions), choice.peers, usual=False)


def _case(title: str, name: str, shapes: Shapes, beside: bool, usual: bool) -> Case:
    ours, stock = OF_MATRICES[name]
    tensors = functools.partial(_tensors, shapes)
    candidates: dict[str, Callable[[], Candidate]] = {
        "ours": functools.partial(prepared, tensors, ours)
    }
    if name in PRODUCTS:
        candidates["matmul"] = functools.partial(_multiplied, PRODUCTS[name], shapes)
    if stock:
        candidates["stock"] = functools.partial(prepared, tensors, stock)
    if beside:
        candidates |= peers.candidates(name, shapes, 1)
    return Case(title, candidates, usual=usual)


def _tensors(shapes: Shapes) -> Tensors:
    """Makes weights that have the paths by which stock Keras' Muon chooses, and gradients."""
    weights, gradients = tensors_of(shapes)
    return [keras.Variable(weight, name="kernel") for weight in weights], gradients


def _multiplied(products: Callable[[tf.Tensor], tf.Tensor], shapes: Shapes) -> Candidate:
    """Prepares products of matrices, which add to the weights what comes out.

    The matrices of one shape are multiplied together. They are orthogonal, so that products stay as
    large as they are.
    """
    random = np.random.default_rng(0)
    stacks = [(count, *shape) for shape, count in collections.Counter(shapes).items()]
    matrices = [tf.Variable(_orthogonal(random.standard_normal(stack))) for stack in stacks]
    weights = [tf.Variable(tf.zeros(stack)) for stack in stacks]

    @tf.function
    def multiply() -> None:
        for weight, matrix in zip(weights, matrices, strict=True):
            weight.assign_add(RATE * products(matrix))

    def start() -> Step:
        return multiply

    return Candidate(start, lambda: weights)


def _orthogonal(matrices: np.ndarray) -> tf.Tensor:
    left, _, right = np.linalg.svd(matrices, full_matrices=False)
    return tf.constant(left @ right, tf.float32)
