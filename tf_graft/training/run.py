"""A training run from beginning to end."""

import contextlib
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import keras
import tensorflow as tf

from tf_graft import dtensor
from tf_graft.agn import AGN, CenterWeights
from tf_graft.core import keras_contract, tensorboard
from tf_graft.core.files.whole_files import whole
from tf_graft.core.nesting import nested
from tf_graft.core.pipeline import judge
from tf_graft.core.two_weights import TwoWeights
from tf_graft.fit.evaluation_weights import EvaluationWeights
from tf_graft.monitor.monitor import Monitor
from tf_graft.report import GraftRecorder
from tf_graft.scaling import LossScaleLogger
from tf_graft.training import configured_optimizer as optimizer
from tf_graft.training import data as data_sets
from tf_graft.training import fine_tuning, models, plots, progress, results, servers
from tf_graft.training.folder import SPLITS, RunFolder, State
from tf_graft.training.log import Log, read
from tf_graft.training.loop import (
    STEP_COLUMNS,
    Bookkeeping,
    EpochBar,
    RecordedModel,
    Writers,
    metric_columns,
)
from tf_graft.training.origin import Origin
from tf_graft.training.place import Place, enter
from tf_graft.training.results import Numbers
from tf_graft.training.run_checkpoints import Checkpoints, number, states
from tf_graft.training.saved_state import groups_of
from tf_graft.training.schema import RunConfig
from tf_graft.training.stop import StopRequest, continuing

RECORDS = 200  # the largest number of records of a graft's norms in a run, as they take time
STOPPING = "Stopping after this step, whose state will be saved. Ctrl-C again stops at once."


def train(config: RunConfig, say: Callable[[str], None] = print) -> Numbers:
    """Starts or continues the run that `config` describes.

    Args:
        config: what `tf_graft.training.config.load` returned; `run.dir` must be set.
        say: called with each line for the user.

    Returns:
        The summary, as in `summary.json`.

    Raises:
        ConfigError: the config cannot be run; nothing has been written to the run's folder.
        CheckpointError: no saved state of the run can be read.
        FolderError: the run's folder can no longer be written to.
        Stopped: a signal ended the run, whose state is saved.
        KeyboardInterrupt: Ctrl-C ended the run before that; the message says what is kept.
    """
    place, folder = enter(config), RunFolder.of(config)
    try:
        return _trained(config, place, folder, say)
    except KeyboardInterrupt:
        raise KeyboardInterrupt(f"Interrupted. {_kept(folder)}") from None


def _trained(
    config: RunConfig, place: Place, folder: RunFolder, say: Callable[[str], None]
) -> Numbers:
    request = _request(config, place)
    with environment(config), request.listening() as stop, ExitStack() as opened:
        opened.enter_context(place.together())
        data = batches(config, place)
        model = compiled(config, data, place, say, anew=not folder.resumes(config))
        if place.chief:
            folder.check(config)
        if summary := progress.finished(config, folder, data.steps_per_epoch, say):
            return summary
        if place.chief:
            opened.enter_context(folder.opened(config, say))
        remote = servers.Remote(config, data, model, place) if place.servers else None
        if remote:
            opened.callback(remote.close)
        saved, keep = remote.saved() if remote else groups_of(model), config.run.keep_checkpoints
        origin = Origin(config, folder, config.run.epochs * data.steps_per_epoch)
        loose = _may_be_nonfinite(model.optimizer)
        checkpoints = Checkpoints(folder.checkpoints, saved, keep, origin, place.shared_mesh, loose)
        start = progress.resumed(config, place, folder, checkpoints, say)
        say(progress.announced(config, folder, model, data, start))
        if not place.chief:
            folder = _own_folder(opened)
            if place.shared_mesh is None:
                checkpoints = Checkpoints(folder.checkpoints, saved, keep, origin)
        began, stop.at_once = time.monotonic(), False
        if remote:
            servers.fit(config, data, remote, folder, checkpoints, start, stop)
        else:
            _fit(config, data, model, place, folder, checkpoints, start, stop)
        return _finish(config, data, model, folder, time.monotonic() - began)


