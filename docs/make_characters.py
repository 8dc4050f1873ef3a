"""Compares optimizers on nanoGPT's character model, and keeps the figures in data/characters.json.

    python docs/make_characters.py TEXT [OPTIMIZER[:RATE,RATE...]]... [--seeds N] [--updates N]
        [--warm-up N]

The model, the data and the schedule are those of nanoGPT's run for a CPU: 4 layers, 4 heads, 128
wide, blocks of 64 characters, batches of 12, no dropout, no biases; 100 updates of warm-up, then a
cosine to a tenth of the rate. TEXT is a file of Shakespeare's plays (`tiny_shakespeare` of
tensorflow-datasets), of which the first nine tenths train. nanoGPT's validation loss is 1.88.
"""

import argparse
import contextlib
import json
import time
from pathlib import Path
from typing import NamedTuple

import keras
import numpy as np
import tensorflow as tf

import tf_graft as tg

NUMBERS = Path(__file__).parent / "data" / "characters.json"
LAYERS, HEADS, WIDTH, BLOCK, BATCH = 4, 4, 128, 64, 12
WARM_UP, VALIDATIONS, VALIDATED, GOAL = 100, 20, 20, 1.88
DECAY = 0.1
SAME = ("optimizer", "rate", "seed", "updates", "warm_up")
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


class Course(NamedTuple):
    """The schedules of a run: `course(rate)` is a learning rate's."""

    updates: int
    warm_up: int

    def __call__(self, highest: float) -> keras.optimizers.schedules.LearningRateSchedule:
        return keras.optimizers.schedules.CosineDecay(
            0.0,
            self.updates - self.warm_up,
            alpha=0.1,
            warmup_target=highest,
            warmup_steps=self.warm_up,
        )

    def amid(self, value: float) -> keras.optimizers.schedules.LearningRateSchedule:
        """Returns a value from a tenth of the updates to three quarters of them, 0 elsewhere."""
        bounds = [self.updates // 10, self.updates * 3 // 4]
        return keras.optimizers.schedules.PiecewiseConstantDecay(bounds, [0.0, value, 0.0])


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


def trained(name: str, rate: float, seed: int, text: Text, course: Course) -> dict:
    """Trains once; returns the validation losses by update, and the seconds of an update."""
    keras.utils.set_random_seed(seed)
    model = network(text.size)

    make, _ = CANDIDATES[name]
    optimizer, updates = make(rate, course, model), course.updates
    every = updates // VALIDATIONS
    loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    weights = model.trainable_variables
    optimizer.build(model)

    def loss(ids):
        return loss_of(ids[:, 1:], model(ids[:, :-1]))

    @tf.function(reduce_retracing=True)
    def train(batches):
        for ids in batches:
            with tf.GradientTape() as tape:
                value = loss(ids)
            optimizer.apply(tape.gradient(value, weights), weights)

    @tf.function(reduce_retracing=True)
    def validated(batches):
        return tf.reduce_mean(tf.map_fn(loss, batches, fn_output_signature=tf.float32))

    batches = text.batches("train", updates, seed)
    held = text.batches("test", VALIDATED, 1)
    losses, seconds = {}, []
    for done in range(0, updates, every):
        begin = time.perf_counter()
        train(batches[done : done + every])
        seconds.append((time.perf_counter() - begin) / every)
        evaluated = getattr(optimizer, "evaluation_weights", contextlib.nullcontext)
        with evaluated():
            losses[done + every] = round(float(validated(held)), 4)
    reached = next((update for update, value in losses.items() if value <= GOAL), None)
    return {
        "optimizer": name,
        "rate": rate,
        "seed": seed,
        "updates": updates,
        "warm_up": course.warm_up,
        "losses": losses,
        "updates_to_goal": reached,
        "seconds_per_update": round(float(np.median(seconds[1:] or seconds)), 4),
    }


def main() -> None:
    """Trains what is asked for, unless its figures are there."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("text", type=Path)
    parser.add_argument("optimizers", nargs="*", default=list(CANDIDATES))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--updates", type=int, default=2000)
    parser.add_argument("--warm-up", type=int, default=WARM_UP)
    given = parser.parse_args()
    course = Course(given.updates, given.warm_up)
    text = Text(given.text)
    made = json.loads(NUMBERS.read_text()) if NUMBERS.exists() else []
    for asked in given.optimizers:
        name, _, rates = asked.partition(":")
        for rate in map(float, rates.split(",")) if rates else CANDIDATES[name][1]:
            for seed in range(given.seeds):
                asked_for = (name, rate, seed, *course)
                if any(tuple(run[key] for key in SAME) == asked_for for run in made):
                    continue
                run = trained(name, rate, seed, text, course)
                print(*asked_for, [*run["losses"].values()][-1], flush=True)
                made.append(run)
                NUMBERS.write_text(json.dumps(made, indent=1) + "\n")


if __name__ == "__main__":
    main()
