"""What layouts of the Transformer of `text_dtensor` send and hold, counted: a table in Markdown.

By hand: `python tests/programs/mesh_bytes.py`. `slot_share_cases.py` checks such figures.
"""

import types

import keras
import numpy as np
import tensorflow as tf

import tf_graft as tg
from tf_graft.training import models, schema

BATCH, LENGTH, WIDTH, LAYERS, CHARACTERS = 16, 64, 64, 2, 256
LAYOUTS = {
    "embeddings": [None, "model"],
    "(query|key|value)/kernel": [None, "model", None],
    "(query|key|value)/bias": ["model", None],
    "attention_output/kernel": ["model", None, None],
    "dense(_2)?/kernel": [None, "model"],
    "dense(_2)?/bias": ["model"],
    "dense_(1|3)/kernel": ["model", None],
}
MESHES = ((4, 1), (8, 1), (1, 4), (2, 2), (2, 4))


def transformer() -> keras.Model:
    keras.backend.clear_session()
    spec = schema.Transformer(name="transformer", d_model=WIDTH, layers=LAYERS, feed_forward=256)
    sizes = {"vocabulary": CHARACTERS, "classes": CHARACTERS}
    data = types.SimpleNamespace(kind="characters", shape=(LENGTH,), **sizes)
    model = models.build(spec, data, None)
    model.compile(tg.Adam(), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model


def least(model: keras.Model, batch: int, parts: int) -> float:
    """The gradients' all-reduce (or reduce-scatter, and the steps' all-gather); the activations'
    all-reduce twice a block there and back, and the all-gather of the embedding.
    """
    values = [tf.convert_to_tensor(v) for v in model.trainable_variables]
    held = sum(tf.size(tf.experimental.dtensor.unpack(v)[0]).numpy() for v in values)
    activations = BATCH // batch * LENGTH * WIDTH
    data, tensor = 2 * (batch - 1) / batch, (2 * 4 * LAYERS + 1) * (parts - 1) / parts
    return 4 * (data * held + tensor * activations)


def main() -> None:
    tg.dtensor.logical_cpus(max(batch * parts for batch, parts in MESHES))
    x = np.random.default_rng(0).integers(0, CHARACTERS, (BATCH, LENGTH)).astype("int32")
    print("| batch x model | slots | sent, counted | least | model, held | optimizer, held |")
    print("|---|---|---:|---:|---:|---:|")
    for batch, parts in MESHES:
        devices = [f"CPU:{i}" for i in range(batch * parts)]
        mesh = tg.dtensor.create_mesh({"batch": batch, "model": parts}, devices=devices)
        for shard_slots in (False, True) if batch > 1 else (False,):
            layout_map = tg.dtensor.LayoutMap(mesh, LAYOUTS if parts > 1 else {})
            model = tg.dtensor.distribute(transformer(), layout_map, shard_slots=shard_slots)
            sent = tg.dtensor.traffic(model, (x, x)).sent
            held = tg.dtensor.memory(model)
            figures = (sent, least(model, batch, parts), held["model"], held["optimizer"])
            slots = "divided" if shard_slots else "whole"
            print(f"| {batch} x {parts} | {slots} |", " | ".join(f"{x:,.0f}" for x in figures), "|")


if __name__ == "__main__":
    main()
