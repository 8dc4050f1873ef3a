"""Optimizers as somebody outside writes them: nothing but the public names."""

import tensorflow as tf

import tf_graft as tg


@tg.register
class Bare(tg.Optimizer):
    """Adagrad without epsilon: 0 / 0 where gradient and accumulator are zero."""

    idle = True

    def slots(self):
        return {"accumulator": tg.Slot(0.1)}

    def step(self, g, w, s, lr, t):
        a = s["accumulator"] + g * g
        return -lr * g / tf.sqrt(a), {"accumulator": a}


@tg.register
class Centered(tg.Optimizer):
    """Takes the mean gradient away: a mean over rows, which rows of zeros change."""

    rowwise = False

    def step(self, g, w, s, lr, t):
        return -lr * (g - tf.reduce_mean(g)), {}
