"""Optimizers as others write them, on the public names alone."""

import tensorflow as tf

import tf_graft as tg
from tf_graft.algorithm import NOT_NEGATIVE, quotient


class Factored(tg.Optimizer):
    """Of each matrix the mean squares by row and by column, as Adafactor keeps; and one of the
    shape [rows, rows] of Shampoo's.
    """

    rowwise = False

    def __init__(self, learning_rate=0.1, **common):
        super().__init__(learning_rate, **common)

    def slots(self):
        return {
            "by_row": tg.Slot(shape=lambda shape: shape[:-1], within=NOT_NEGATIVE),
            "by_column": tg.Slot(shape=lambda shape: shape[:-2] + shape[-1:], within=NOT_NEGATIVE),
            "products": tg.Slot(shape=lambda shape: shape[:1] * 2, fill=eye),
        }

    def whole(self, path):
        return True

    # On a mesh TensorFlow has no `x[:, None]`, so `tf.expand_dims`.
    def step(self, g, w, s, lr, t):
        if g.shape.rank != 2:
            return -lr * g, dict(s)
        by_row = s["by_row"] + tf.reduce_mean(g * g, 1)
        by_column = s["by_column"] + tf.reduce_mean(g * g, 0)
        products = s["products"] + tf.expand_dims(tf.reduce_mean(g * g, 1), 1)
        below = tf.sqrt(tf.expand_dims(by_row, 1) * by_column) + tf.reduce_mean(tf.abs(products))
        new = {"by_row": by_row, "by_column": by_column, "products": products}
        return quotient(-lr * g, below), new


def eye(variable):
    """The identity matrix by rows of a variable."""
    shape = tuple(variable.shape)[:1] * 2
    return tf.eye(shape[0]) if shape else tf.zeros(())
