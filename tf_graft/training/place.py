"""The place where a run computes: one device, replicas, workers, parameter servers or a mesh."""

import contextlib
import dataclasses
from collections.abc import Iterator

import keras
import numpy as np
import tensorflow as tf

from tf_graft import dtensor
from tf_graft.core.places import mesh_processes
from tf_graft.core.spelling import plain
from tf_graft.dtensor import clients
from tf_graft.fit.multi_step import multi_step
from tf_graft.processes.cluster import end_with_launcher
from tf_graft.processes.gathering import gathered
from tf_graft.processes.multi_worker import multi_worker
from tf_graft.scaling import MixedPrecision
from tf_graft.training import task
from tf_graft.training.data import Batches
from tf_graft.training.schema import Mesh, Mirrored, ParameterServer, RunConfig
from tf_graft.training.stop import ProcessLost

# The errors that TensorFlow raises if another process has ended, is stopped or cannot be reached.
LOSSES = (
    tf.errors.UnavailableError,
    tf.errors.AbortedError,
    tf.errors.CancelledError,
    tf.errors.DeadlineExceededError,
)
MAX_PARTS = 256  # logical devices of a CPU; each has its own threads


@dataclasses.dataclass(frozen=True)
class Place:
    """The place where a run computes, and this process's part in it.

    Attributes:
        strategy: the strategy of `tf.distribute`, if there is one.
        mesh: the mesh of all processes' devices, if the config has one.
        chief: whether this process writes the run's folder.
        workers: the number of workers.
        servers: whether variables are on parameter servers.
    """

    strategy: tf.distribute.Strategy | None
    mesh: tf.experimental.dtensor.Mesh | None
    chief: bool
    workers: int = 1
    servers: bool = False

    def layer_scope(self) -> contextlib.AbstractContextManager[object]:
        """Returns the context in which to create variables."""
        if self.strategy is None or self.servers:  # variables on servers have another scope
            return contextlib.nullcontext()
        return self.strategy.scope()

    @property
    def shared_mesh(self) -> tf.experimental.dtensor.Mesh | None:
        """The mesh, if each of several processes holds a part of the variables."""
        return self.mesh if self.mesh is not None and clients.several(self.mesh) else None

    @property
    def alone(self) -> bool:
        """Whether no other process takes part in the run."""
        return self.workers == 1 and not self.servers and self.shared_mesh is None

    def told(self, number: int) -> list[int]:
        """Waits until all processes that run the same program have called this method.

        Returns:
            The number that each of them gave.
        """
        if self.shared_mesh is not None:
            return [row[0] for row in clients.gathered(self.shared_mesh, [number])]
        if self.strategy is None or self.servers:
            return [number]
        own = len(self.strategy.extended.worker_devices)
        return gathered(self.strategy, [np.array(number)] * own).tolist()

    @contextlib.contextmanager
    def together(self) -> Iterator[None]:
        """A context that ends together with the other processes; reports a lost one in a sentence.

        Raises:
            ProcessLost: TensorFlow has lost another process within the context.
        """
        try:
            yield
            self.told(0)
        except tf.errors.OpError as error:
            if not _is_loss(error) or (self.workers == 1 and not self.servers):
                raise
            lines = error.message.splitlines() or ["nothing."]
            reason = next((line for line in lines if "is aborted by" in line), lines[0])
            raise ProcessLost(f"TensorFlow says: {reason}") from None
        self._let_go()

    def _let_go(self) -> None:
        """Waits until the other processes have ended their work, so that none still needs this one.

        A process that is gone by now has met all others at the end: nothing is lost.
        """
        try:
            self.told(0)
        except tf.errors.OpError as error:
            if not _is_loss(error):
                raise

    def settle(self, model: keras.Model, data: Batches, section: Mesh | None) -> None:
        """Creates all variables that a compiled model creates on first use, and places them.

        Args:
            model: the model.
            data: its data.
            section: the config's section `mesh`.

        Raises:
            ConfigError: a layout does not fit.
        """
        workers = isinstance(self.strategy, tf.distribute.MultiWorkerMirroredStrategy)
        (multi_worker if workers else multi_step)(model)
        count = 1 if self.strategy is None else self.strategy.num_replicas_in_sync
        model.evaluate(data.zeros(count), verbose=0)
        model.reset_metrics()
        if section is not None:
            self._put_on_mesh(model, section)

    def _put_on_mesh(self, model: keras.Model, section: Mesh) -> None:
        try:
            layout_map = dtensor.LayoutMap(self.mesh, section.layouts)
            dtensor.distribute(model, layout_map, shard_slots=section.shard_slots)
        except (ValueError, TypeError) as error:
            message = str(error).partition("\n")[0]
            named = [pattern for pattern in section.layouts if f"['{pattern}']" in message]
            raise section.error(("mesh", "layouts", *named[:1]), message) from None

    def agreed(self, signum: int | None) -> int | None:
        """Returns the signal of any process, given that of this one."""
        return max(self.told(signum or 0)) or None


def _is_loss(error: tf.errors.OpError) -> bool:
    """Returns whether another process is lost; TensorFlow's barriers then raise InternalError."""
    at_barrier = isinstance(error, tf.errors.InternalError) and "Barrier failed" in error.message
    return at_barrier or isinstance(error, LOSSES)


