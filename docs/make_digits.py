"""Compares optimizers on a convolutional network, and keeps the figures in data/digits.json.

    python docs/make_digits.py [OPTIMIZER[:RATE,RATE...]]... [--seeds N] [--updates N]
        [--warm-up N]

scikit-learn's digits are enlarged to 16 x 16; each image of a batch is shifted by up to 3 pixels
along each axis, and has noise. The last 360 images test, the 360 before them choose the rates, and
the other 1,077 train. There is no weight decay, which would mean something else at each rate.
"""

from pathlib import Path

import keras
import numpy as np
import sklearn.datasets
import tensorflow as tf
from comparing import Course, Task, compare, parser

import tf_graft as tg

NUMBERS = Path(__file__).parent / "data" / "digits.json"
SIZE, SHIFT, NOISE, BATCH, HELD = 16, 3, 0.3, 64, 360
OTHERS = 0.003  # the best of AdamW's rates
ADAMS = (3e-4, 1e-3, 3e-3, 1e-2, 3e-2)
MUONS = (0.003, 0.01, 0.03, 0.1, 0.3)

# As in `make_characters`. With each rule of matrices, AdamW updates the rest.
CANDIDATES = {
    "sgd": (
        lambda rate, falling, model: tg.SGD(falling(rate), momentum=0.9),
        (0.01, 0.03, 0.1, 0.3, 1.0),
    ),
    "adamw": (lambda rate, falling, model: adamw(falling(rate)), ADAMS),
    "muon": (
        lambda rate, falling, model: tg.Muon(falling(rate), **matrices(falling)),
        MUONS,
    ),
    "nor_muon": (
        lambda rate, falling, model: tg.NorMuon(falling(rate), **matrices(falling)),
        MUONS,
    ),
    "soap": (
        lambda rate, falling, model: tg.SOAP(falling(rate), **matrices(falling)),
        ADAMS,
    ),
    "adagraft_shampoo": (
        lambda rate, falling, model: tg.AdaGraft(
            tg.Adam(falling(rate)), tg.Shampoo(1.0, sides="smaller", others=tg.Adam(1.0))
        ),
        ADAMS,
    ),
    "soap_muon": (
        lambda rate, falling, model: tg.SOAPMuon(falling(rate), **matrices(falling)),
        (*MUONS, 1.0),
    ),
}


def adamw(rate) -> tg.AdamW:
    return tg.AdamW(rate, weight_decay=0.0)


def matrices(falling: Course) -> dict:
    """Returns the arguments of an optimizer of matrices."""
    return {"others": adamw(falling(OTHERS)), "weight_decay": None}


def network() -> keras.Model:
    """Returns three convolutions and two dense layers, with layer normalization between them."""
    layers = keras.layers
    x = inputs = keras.Input([SIZE, SIZE, 1])
    for channels in (32, 64, 128):
        x = layers.Conv2D(channels, 3, strides=2, padding="same", use_bias=False)(x)
        x = keras.ops.relu(layers.LayerNormalization()(x))
    x = layers.Dense(128, use_bias=False)(layers.Flatten()(x))
    x = keras.ops.relu(layers.LayerNormalization()(x))
    return keras.Model(inputs, layers.Dense(10)(x))


class Digits:
    """The images of the digits, and batches of them with shifts and noise."""

    def __init__(self):
        images, digits = sklearn.datasets.load_digits(return_X_y=True)
        images = images.reshape(-1, 8, 8, 1) / 16
        images = tf.image.resize(images, [SIZE, SIZE], "bicubic").numpy()
        images = np.pad(images, [(0, 0), (SHIFT, SHIFT), (SHIFT, SHIFT), (0, 0)])
        cuts = [len(images) - 2 * HELD, len(images) - HELD]
        self.parts = {
            name: (part, of.astype(np.int32))
            for name, part, of in zip(
                ("train", "choose", "test"),
                np.split(images, cuts),
                np.split(digits, cuts),
                strict=True,
            )
        }

    def batches(self, part: str, count: int, seed: int) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns images and digits of shapes [count, batch, ...], epoch after epoch."""
        (images, digits), random = self.parts[part], np.random.default_rng(seed)
        epochs = [random.permutation(len(images)) for _ in range(-(-count * BATCH // len(images)))]
        rows = np.concatenate(epochs)[: count * BATCH]
        y, x = random.integers(0, 2 * SHIFT + 1, [2, len(rows), 1])
        pixels = np.arange(SIZE)
        moved = images[rows[:, None, None], (y + pixels)[:, :, None], (x + pixels)[:, None, :]]
        moved = moved + NOISE * random.standard_normal(moved.shape, np.float32)
        shape = [count, BATCH]
        return (
            tf.constant(moved.reshape([*shape, *moved.shape[1:]]), tf.float32),
            tf.constant(digits[rows].reshape(shape)),
        )


def loss(model: keras.Model, batch: tuple[tf.Tensor, tf.Tensor]) -> tf.Tensor:
    images, digits = batch
    of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    return of(digits, model(images))


def main() -> None:
    """Trains what is asked for."""
    given, digits = parser(__doc__).parse_args(), Digits()
    task = Task(
        numbers=NUMBERS,
        candidates=CANDIDATES,
        course=Course(1000, 100),
        model=network,
        loss=loss,
        batches=lambda count, seed: digits.batches("train", count, seed),
        held={
            "losses": digits.batches("test", 32, 1),
            "losses_to_choose": digits.batches("choose", 32, 2),
        },
        chosen_by="losses_to_choose",
        goal=0.35,
    )
    compare(task, given)


if __name__ == "__main__":
    main()
