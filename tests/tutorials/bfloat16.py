"""Keras, "Mixed precision policy API": the policy "bfloat16", in which the variables are too.

Stock RMSprop's steps are lost in their rounding. Right is `mixed_bfloat16`, whose variables are of
float32, as our masters are: the layers compute the same.
"""

import keras
import numpy as np
import tensorflow as tf

from tutorials import datasets, tolerances

TOLERANCE = tolerances.HALF


def run(optimizers, policy="bfloat16"):
    (x, y), _ = datasets.digits(256)
    model = keras.Sequential(
        [
            keras.Input((64,)),
            keras.layers.Dense(64, activation="relu", dtype=policy),
            keras.layers.Dense(10, dtype=policy),
            keras.layers.Activation("softmax", dtype="float32"),
        ]
    )
    random = np.random.default_rng(0)
    start = [random.normal(0, 0.1, w.shape) for w in model.get_weights()]
    model.set_weights([np.asarray(tf.cast(w, tf.bfloat16), "float32") for w in start])
    model.compile(loss="sparse_categorical_crossentropy", optimizer=optimizers.RMSprop(1e-4))
    return model.fit(x, y, 64, 5, 0).history["loss"]


def right(optimizers):
    return run(optimizers, "mixed_bfloat16")
