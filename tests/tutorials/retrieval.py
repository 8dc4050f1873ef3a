"""TensorFlow Recommenders, "Recommending movies: retrieval": two towers, Adagrad, a `train_step`.

A batch repeats users and movies: stock Adagrad squares their gradients before it sums them.
"""

import keras
import numpy as np
import tensorflow as tf

from tutorials import tolerances
from tutorials.one_hot import OneHotEmbedding

TOLERANCE = tolerances.ROUNDING
USERS, MOVIES = 40, 60  # of which a batch has some


class MovielensModel(keras.Model):
    def __init__(self, embedding):
        super().__init__()
        self.user_model = keras.Sequential([embedding(USERS, 8)])
        self.movie_model = keras.Sequential([embedding(MOVIES, 8), keras.layers.Dense(8)])

    def train_step(self, features):
        with tf.GradientTape() as tape:
            users = self.user_model(features["user_id"])
            movies = self.movie_model(features["movie_title"])
            scores = tf.matmul(users, movies, transpose_b=True)
            right = tf.range(tf.shape(scores)[0])
            loss = tf.reduce_sum(
                tf.nn.sparse_softmax_cross_entropy_with_logits(logits=scores, labels=right)
            )
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
        return {"total_loss": loss}


def run(optimizers, embedding=keras.layers.Embedding):
    random = np.random.default_rng(0)
    users = random.integers(0, USERS, 256)
    ratings = {"user_id": users, "movie_title": (users + random.integers(0, 3, 256)) % MOVIES}
    cached_train = tf.data.Dataset.from_tensor_slices(ratings).batch(64).cache()
    model = MovielensModel(embedding)
    model.compile(optimizer=optimizers.Adagrad(learning_rate=0.1))
    return model.fit(cached_train, epochs=5, verbose=0, shuffle=False).history["total_loss"]


def right(optimizers):
    return run(optimizers, OneHotEmbedding)
