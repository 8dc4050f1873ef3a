"""TensorFlow, "Text generation with an RNN": an embedding, a GRU, checkpoints, a `train_step`.

A batch repeats characters: stock Adam squares their gradients before it sums them.
"""

import keras
import tensorflow as tf

from tutorials import datasets, tolerances
from tutorials.one_hot import OneHotEmbedding

TOLERANCE = tolerances.ADAM
WORDS = 24


class CustomTraining(keras.Model):
    def __init__(self, embedding):
        super().__init__()
        self.embedding = embedding(WORDS, 8)
        self.gru = keras.layers.GRU(16, return_sequences=True, return_state=True)
        self.dense = keras.layers.Dense(WORDS)

    def call(self, inputs, training=False):
        x, _ = self.gru(self.embedding(inputs), training=training)
        return self.dense(x)

    def train_step(self, inputs):
        inputs, labels = inputs
        with tf.GradientTape() as tape:
            predictions = self(inputs, training=True)
            loss = self.compute_loss(y=labels, y_pred=predictions)
        grads = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply_gradients(zip(grads, self.trainable_variables, strict=True))
        return {"crossentropy": loss}


def run(optimizers, embedding=keras.layers.Embedding):
    x, _ = datasets.sentences()
    dataset = tf.data.Dataset.from_tensor_slices((x[:, :-1], x[:, 1:]))
    model = CustomTraining(embedding)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer=optimizers.Adam(0.01), loss=loss)
    batches = dataset.batch(32, drop_remainder=True).prefetch(1)
    return model.fit(batches, epochs=3, verbose=0, shuffle=False).history["crossentropy"]


def right(optimizers):
    return run(optimizers, OneHotEmbedding)
