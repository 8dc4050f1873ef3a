"""An embedding whose gradient is dense: what stock Keras computes right of a batch with repeats."""

import keras


class OneHotEmbedding(keras.layers.Embedding):
    """A `keras.layers.Embedding` as a matrix product with one-hot rows."""

    def call(self, inputs):
        one_hot = keras.ops.one_hot(inputs, self.input_dim, dtype=self.compute_dtype)
        return keras.ops.matmul(one_hot, self.embeddings)