def enter(config: RunConfig) -> Place:
    """Creates the devices and the strategy of a run, before anything else.

    In the process of a worker or a server of parameter servers, this call does not return.

    Raises:
        ConfigError: this machine or process does not provide what the config asks for.
    """
    end_with_launcher()
    section = config.strategy
    if section is not None and config.mesh is not None:
        raise config.error(("mesh",), "mesh: a run has a strategy or a mesh, not both.")
    if config.mesh is not None:
        return _mesh(config.mesh, config)
    if section is None:
        return Place(None, None, True)
    if isinstance(section, Mirrored):
        return _mirrored(section, config)
    if isinstance(section, ParameterServer):
        return _parameter_servers(section, config)
    return _multi_worker(config)


def _mirrored(section: Mirrored, config: RunConfig) -> Place:
    gpus = tf.config.list_physical_devices("GPU")
    count = section.devices or max(1, len(gpus))
    _check_batch(config, count, "devices")
    if not gpus:
        _devices(config, count, ("strategy", "devices"))
    elif count > len(gpus):
        message = f"devices={count}: there are {len(gpus)} GPUs."
        raise config.error(("strategy", "devices"), message)
    kind = "GPU" if gpus else "CPU"
    strategy = tf.distribute.MirroredStrategy([f"{kind}:{i}" for i in range(count)])
    return Place(strategy, None, True)


def _multi_worker(config: RunConfig) -> Place:
    here, cluster = task.tf_config(config)
    workers = sum(len(cluster.get(kind, ())) for kind in ("chief", "worker"))
    _check_batch(config, workers, "workers")
    chief = here.kind == "chief" or ("chief" not in cluster and here.number == 0)
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    return Place(strategy, None, chief, workers=workers)


def _parameter_servers(section: ParameterServer, config: RunConfig) -> Place:
    _refuse_on_servers(config)
    here, cluster = task.tf_config(config)
    if not cluster.get("ps") or not cluster.get("worker"):
        message = "parameter_server: the cluster in TF_CONFIG needs 'worker' and 'ps' tasks."
        raise config.error(("strategy", "name"), message)
    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    task.watch_others(here, cluster)
    if here.kind in ("worker", "ps"):
        server = tf.distribute.Server(
            resolver.cluster_spec(), job_name=here.kind, task_index=here.number
        )
        server.join()  # runs until this process ends
    partitioner = None
    if section.shards > 1:
        partitioner = tf.distribute.experimental.partitioners.FixedShardsPartitioner(section.shards)
    strategy = tf.distribute.ParameterServerStrategy(resolver, partitioner)
    return Place(strategy, None, True, workers=len(cluster["worker"]), servers=True)


def _refuse_on_servers(config: RunConfig) -> None:
    steps = config.run.steps_per_execution
    if steps > 1:
        message = f"steps_per_execution={steps}: a worker takes one step at a time; leave it at 1."
        raise config.error(("run", "steps_per_execution"), message)
    for key, given in (
        (("fine_tuning", "unfreeze"), config.fine_tuning.unfreeze),
        (("fine_tuning", "rows"), config.fine_tuning.rows),
        (("run", "monitor"), config.run.monitor),
    ):
        if given:
            raise config.error(key, f"{key[-1]}: it does not work with workers on servers.")
    scales = plain(config.optimizer.name) == plain(MixedPrecision.__name__)
    if config.precision.policy == "mixed_float16" and not scales:
        message = (
            "policy: on parameter servers, mixed_float16 needs the optimizer mixed_precision "
            "around yours, which scales the loss; or give mixed_bfloat16."
        )
        raise config.error(("precision", "policy"), message)


def _mesh(section: Mesh, config: RunConfig) -> Place:
    _check_mesh(section, config)
    count = section.batch * section.model
    try:
        processes = mesh_processes.find()
        if count % processes:
            message = f"{count} devices cannot be divided evenly over {processes} processes."
            raise config.error(("mesh",), message)
        _devices(config, count // processes, ("mesh",))
        mesh = dtensor.create_mesh({"batch": section.batch, "model": section.model})
    except (ValueError, RuntimeError) as error:
        raise config.error(("mesh",), str(error)) from None
    chief = tf.experimental.dtensor.client_id() == 0
    return Place(None, mesh, chief, workers=processes)


def _check_mesh(section: Mesh, config: RunConfig) -> None:
    _check_batch(config, section.batch, "devices of the mesh's 'batch'")
    if config.run.jit_compile:
        message = "jit_compile: a mesh has its own compiler; leave it at false."
        raise config.error(("run", "jit_compile"), message)


def _check_batch(config: RunConfig, count: int, what: str) -> None:
    size = config.data.batch_size
    if size % count:
        message = f"batch_size={size} cannot be divided evenly over {count} {what}."
        raise config.error(("data", "batch_size"), message)


def _devices(config: RunConfig, count: int, key: tuple[str, ...]) -> None:
    """Divides the CPU into `count` logical devices, unless there are accelerators."""
    if any(tf.config.list_physical_devices(kind) for kind in ("GPU", "TPU")):
        return
    if count > MAX_PARTS:
        message = (
            f"{count} devices: there are no accelerators, and a CPU has {MAX_PARTS} parts at most."
        )
        raise config.error(key, message)
    try:
        dtensor.logical_cpus(count)
    except RuntimeError as error:
        if len(tf.config.list_logical_devices("CPU")) < count:
            raise config.error(key, str(error)) from None
