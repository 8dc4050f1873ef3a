"""Executions of a compiled Keras model, each a place where cells of the matrix are computed.

Imported by `strategy_cases.py` after the devices and the strategy are made.
"""

import contextlib

import keras
import numpy as np
import tensorflow as tf

import tf_graft
from support import cells, model_cells, model_rows
from tf_graft import dtensor as meshes

# How the variables lie on a mesh of 2 x 2, whose dimension x divides the examples: whole on every
# device, or divided along each dimension that can be. A table's rows cannot.
LAYOUTS = {
    "replicated": {},
    "both": {
        "embeddings": [None, "y"],
        "dense/kernel": ["x", "y"],
        "dense/bias": ["y"],
        "norm/gamma": ["x"],
    },
}


class Watch(keras.callbacks.Callback):
    """Reads the weights after the last step, before `fit` ends and changes them."""

    def __init__(self, read):
        super().__init__()
        self.read = read

    def on_train_batch_end(self, batch, logs=None):
        if batch == cells.STEPS - 1:
            self.weights = self.read(self.model)


class OneDevice:
    """`compile` and `fit`."""

    problem = model_cells.Problem()
    columns = ("",)  # by name, where there are several

    def __init__(self, **how):
        self.how = how

    def scope(self):
        return contextlib.nullcontext()

    def made(self, name, option):
        """A compiled model."""
        with self.scope():
            model = model_cells.model()
            optimizer = model_rows.ROWS[name].make(**cells.OPTIONS[option])
            model.compile(optimizer, model_cells.LOSS(), **self.how)
        return model

    def cell(self, name, option, column):
        """A cell, and the digest of all that was computed."""
        before, after, optimizer = self.run(name, option, column)
        found = self.found(before, after, optimizer)
        alike = self.problem.replicas == 1 or not isinstance(optimizer, tf_graft.AGN)
        digest = cells.digest(*(before.values() if alike else ()), *after.values())
        return model_cells.judged(name, option, found, self.problem), digest

    def run(self, name, option, column):
        """The weights after the last step, those after the end, and the optimizer."""
        model, watch = self.made(name, option), Watch(self.weights)
        self.fit(model, option, [watch])
        return watch.weights, self.weights(model), model.optimizer

    def fit(self, model, option, callbacks):
        x, y, w = model_cells.data(option)
        model.fit(
            *(x, y, model_cells.EXAMPLES),
            sample_weight=w,
            shuffle=False,
            verbose=0,
            callbacks=callbacks,
        )

    def weights(self, model):
        read = [self.read(variable) for variable in model.trainable_variables]
        return dict(zip(model_cells.SHAPES, read, strict=True))

    def read(self, variable):
        return variable.numpy()

    def found(self, before, after, optimizer):
        """What is compared with what is right."""
        counts = (int(self.read(v)) for v in (optimizer.iterations, optimizer.skipped_steps))
        exact = {}
        if isinstance(optimizer, tf_graft.AGN):
            exact["rounds"] = int(self.read(optimizer.rounds))
        if isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
            exact["loss_scale"] = float(self.host(optimizer.loss_scale()))
        return cells.Found(before, after, *counts, exact=exact)

    def host(self, tensor):
        return tensor


class Replicas(OneDevice):
    """Under a `MirroredStrategy`, whose replicas share each batch."""

    def __init__(self, strategy, **how):
        super().__init__(**how)
        self.strategy = strategy
        self.problem = model_cells.Problem(replicas=strategy.num_replicas_in_sync)

    def scope(self):
        return self.strategy.scope()

    def host(self, tensor):
        return self.strategy.experimental_local_results(tensor)[0]

    def found(self, before, after, optimizer):
        if not isinstance(optimizer, tf_graft.AGN):  # whose replicas differ
            for variable in optimizer.variables:
                first, *others = self.strategy.experimental_local_results(variable.value)
                for other in others:
                    assert first.numpy().tobytes() == other.numpy().tobytes(), variable.path
        return super().found(before, after, optimizer)


class Workers(Replicas):
    """On several workers, each of which runs this program."""

    def __init__(self, strategy, **how):
        super().__init__(strategy, **how)
        self.problem = self.problem._replace(own=strategy.cluster_resolver.task_id)

    def made(self, name, option):
        return tf_graft.multi_worker(super().made(name, option))


class Mesh(OneDevice):
    """On a mesh of 2 x 2, a model for each way its variables lie."""

    columns: tuple[str, ...] = tuple(LAYOUTS)
    problem = model_cells.Problem(mesh=True)

    def __init__(self, **how):
        super().__init__(**how)
        self.mesh = meshes.create_mesh({"x": 2, "y": 2})

    def run(self, name, option, column):
        model, watch = self.made(name, option), Watch(self.weights)
        layouts = LAYOUTS[column or "both"]
        meshes.distribute(model, meshes.LayoutMap(self.mesh, layouts), batch_dim="x")
        self.fit(model, option, [watch])
        return watch.weights, self.weights(model), model.optimizer

    def read(self, variable):
        return np.asarray(self.host(model_cells.raw(variable).read_value()))

    def host(self, tensor):
        return meshes.from_mesh(tensor)


