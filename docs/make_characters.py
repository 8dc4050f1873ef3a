"""Compares optimizers on nanoGPT's character model, and keeps the figures in data/characters.json.

    python docs/make_characters.py TEXT [OPTIMIZER[:RATE,RATE...]]... [--seeds N] [--updates N]
        [--warm-up N]

The model, the data and the schedule are those of nanoGPT's run for a CPU: 4 layers, 4 heads, 128
wide, blocks of 64 characters, batches of 12, no dropout, no biases; 100 updates of warm-up, then a
cosine to a tenth of the rate. TEXT is a file of Shakespeare's plays (`tiny_shakespeare` of
tensorflow-datasets), of which the first nine tenths train. nanoGPT's validation loss is 1.88.
"""

from pathlib import Path

import keras
import numpy as np
import tensorflow as tf
from comparing import Course, Task, compare, parser

import tf_graft as tg

NUMBERS = Path(__file__).parent / "data" / "characters.json"
LAYERS, HEADS, WIDTH, BLOCK, BATCH = 4, 4, 128, 64, 12
WARM_UP, VALIDATED = 100, 20
DECAY = 0.1
PARTS = ("soap", "brake", "ahead", "caution")  # of the record of modded-nanogpt

MUONS = (0.01, 0.02, 0.03, 0.05, 0.1)  # rates

# By name: the optimizer of a rate, the course of a run, and a model; the rates to try. With each
# rule of matrices, AdamW at nanoGPT's rate updates the rest.
CANDIDATES = {
    "adamw": (
        lambda rate, falling, model: adamw(falling(rate), **common(model)),
        (3e-4, 1e-3, 3e-3, 1e-2, 3e-2),
    ),
    "muon": (
        lambda rate, falling, model: tg.Muon(falling(rate), **matrices(falling, model)),
        (0.002, 0.005, 0.01, 0.02, 0.05),
    ),
    "muon_three_iterations": (
        lambda rate, falling, model: tg.Muon(
            falling(rate),
            ns_coefficients="polar_express",
            ns_steps=3,
            **matrices(falling, model),
        ),
        MUONS,
    ),
    "nor_muon": (
        lambda rate, falling, model: tg.NorMuon(falling(rate), **matrices(falling, model)),
        (0.002, 0.005, 0.01, 0.02, 0.05),
    ),
    "soap": (
        lambda rate, falling, model: tg.SOAP(falling(rate), **matrices(falling, model)),
        (3e-4, 1e-3, 3e-3, 1e-2, 3e-2),
    ),
    "hyperball_muon": (
        lambda rate, falling, model: tg.Hyperball(
            tg.Muon(falling(rate), **matrices(falling, model) | {"weight_decay": None})
        ),
        (0.003, 0.01, 0.02, 0.03, 0.1),
    ),
    "hyperball_muon_longer": (
        lambda rate, falling, model: tg.Hyperball(
            tg.Muon(falling(rate), **matrices(falling, longer(model)) | {"weight_decay": None})
        ),
        (0.003, 0.01, 0.02, 0.03, 0.1),
    ),
    "adagraft_shampoo": (
        lambda rate, falling, model: tg.AdaGraft(
            tg.Adam(falling(rate), beta_2=0.99),
            tg.Shampoo(
                1.0,
                sides="smaller",
                epsilon=1e-12,  # the defaults when the page's runs were made
                relative_epsilon=False,
                others=tg.Adam(1.0, beta_2=0.99),
            ),
            global_clipnorm=1.0,
        ),
        (3e-4, 1e-3, 3e-3, 1e-2, 3e-2),
    ),
    "schedule_free_sgd": (
        lambda rate, falling, model: tg.ScheduleFreeSGD(
            rate, warmup_steps=WARM_UP, **common(model)
        ),
        (0.3, 1.0, 3.0, 10.0, 30.0),
    ),
    "schedule_free_adamw": (
        lambda rate, falling, model: tg.ScheduleFreeAdamW(
            rate, beta_2=0.99, warmup_steps=WARM_UP, weight_decay=DECAY, **common(model)
        ),
        (3e-4, 1e-3, 3e-3, 1e-2, 3e-2),
    ),
    "schedule_free_radam": (
        lambda rate, falling, model: tg.ScheduleFreeRAdam(
            rate, beta_2=0.99, weight_decay=DECAY, **common(model)
        ),
        (3e-4, 1e-3, 3e-3, 1e-2, 3e-2),
    ),
    "soap_muon": (
        lambda rate, falling, model: tg.SOAPMuon(falling(rate), **matrices(falling, model)),
        MUONS,
    ),
    "ema_nesterov_muon": (
        lambda rate, falling, model: stack(rate, falling, model, ("soap", "brake", "caution")),
        MUONS,
    ),
    "stack": (lambda rate, falling, model: stack(rate, falling, model, ()), MUONS),
    **{
        f"stack_without_{part}": (
            lambda rate, falling, model, part=part: stack(rate, falling, model, (part,)),
            MUONS,
        )
        for part in PARTS
    },
}