def _request(config: RunConfig, place: Place) -> StopRequest:
    """Makes what remembers a signal, while there is nothing to save yet."""
    request = StopRequest(continuing(config))
    request.at_once, request.notice = place.alone, STOPPING if place.alone else ""
    return request


def _kept(folder: RunFolder) -> str:
    """Says in a sentence what an interrupted run leaves."""
    path = folder.path
    if folder.state() != State.RUN:
        return f"The run had not begun: nothing was written to {path}."
    if not (saved := states(folder.checkpoints)):
        return f"{path} has no saved state yet: the same command starts at the first step."
    return f"{path} keeps the state after step {number(saved[0]):,}, from which a run continues."


def batches(config: RunConfig, place: Place) -> data_sets.Batches:
    """Returns the data of a run."""
    steps, distributed = config.run.steps_per_execution, place.strategy is not None
    return data_sets.load(config.data, steps, distributed)


def _may_be_nonfinite(optimizer: keras.optimizers.Optimizer) -> bool:
    """Returns whether an optimizer of this package accepts state that is infinite or NaN.

    With a policy of half precision, `compile` has wrapped the optimizer into Keras'
    LossScaleOptimizer.
    """
    ours = next(each for each in nested(optimizer) if hasattr(each, "nonfinite"))
    return judge.applies(ours.nonfinite)


def _own_folder(opened: ExitStack) -> RunFolder:
    """Opens a worker's own folder: all workers must save, but only one in the run's folder."""
    own = opened.enter_context(tempfile.TemporaryDirectory(prefix="tf_graft_"))
    return RunFolder(own)


def compiled(
    config: RunConfig,
    data: data_sets.Batches,
    place: Place,
    say: Callable[[str], None],
    anew: bool = True,
) -> RecordedModel:
    """Returns the model of a run, compiled and with all of its variables.

    Args:
        config: the config.
        data: its data.
        place: where it runs.
        say: called with each line for the user.
        anew: whether to load the weights that the run starts from; a saved state replaces them.
    """
    # Set after the data, whose preparation may draw random numbers. The seed is not 0, because
    # tf.data accepts no tensor as a seed if the global seed is 0.
    keras.utils.set_random_seed(config.run.seed + 1)
    with place.layer_scope():
        plain = models.build(config.model, data)
        if anew and (started := fine_tuning.load(plain, config.fine_tuning)):
            say(started)
        model = RecordedModel(plain.input, plain.output, name=plain.name)
        model.compile(
            optimizer=optimizer.build(config, data.steps_per_epoch, lambda: plain),
            loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            metrics=models.metrics(data),
            jit_compile=config.run.jit_compile,
            steps_per_execution=config.run.steps_per_execution,
        )
    # All saved variables must exist: slots, and metrics, which Keras creates on first use.
    try:
        model.build_optimizer()
    except (ValueError, TypeError) as error:
        raise optimizer.located(error, config) from None
    with place.layer_scope():
        if anew and (started := fine_tuning.load_rows(model, config.fine_tuning)):
            say(started)
    place.settle(model, data, config.mesh)
    with place.layer_scope():
        model.record(config.run.steps_per_execution)
    return model


def _fit(
    config: RunConfig,
    data: data_sets.Batches,
    model: RecordedModel,
    place: Place,
    folder: RunFolder,
    checkpoints: Checkpoints,
    start: int,
    stop: StopRequest,
) -> None:
    writers = _writers(config, folder)
    recorders = _recorders(config, model, folder, data.steps_per_epoch, start, writers)
    with (
        contextlib.closing(Log(folder.steps, STEP_COLUMNS, start)) as steps,
        contextlib.closing(Log(folder.metrics, metric_columns(model), start)) as metrics,
    ):
        model.fit(
            data.stream(config.run.seed, start),
            epochs=config.run.epochs,
            initial_epoch=start // data.steps_per_epoch,
            steps_per_epoch=data.steps_per_epoch,
            shuffle=False,  # the stream is shuffled already
            validation_data=data.test,
            verbose=progress.verbosity(config.run.progress),
            callbacks=[
                *recorders,
                Bookkeeping(
                    checkpoints=checkpoints,
                    logs=(steps, metrics),
                    recorders=recorders,
                    stop=stop,
                    steps_per_epoch=data.steps_per_epoch,
                    every=config.run.checkpoint_every,
                    step=start,
                    writers=writers,
                    agreed=place.agreed,
                ),
                EpochBar(*divmod(start, data.steps_per_epoch)),
            ],
        )


