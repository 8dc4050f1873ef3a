"""TensorFlow, "Neural machine translation with a Transformer": attention, a schedule of one's own.

A batch repeats tokens: stock Adam squares their gradients before it sums them.
"""

import keras
import tensorflow as tf

from tutorials import datasets, tolerances
from tutorials.one_hot import OneHotEmbedding

TOLERANCE = tolerances.ADAM
WORDS, WIDTH = 24, 16
layers = keras.layers


class CustomSchedule(keras.optimizers.schedules.LearningRateSchedule):
    def __init__(self, d_model, warmup_steps=20):
        self.d_model = tf.cast(d_model, tf.float32)
        self.warmup_steps = warmup_steps

    def __call__(self, step):
        step = tf.cast(step, dtype=tf.float32)
        arg1 = tf.math.rsqrt(step)
        arg2 = step * (self.warmup_steps**-1.5)
        return tf.math.rsqrt(self.d_model) * tf.math.minimum(arg1, arg2)


def masked_loss(label, pred):
    mask = label != 0
    loss_object = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="none")
    loss = loss_object(label, pred)
    mask = tf.cast(mask, dtype=loss.dtype)
    return tf.reduce_sum(loss * mask) / tf.reduce_sum(mask)


def decoder(embedding):
    inputs = keras.Input((15,), dtype="int32")
    x = embedding(WORDS, WIDTH)(inputs)
    attention = layers.MultiHeadAttention(num_heads=2, key_dim=WIDTH // 2)
    x = layers.LayerNormalization()(x + attention(x, x, use_causal_mask=True))
    fed = layers.Dense(WIDTH)(layers.Dense(32, activation="relu")(x))
    x = layers.LayerNormalization()(x + layers.Dropout(0.1)(fed))
    return keras.Model(inputs, layers.Dense(WORDS)(x))


def run(optimizers, embedding=keras.layers.Embedding):
    optimizer = optimizers.Adam(CustomSchedule(WIDTH), beta_1=0.9, beta_2=0.98, epsilon=1e-9)
    model = decoder(embedding)
    model.compile(loss=masked_loss, optimizer=optimizer)
    x, _ = datasets.sentences()
    return model.fit(x[:, :-1], x[:, 1:], 32, 3, 0, shuffle=False).history["loss"]


def right(optimizers):
    return run(optimizers, OneHotEmbedding)
