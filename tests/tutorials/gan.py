"""TensorFlow, "Deep Convolutional Generative Adversarial Network": two optimizers in one step."""

import pathlib
import tempfile

import keras
import tensorflow as tf

from tutorials import datasets, tolerances

TOLERANCE = tolerances.ADAM
layers = keras.layers


def make_generator_model():
    return keras.Sequential(
        [
            keras.Input((10,)),
            layers.Dense(2 * 2 * 16, use_bias=False),
            layers.BatchNormalization(),
            layers.LeakyReLU(),
            layers.Reshape((2, 2, 16)),
            layers.Conv2DTranspose(8, 3, strides=2, padding="same", use_bias=False),
            layers.LeakyReLU(),
            layers.Conv2DTranspose(1, 3, strides=2, padding="same", activation="tanh"),
        ]
    )


def make_discriminator_model():
    conv = layers.Conv2D(8, 3, strides=2, padding="same")
    return keras.Sequential(
        [keras.Input((8, 8, 1)), conv, layers.LeakyReLU(), layers.Flatten(), layers.Dense(1)]
    )


def run(optimizers):
    (images, _), _ = datasets.digits(256, side=8)
    batches = tf.data.Dataset.from_tensor_slices(images).batch(64).repeat(3)
    generator, discriminator = make_generator_model(), make_discriminator_model()
    generator_optimizer, discriminator_optimizer = optimizers.Adam(1e-3), optimizers.Adam(1e-3)
    cross_entropy = keras.losses.BinaryCrossentropy(from_logits=True)
    checkpoint = tf.train.Checkpoint(
        generator_optimizer=generator_optimizer, discriminator_optimizer=discriminator_optimizer
    )

    @tf.function
    def train_step(images, noise):
        with tf.GradientTape() as gen_tape, tf.GradientTape() as disc_tape:
            generated_images = generator(noise, training=True)
            real = discriminator(images, training=True)
            fake = discriminator(generated_images, training=True)
            gen_loss = cross_entropy(tf.ones_like(fake), fake)
            disc_loss = cross_entropy(tf.ones_like(real), real)
            disc_loss += cross_entropy(tf.zeros_like(fake), fake)
        for model, optimizer, tape, loss in (
            (generator, generator_optimizer, gen_tape, gen_loss),
            (discriminator, discriminator_optimizer, disc_tape, disc_loss),
        ):
            gradients = tape.gradient(loss, model.trainable_variables)
            optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return gen_loss, disc_loss

    losses = []
    for number, batch in enumerate(batches):
        noise = tf.random.stateless_normal([64, 10], seed=[0, number])
        losses += map(float, train_step(batch, noise))
    with tempfile.TemporaryDirectory() as folder:
        checkpoint.save(pathlib.Path(folder) / "ckpt")
    return losses
