"""Keras, "Variational AutoEncoder": a sampling layer, three losses, a `train_step`."""

import keras
import tensorflow as tf

from tutorials import datasets, tolerances

TOLERANCE = tolerances.ADAM
layers = keras.layers


class Sampling(layers.Layer):
    def __init__(self):
        super().__init__()
        self.seed_generator = keras.random.SeedGenerator(1337)

    def call(self, inputs):
        z_mean, z_log_var = inputs
        epsilon = keras.random.normal(tf.shape(z_mean), seed=self.seed_generator)
        return z_mean + keras.ops.exp(0.5 * z_log_var) * epsilon


class VAE(keras.Model):
    def __init__(self):
        super().__init__()
        self.encoder = keras.Sequential([layers.Dense(32, "relu"), layers.Dense(4)])
        self.decoder = keras.Sequential([layers.Dense(32, "relu"), layers.Dense(64, "sigmoid")])
        self.sampling = Sampling()

    def train_step(self, data):
        with tf.GradientTape() as tape:
            z_mean, z_log_var = tf.split(self.encoder(data), 2, axis=1)
            reconstruction = self.decoder(self.sampling((z_mean, z_log_var)))
            crossentropy = keras.losses.binary_crossentropy(data, reconstruction)
            reconstruction_loss = 64 * tf.reduce_mean(crossentropy)
            kl_loss = -0.5 * (1 + z_log_var - tf.square(z_mean) - tf.exp(z_log_var))
            kl_loss = tf.reduce_mean(tf.reduce_sum(kl_loss, axis=1))
            total_loss = reconstruction_loss + kl_loss
        grads = tape.gradient(total_loss, self.trainable_weights)
        self.optimizer.apply_gradients(zip(grads, self.trainable_weights, strict=True))
        return {"loss": total_loss, "reconstruction": reconstruction_loss, "kl": kl_loss}


def run(optimizers):
    (x, _), _ = datasets.digits()
    vae = VAE()
    vae.compile(optimizer=optimizers.Adam())
    history = vae.fit(x, epochs=4, batch_size=64, verbose=0).history
    return history["loss"] + history["reconstruction"]
