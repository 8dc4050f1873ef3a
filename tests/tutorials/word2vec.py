"""TensorFlow, "word2vec": skip-grams with negative samples, two embeddings, `fit`.

A batch repeats words: stock Adam squares their gradients before it sums them. Every batch has every
word, so that it makes no difference that ours leaves a word that is not there alone.
"""

import keras
import numpy as np

from tutorials import tolerances
from tutorials.one_hot import OneHotEmbedding

TOLERANCE = tolerances.ADAM
WORDS, NEGATIVE = 24, 3


class Word2Vec(keras.Model):
    def __init__(self, embedding):
        super().__init__()
        self.target_embedding = embedding(WORDS, 8, name="w2v_embedding")
        self.context_embedding = embedding(WORDS, 8)

    def call(self, pair):
        target, context = pair
        words = self.target_embedding(target)
        contexts = self.context_embedding(context)
        return keras.ops.einsum("be,bce->bc", words, contexts)


def skip_grams():
    """(words, a neighbour of each and words at random), and which of these is the neighbour."""
    random = np.random.default_rng(0)
    targets = random.integers(0, WORDS, 512)
    others = random.integers(0, WORDS, (512, NEGATIVE))
    contexts = np.concatenate([(targets // 2)[:, np.newaxis], others], axis=1)
    labels = np.zeros(contexts.shape, "float32")
    labels[:, 0] = 1
    return (targets.astype("int32"), contexts.astype("int32")), labels


def run(optimizers, embedding=keras.layers.Embedding):
    pairs, labels = skip_grams()
    word2vec = Word2Vec(embedding)
    loss = keras.losses.CategoricalCrossentropy(from_logits=True)
    word2vec.compile(optimizer=optimizers.Adam(0.02), loss=loss, metrics=["accuracy"])
    return word2vec.fit(pairs, labels, 256, 5, 0).history["loss"]


def right(optimizers):
    return run(optimizers, OneHotEmbedding)