def stack(rate, falling: Course, model: keras.Model, without) -> tg.Optimizer:
    """Returns the parts of the record of modded-nanogpt in one another, without some of them."""
    options = matrices(falling, model)
    if "caution" not in without:
        options["weight_decay_mode"] = tg.CautiousDecay()
    made = (tg.Muon if "soap" in without else tg.SOAPMuon)(falling(rate), **options)
    if "brake" not in without:
        made = tg.RadialBrake(made, floor=0.3825)
    return made if "ahead" in without else tg.EMANesterov(made, 0.95, falling.amid(0.3))


def longer(model: keras.Model) -> keras.Model:
    """Returns a model whose matrices begin three times as long."""
    found = tg.axes_of(model)
    for variable in model.trainable_variables:
        if found[variable.path]:
            variable.assign(3 * variable)
    return model


def adamw(rate, **options) -> tg.AdamW:
    """Returns nanoGPT's AdamW."""
    return tg.AdamW(rate, beta_2=0.99, weight_decay=DECAY, **options)


def matrices(falling, model: keras.Model) -> dict:
    """Returns the arguments of an optimizer of matrices: what updates the rest, and decay."""
    return {"others": adamw(falling(1e-3)), "weight_decay": DECAY, **common(model)}


def common(model: keras.Model) -> dict:
    """What nanoGPT does with every optimizer: it clips, and matrices alone decay."""
    return {"global_clipnorm": 1.0, "exclude_from_weight_decay": tg.no_decay(model)}


class Characters(keras.layers.Layer):
    """Embeds characters; with `reverse=True` it returns logits, by the same table."""

    def __init__(self, size: int, **given):
        super().__init__(**given)
        self.size = size

    def build(self, _):
        normal = keras.initializers.RandomNormal(0, 0.02)
        self.embeddings = self.add_weight((self.size, WIDTH), normal, name="embeddings")

    def call(self, x, reverse=False):
        table = keras.ops.convert_to_tensor(self.embeddings)
        if reverse:
            return keras.ops.matmul(x, keras.ops.transpose(table))
        return keras.ops.take(table, x, axis=0)


class Positions(keras.layers.Layer):
    """Adds a learned vector to each position."""

    def build(self, _):
        normal = keras.initializers.RandomNormal(0, 0.02)
        self.embeddings = self.add_weight((BLOCK, WIDTH), normal, name="embeddings")

    def call(self, x):
        return x + keras.ops.convert_to_tensor(self.embeddings)


def network(size: int) -> keras.Model:
    """Returns nanoGPT's model: pre-norm blocks, and logits by the embedding's table."""
    layers = keras.layers
    normal, narrow = (
        keras.initializers.RandomNormal(0, deviation)
        for deviation in (0.02, 0.02 / np.sqrt(2 * LAYERS))
    )

    def norm(x):
        return layers.LayerNormalization(epsilon=1e-5, center=False)(x)

    inputs, table = keras.Input([BLOCK], dtype="int32"), Characters(size)
    x = Positions()(table(inputs))
    for _ in range(LAYERS):
        attention = layers.MultiHeadAttention(
            HEADS, WIDTH // HEADS, use_bias=False, kernel_initializer=normal
        )
        y = norm(x)
        x = x + attention(y, y, use_causal_mask=True)
        attention.output_dense.kernel.assign(attention.output_dense.kernel / np.sqrt(2 * LAYERS))
        y = layers.Dense(4 * WIDTH, "gelu", use_bias=False, kernel_initializer=normal)(norm(x))
        x = x + layers.Dense(WIDTH, use_bias=False, kernel_initializer=narrow)(y)
    return keras.Model(inputs, table(norm(x), reverse=True))


class Text:
    """The ids of a text's characters, and batches of them at random places."""

    def __init__(self, path: Path):
        text = path.read_text()
        characters = sorted(set(text))
        ids = np.searchsorted(characters, list(text))
        cut = len(ids) * 9 // 10
        self.size, self.parts = len(characters), {"train": ids[:cut], "test": ids[cut:]}

    def batches(self, part: str, count: int, seed: int) -> tf.Tensor:
        """Returns ids of shape [count, batch, block + 1]."""
        ids, random = self.parts[part], np.random.default_rng(seed)
        starts = random.integers(0, len(ids) - BLOCK, [count, BATCH, 1])
        return tf.constant(ids[starts + np.arange(BLOCK + 1)], tf.int32)


def loss(model: keras.Model, ids: tf.Tensor) -> tf.Tensor:
    """Returns the mean loss of predicting each character from those before it."""
    of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    return of(ids[:, 1:], model(ids[:, :-1]))


def main() -> None:
    """Trains what is asked for."""
    given = parser(__doc__, "text").parse_args()
    text = Text(given.text)
    task = Task(
        numbers=NUMBERS,
        candidates=CANDIDATES,
        course=Course(2000, WARM_UP),
        model=lambda: network(text.size),
        loss=loss,
        batches=lambda count, seed: text.batches("train", count, seed),
        held={"losses": text.batches("test", VALIDATED, 1)},
        chosen_by="losses",
        goal=1.88,
    )
    compare(task, given)


if __name__ == "__main__":
    main()
