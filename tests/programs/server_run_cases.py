"""What `tf-graft train` leaves behind after runs on a worker and a server in this process.

A program, run by `test_servers.py`: `python -m programs.server_run_cases FOLDER [CASES]`, by
default all of them. It ends with code 0 when all assertions hold.
"""

import os
import pathlib
import signal
import sys

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("KERAS_BACKEND", "tensorflow")

import keras
import numpy as np
import pytest
import tensorflow as tf
import tensorflow_datasets as tfds

from tf_graft.processes.cluster import free_ports
from tf_graft.training import config, data, log, run, servers
from tf_graft.training.place import Place
from tf_graft.training.run_checkpoints import number, states
from tf_graft.training.stop import Stopped

STEPS = 8  # in each of two epochs
RUN = """
strategy: {name: parameter_server}
run: {epochs: 2, progress: none, tensorboard: false, checkpoint_every: 3, keep_checkpoints: 9}
"""
DIGITS = f"""
data: {{name: digits, batch_size: 48, train: "train[:384]", test: "test[:96]"}}
model: {{name: mlp, units: [8]}}
{RUN}"""
CLICKS = f"""
data: {{name: few_ids, fields: {{item: 5, user: 7}}, label: stars, batch_size: 48}}
model: {{name: dlrm, dimension: 4, units: [8]}}
{RUN}"""
SERVERS: list[tf.distribute.Server] = []  # they stop when they are collected


class FewIds(tfds.core.GeneratorBasedBuilder):
    """Clicks."""

    VERSION = tfds.core.Version("1.0.0")

    def _info(self):
        features = {"user": np.int64, "item": np.int64, "stars": np.float32}
        return tfds.core.DatasetInfo(builder=self, features=tfds.features.FeaturesDict(features))

    def _split_generators(self, _):
        return {"train": self._generate_examples(384), "test": self._generate_examples(96)}

    def _generate_examples(self, count):
        for i in range(count):
            yield i, {"user": i % 7, "item": i % 5, "stars": float(i % 7 == i % 5)}


def strategy():
    """One worker and one server, which stay as long as this process."""
    worker, server = (f"localhost:{port}" for port in free_ports(2))
    spec = tf.train.ClusterSpec({"worker": [worker], "ps": [server]})
    for job in ("worker", "ps"):
        SERVERS.append(tf.distribute.Server(spec, job_name=job, task_index=0))
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(spec, rpc_layer="grpc")
    return tf.distribute.ParameterServerStrategy(resolver)


def trained(folder, optimizer, text=DIGITS, say=lambda _: None):
    """Trains; returns the summary, the epochs' metrics and the final model."""
    place = Place(strategy(), None, True, servers=True)
    run.enter = lambda _: place
    given = config.parse(text, overrides=[f"optimizer={optimizer}", f"run.dir={folder}"])
    summary = run.train(given, say)
    model = keras.models.load_model(folder / "model.keras")
    return summary, log.read(folder / "metrics.csv"), model


def clicks(folder):
    """Of the metrics of clicks, a step tells the loss alone."""
    section = config.parse(CLICKS, overrides=["optimizer={name: adam}"]).data
    FewIds(data_dir=data.prepared.data_dir(section)).download_and_prepare()
    _, metrics, _ = trained(folder, "{name: adam}", CLICKS)
    assert {"train_loss", "test_loss", "test_auc"} <= metrics.keys()
    assert "train_auc" not in metrics
    assert (folder / "plot.png").exists()


def scaled(folder):
    """The loss scale is logged as elsewhere."""
    summary, metrics, _ = trained(folder, "{name: mixed_precision, optimizer: {name: sgd}}")
    assert metrics["train_loss_scale"].min() > 1
    assert summary["train_skipped_steps"] == metrics["train_skipped_steps"][-1]


def evaluated(folder):
    """Each epoch evaluates the weights of evaluation, and the model ends with them."""
    summary, metrics, model = trained(folder, "{name: schedule_free_sgd, learning_rate: 0.5}")
    assert model.optimizer.evaluating
    np.testing.assert_allclose(metrics["test_loss"][-1], summary["test_loss"], rtol=1e-5)


def averaged(folder):
    """The model ends with the averages, and its optimizer with its state."""
    _, _, model = trained(folder, "{name: sgd, use_ema: true, ema_momentum: 0.5}")
    assert int(model.optimizer.iterations) == 2 * STEPS
    averages = model.optimizer.synchronized_averages()
    for variable, average in zip(model.trainable_variables, averages, strict=True):
        np.testing.assert_array_equal(variable.numpy(), average.numpy())


def saved(folder):
    """A state every three steps, and after each epoch, whose means are those of all its steps."""
    _, metrics, _ = trained(folder, "{name: sgd}")
    assert [number(path) for path in states(folder / "checkpoints")] == [16, 14, 11, 8, 6, 3]
    losses = log.read(folder / "steps.csv")["loss"].reshape(2, STEPS)
    np.testing.assert_allclose(metrics["train_loss"], losses.mean(axis=1), rtol=1e-5)


def continued(folder):
    """After a restart within an epoch, its training metrics are still the means of all steps."""
    trained(folder, "{name: sgd}")
    whole = (folder / "metrics.csv").read_bytes()
    _lose(folder, after=11)
    trained(folder, "{name: sgd}")
    assert (folder / "metrics.csv").read_bytes() == whole


def continued_from_0_2_0(folder):
    """A state without metrics loads; those of its epoch are the means of the steps that follow."""
    saved_now = servers.Remote.saved
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(servers.Remote, "saved", lambda remote: _without_metrics(saved_now(remote)))
        trained(folder, "{name: sgd}")
    _lose(folder, after=11)
    _, metrics, _ = trained(folder, "{name: sgd}")
    losses = log.read(folder / "steps.csv")["loss"]
    np.testing.assert_allclose(metrics["train_loss"][1], losses[11:].mean(), rtol=1e-5)


def stopped_before_a_step(folder):
    """A signal while the run starts saves the state of step 0, from which it continues."""
    with pytest.raises(Stopped, match="after step 0"):
        trained(folder, "{name: sgd}", say=lambda _: signal.raise_signal(signal.SIGTERM))
    _, metrics, _ = trained(folder, "{name: sgd}")
    assert metrics["epoch"].tolist() == [1, 2]


def _without_metrics(groups):
    return {name: variables for name, variables in groups.items() if name != "metrics"}


def _lose(folder, after):
    """Removes what a run has written after a step, but for the logs, which a restart cuts."""
    (folder / "summary.json").unlink()
    for path in folder.glob("checkpoints/ckpt-*.index"):
        if number(path.with_suffix("")) > after:
            path.unlink()


CASES = {
    case.__name__: case
    for case in (
        saved,
        averaged,
        evaluated,
        scaled,
        clicks,
        continued,
        continued_from_0_2_0,
        stopped_before_a_step,
    )
}


if __name__ == "__main__":
    for name in sys.argv[2:] or CASES:
        CASES[name](pathlib.Path(sys.argv[1]) / name)
    sys.stdout.flush()
    os._exit(0)
