"""`fit` as a user writes it, on several workers.

A program: `python -m programs.multi_worker_cases CASES --out FOLDER` writes a JSON line a case.
Run by `test_multi_worker.py`, which trains the same on one device.
"""

import argparse
import contextlib
import json
import os
import pathlib
import sys

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("KERAS_BACKEND", "tensorflow")

import keras
import numpy as np
import tensorflow as tf

import tf_graft as tg
from programs.strategy_cases import workers
from support.batch_logs import BatchLogs
from tf_graft.processes.cluster import end_with_launcher

RANDOM = np.random.default_rng(0)
IDS = RANDOM.integers(0, 6, (48, 5)).astype("int32")  # every batch repeats some
LABELS = (IDS.sum(1, keepdims=True) > 12).astype("float32")
BATCH = 8


class OwnStep(keras.Model):
    """A model with a `train_step` of its own."""

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = self.compute_loss(y=y, y_pred=self(x, training=True))
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
        replicas = tf.distribute.get_strategy().num_replicas_in_sync
        return {"own": loss * replicas} | self.compute_metrics(x, y, None)


def network(cls, optimizer, **compiled):
    keras.utils.set_random_seed(1)
    inputs = keras.Input([5], dtype="int32")
    rows = keras.layers.Flatten()(keras.layers.Embedding(6, 4)(inputs))
    model = cls(inputs, keras.layers.Dense(1)(rows))
    loss = keras.losses.BinaryCrossentropy(from_logits=True)
    model.compile(optimizer, loss, **compiled)
    return model


def arrays(scope, prepare):
    """Arrays, shuffled, with validation, metrics and averages; then evaluated and predicted."""
    with scope():
        optimizer = tg.Adam(0.02, global_clipnorm=0.5, weight_decay=0.01, use_ema=True)
        model = prepare(network(keras.Model, optimizer, metrics=["accuracy"]))
    logs = BatchLogs()
    history = model.fit(
        *(IDS, LABELS), BATCH, 2, 0, [logs], validation_data=(IDS[:16], LABELS[:16])
    ).history
    return {
        "history": history,
        "batches": logs.kept,
        "evaluated": model.evaluate(IDS, LABELS, BATCH, 0, return_dict=True),
        "predicted": model.predict(IDS, BATCH, 0).ravel().tolist(),
        "iterations": int(model.optimizer.iterations.numpy()),
    }


def data_set(scope, prepare):
    """A data set and a step of one's own; prepared before it is compiled, and a second time."""
    with scope():
        model = prepare(prepare(network(OwnStep, None)))
        model.compile(tg.Adagrad(0.1), "mse")
    batches = tf.data.Dataset.from_tensor_slices((IDS, LABELS)).batch(BATCH)
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
    logs = BatchLogs()
    history = model.fit(batches.with_options(options), None, None, 2, 0, [logs], shuffle=False)
    return {"history": history.history, "batches": logs.kept}


def not_a_number(scope, prepare):
    """One worker's loss is not a number; all stop, and none waits for the others."""
    labels = LABELS.copy()
    labels[9] = np.nan  # of the second batch the first half
    with scope():
        model = prepare(network(keras.Model, tg.SGD(0.1)))
    logs = BatchLogs()
    callbacks = [logs, keras.callbacks.TerminateOnNaN()]
    model.fit(IDS, labels, BATCH, 2, 0, callbacks, shuffle=False)
    return {"batches": len(logs.kept), "skipped": int(model.optimizer.skipped_steps.numpy())}


def executions(scope, prepare):
    """Executions of four steps, the last of an epoch of two."""
    with scope():
        model = prepare(network(keras.Model, tg.Adam(0.02), steps_per_execution=4))
    logs = BatchLogs()
    history = model.fit(IDS, LABELS, BATCH, 2, 0, [logs], validation_data=(IDS[:16], LABELS[:16]))
    return {"history": history.history, "batches": logs.kept}


CASES = {case.__name__: case for case in (arrays, data_set, not_a_number, executions)}


def main():
    end_with_launcher()
    arguments = argparse.ArgumentParser()
    arguments.add_argument("cases", choices=CASES, nargs="+")
    arguments.add_argument("--out", type=pathlib.Path)
    given = arguments.parse_args()
    strategy = workers()
    task = json.loads(os.environ["TF_CONFIG"])["task"]
    file = given.out / f"{task['type']}_{task['index']}.jsonl"
    with contextlib.closing(open(file, "w")) as out:
        for name in given.cases:
            out.write(json.dumps(CASES[name](strategy.scope, tg.multi_worker)) + "\n")


if __name__ == "__main__":
    main()
    sys.stdout.flush()
    os._exit(0)  # threads of a cluster would wait for one another