def _finish(
    config: RunConfig,
    data: data_sets.Batches,
    model: RecordedModel,
    folder: RunFolder,
    seconds: float,
) -> Numbers:
    """Evaluates and saves the model, with its averaged weights if there are any, and plots."""
    tests = model.evaluate(data.test, verbose=0, return_dict=True)
    if dtensor.layout_map_of(model) is not None:
        dtensor.collect(model)
    plain = keras.Model(model.input, model.output, name=model.name)
    plain.compile(model.optimizer, model.loss, metrics=models.metrics(data))
    folder.check_place()
    with whole(folder.model) as part:
        plain.save(part)
    log = {name: values for name, values in read(folder.metrics).items() if len(values)}
    if log:  # empty if the log was lost
        title = f"{folder.path.name}: {config.model.name}, {config.optimizer.name}"
        plots.draw_run(folder, title)
    numbers = {
        "epochs": config.run.epochs,
        "steps": config.run.epochs * data.steps_per_epoch,
        **{name: float(log[name][-1]) for name in log if name.startswith("train_")},
        **{f"test_{name}": float(value) for name, value in tests.items()},
        "parameters": model.count_params(),
        "seconds": round(seconds, 1),
        "keras": keras.__version__,
        "tensorflow": tf.__version__,
    }
    return results.write(folder.summary, numbers)


@contextlib.contextmanager
def environment(config: RunConfig) -> Iterator[None]:
    """Sets the dtype policy of layers, and determinism, during a run.

    Raises:
        ConfigError: the config asks for TensorBoard's files, and TensorBoard is not installed.
    """
    if config.run.tensorboard and not tensorboard.installed():
        message = f"{tensorboard.MISSING}; or leave run.tensorboard out."
        raise config.error(("run", "tensorboard"), message)
    before = keras.config.dtype_policy()
    if config.run.deterministic and tf.config.list_physical_devices("GPU"):
        # Operations on CPUs are deterministic already; this cannot be switched off again.
        tf.config.experimental.enable_op_determinism()
    keras.config.set_dtype_policy(config.precision.policy)
    try:
        yield
    finally:
        keras.config.set_dtype_policy(before)


def _writers(config: RunConfig, folder: RunFolder) -> Writers:
    if config.run.tensorboard is False or not tensorboard.installed():
        return {}
    return {
        split: tf.summary.create_file_writer(str(folder.tensorboard / split)) for split in SPLITS
    }


def _recorders(
    config: RunConfig,
    model: RecordedModel,
    folder: RunFolder,
    steps_per_epoch: int,
    start: int,
    writers: Writers,
) -> list[keras.callbacks.Callback]:
    """Returns the callbacks that run before a state is saved.

    They unfreeze layers, record the loss scale and the norms of weights and of a graft, and
    evaluate AGN's center or the evaluation weights.
    """
    chosen, run = model.optimizer, config.run
    found: list[keras.callbacks.Callback] = []
    if any(isinstance(each, TwoWeights) for each in nested(chosen)):
        found.append(EvaluationWeights())
    if config.fine_tuning.unfreeze:
        found.append(fine_tuning.unfreezing(config.fine_tuning))
    if run.monitor:
        monitor = Monitor(run.monitor, path=folder.norms, writer=writers.get("train"))
        monitor.batches = start // run.steps_per_execution
        found.append(monitor)
    if isinstance(chosen, keras_contract.ScalesLoss):
        found.append(LossScaleLogger())
    if isinstance(chosen, AGN):
        found.append(CenterWeights())
    if any(getattr(each, "diagnostic", False) for each in nested(chosen)):
        every = -(-run.epochs * steps_per_epoch // RECORDS)
        found.append(GraftRecorder(folder.records, every, writer=writers.get("train")))
    return found