class Clients(Mesh):
    """On a mesh of two processes of two devices; x divides the examples among the processes."""

    columns = ("",)


class Traced(OneDevice):
    """Under a `TPUStrategy` of devices that do not exist: what `fit` would compile is traced."""

    columns = ("tpu",)

    def cell(self, name, option, column):
        from support import tpu_traced

        with tpu_traced.strategy().scope():
            model = self.made(name, option)
            with tpu_traced.never_run() as traces:
                self.fit(model, option, [])
        found = [tpu_traced.found_wrong(tpu_traced.graph_of(trace)) for trace in traces]
        assert None in found, found
        assert set(found) <= {None, "nothing of it runs on a TPU"}, found
        return cells.Cell(name, option, 0.0), ""


class Servers(OneDevice):
    """The variables on parameter servers; one worker takes the steps that the chief schedules.

    Keras has no `fit` there. One worker, as state of `AGN`'s local optimizer stays with a worker.
    """

    def __init__(self, strategy, shards):
        super().__init__()
        self.strategy = strategy
        self.shards = shards
        self.coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)

    def run(self, name, option, column):
        agn = name.startswith("agn")
        self.problem = model_cells.Problem(shards=self.shards, rounds=agn)
        with self.strategy.scope():
            model = model_cells.model(shards=self.shards)
            parts = tf_graft.shards(model.trainable_variables)
            optimizer = model_rows.ROWS[name].make(**cells.OPTIONS[option])
            optimizer.build(parts if self.shards > 1 else model)
        if agn:
            self.take_rounds(model, optimizer, option)
        else:
            self.take_steps(model, optimizer, parts, option)
        before = self.weights(parts)
        optimizer.finalize_variable_values(parts)
        return before, self.weights(parts), optimizer

    def weights(self, parts):
        names = cells.split(model_cells.weights(self.shards), self.shards)
        read = dict(zip(names, (part.numpy() for part in parts), strict=True))
        return cells.joined(read, model_cells.shapes_of(self.shards))

    def take_steps(self, model, optimizer, parts, option):
        def step(*batch):
            with tf.GradientTape() as tape:
                scaled = optimizer.scale_loss(loss_of(model, *batch))
            gradients = tape.gradient(scaled, [model_cells.raw(part) for part in parts])
            optimizer.apply(gradients, parts)

        scheduled = tf.function(lambda *batch: self.strategy.run(step, args=batch))
        for batch in model_cells.batches(option):
            self.coordinator.schedule(scheduled, args=tuple(map(tf.constant, batch)))
            self.coordinator.join()

    def take_rounds(self, model, optimizer, option):
        scheduled = tf.function(
            lambda *batches: optimizer.round(lambda *batch: loss_of(model, *batch), batches)
        )
        length = optimizer.communication_period * (optimizer.gradient_accumulation_steps or 1)
        steps = model_cells.batches(option)
        for first in range(0, len(steps), length):
            taken = zip(*steps[first : first + length], strict=True)
            self.coordinator.schedule(
                scheduled, args=tuple(tf.constant(np.stack(x)) for x in taken)
            )
            self.coordinator.join()


def loss_of(model, x, y, w):
    return model_cells.LOSS()(y, model(x, training=True), w)


def sentence(message):
    """The sentence of an error: where AutoGraph has put the user's code before it, the last."""
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    return lines[-1].partition(": ")[2] if lines[0] == "in user code:" else lines[0]


# A collective or one of its workers is lost, and with it all that would come later.
LOST = tf.errors.AbortedError, tf.errors.CancelledError
LOST += tf.errors.DeadlineExceededError, tf.errors.UnavailableError


def filled(place, name, options):
    """(cells by column, digest) for each of a row's options; what fails is a cell, too."""
    for option in options:
        for column in place.columns:
            keras.utils.set_random_seed(0)
            digest = ""
            try:
                found, digest = place.cell(name, option, column)
            except (TypeError, ValueError) as error:
                found = cells.Cell(name, option, None, sentence(str(error)))
            except LOST:
                raise
            except (AssertionError, RuntimeError, tf.errors.OpError) as error:
                said = f"{type(error).__name__}: {' '.join(str(error).split())}"
                found = cells.Cell(name, option, None, said[-300:])
            yield {column: found}, digest
            keras.backend.clear_session(free_memory=False)
