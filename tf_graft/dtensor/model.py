"""Moves a Keras model to a mesh and back."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import keras
from tensorflow.experimental import dtensor

from tf_graft.compose.copies import copied
from tf_graft.core import building, checks, keras_contract
from tf_graft.core.optimizer import Optimizer
from tf_graft.core.places.mesh_tensors import from_mesh
from tf_graft.core.types import Store
from tf_graft.dtensor import calls, clients, support, training
from tf_graft.dtensor.dataset import check_batch_dim
from tf_graft.dtensor.keras_distribution import DistributionLike, in_own_words
from tf_graft.dtensor.layout_map import LayoutMap
from tf_graft.dtensor.placements import PLACEMENTS, Placement, placement_of
from tf_graft.dtensor.replicated import move, release, replicate


def distribute(
    model: keras.Model,
    layout_map: DistributionLike,
    batch_dim: str | None = "batch",
    local_batches: bool = False,
    shard_slots: bool = False,
) -> keras.Model:
    """Moves a built Keras model to a mesh; each device holds a shard or a copy of each variable.

    Weights, random seeds, metrics and a compiled optimizer of tf_graft keep their values. The
    layout map gives a variable's layout; variables that it does not match, metrics and seeds are
    replicated. `compile` (before or after), `fit`, `evaluate`, `predict` and their `..._on_batch`
    work as before, with ordinary data, callbacks, validation and `steps_per_execution`. On a mesh
    `jit_compile` of `compile` has no effect.

    In a custom training loop pass batches through `pack_batch`, and metrics and counters through
    `replicate`; recreate each `tf.function` made before. An optimizer that is already built is
    replaced by a new one with the same state; use `model.optimizer` from then on. `set_weights`,
    `load_weights` and `save` work; a saved model loads as an ordinary model. Call `collect` before
    `export`. A batch that cannot be divided evenly is an error, except for a short last batch:
    every device then computes all of it.

    If a mesh has several processes, each of them is a client and runs the same program. All clients
    must call `fit`, `save`, `collect` and any other function that reads the model in the same
    order; otherwise they wait for one another forever. Call `keras.utils.set_random_seed` with the
    same number on each client first. Logs are the same on all clients. Only client 0 writes a file
    in `save` and `save_weights`. Pass `CSVLogger` only on client 0. Pass a callback that reads
    variables, such as `tg.report.GraftRecorder`, on each client, with a different path on each. Set
    `delete_checkpoint=False` in `BackupAndRestore`.

    You can also pass a `DataParallel` or `ModelParallel` of `keras.distribution` that was written
    for another backend. It determines the layouts and `batch_dim`, and `auto_shard_dataset=False`
    sets `local_batches`. Keras' own rules then find the layouts, and an expression may match
    nothing. On TensorFlow, `set_distribution` alone has no effect: also call
    `distribute(model, keras.distribution.distribution())`. Layouts of the outputs of layers
    (`.../output`) are not supported, and raise an error.

    You can shard the table of an `Embedding` by columns or by rows, `["model", None]`. Each device
    then looks up the ids whose rows it holds, and sends these rows; it applies only the part of a
    step that belongs to its rows. An id that is not in the table raises TensorFlow's error. If
    `batch_dim` divides the rows, the columns must be whole.

    The devices along `batch_dim` hold the same weights. With `shard_slots` they share the
    optimizer's state (slots, float32 masters, averages, accumulated gradients) and its computation:
    each device updates its part, then the steps are gathered (ZeRO, stage 1). A variable is divided
    along the first dimension that is not sharded yet and that is a multiple of the number of these
    devices. A variable without such a dimension is not divided. Results are the same, up to the
    order of sums in norms (clipping, LAMB, LARS, LARC, AdaGraft, NovoGrad and the like). `traffic`
    counts the bytes that `shard_slots` sends and `memory` those that it saves.

    Args:
        model: a built model. It is changed in place.
        layout_map: the variables' layouts: a `LayoutMap`, each of whose expressions must match a
            variable, or a `LayoutMap`, `DataParallel` or `ModelParallel` of `keras.distribution`.
        batch_dim: the mesh dimension that shards the examples of a batch; None replicates them.
        local_batches: on a mesh of several processes, True if each passes its own share of the
            examples to `fit`, `evaluate` and `predict` (see `client_share`); False if all pass the
            same whole batches.
        shard_slots: whether to shard an optimizer's slots, too.

    Returns:
        The same model.

    Raises:
        TypeError: the model is compiled with an optimizer that is not from tf_graft; TensorFlow
            would update it once per device.
        ValueError: the model is not built, is on a mesh already, or was made under a strategy; an
            expression matches nothing, or a Keras map shards nothing; a layout does not fit its
            variable; the mesh has no such dimension, or `batch_dim` is None with `shard_slots`; the
            weights have other initial values on another client. The model is then unchanged.
        RuntimeError: DTensor was used before tf_graft was imported.

    Example:
        ```python
        mesh = tg.dtensor.create_mesh({"batch": 2, "model": 4})
        model.compile(tg.Adam(1e-3), "sparse_categorical_crossentropy")
        tg.dtensor.distribute(model, tg.dtensor.LayoutMap(mesh, {"dense/kernel": [None, "model"]}))
        model.fit(x, y, batch_size=32)
        ```

    Reference:
        Rajbhandari et al., 2020, "ZeRO: memory optimizations toward training trillion parameter
        models" (arXiv 1910.02054), section 5.1: `shard_slots`.
    """
    checks.instance("distribute", "model", model, keras.Model)
    keras_contract.check_order_on_mesh()
    layout_map, batch_dim, local_batches = in_own_words(model, layout_map, batch_dim, local_batches)
    check_batch_dim("distribute", layout_map.mesh, batch_dim)
    slot_dim = batch_dim if checks.boolean("distribute", "shard_slots", shard_slots) else None
    if shard_slots and batch_dim is None:
        raise ValueError(
            "distribute(batch_dim=None, shard_slots=True): slots are sharded over batch_dim; name "
            "a dimension of the mesh."
        )
    _check_distributable(model, layout_map.mesh)
    layouts = _layouts(model, layout_map, batch_dim)
    clients.check_same_start(
        f"distribute: the model '{model.name}'", layout_map.mesh, _variables(model)
    )
    remade = _detached(model)
    for variable in _variables(model):
        layout = layouts.get(id(variable))
        slot_layout = slot_dim and layout and _divided(layout, variable.shape, slot_dim)
        move(variable, layout_map.mesh, layout, slot_layout)
    replicate(model.metrics, layout_map.mesh)  # for the variables they make later
    PLACEMENTS[model] = Placement(layout_map, batch_dim, local_batches)
    _attach(model, remade)
    if model.compiled and model.optimizer is not None:
        model.optimizer.state.settle(layout_map.mesh)
    calls.replace(model, layout_map.mesh)
    training.install(model, layout_map.mesh, batch_dim, local_batches, lambda: follow(model))
    return model


def collect(model: keras.Model) -> keras.Model:
    """Moves a distributed model off its mesh: its variables become ordinary variables.

    An optimizer that is already built is replaced by a new one with the same state; use
    `model.optimizer` from then on.

    Args:
        model: a model on a mesh. It is changed in place.

    Returns:
        The same model.

    Raises:
        ValueError: the model is not on a mesh.
    """
    placement_of("collect", model)
    remade = _detached(model)
    training.uninstall(model)
    calls.restore(model)
    release(model.metrics)
    for variable in _variables(model):
        keras_contract.set_ordinary_storage(variable, from_mesh(variable.value).numpy())
    del PLACEMENTS[model]
    _attach(model, remade)
    return model


def _check_distributable(model: keras.Model, mesh: dtensor.Mesh) -> None:
    owner = f"distribute: the model '{model.name}'"
    if model in PLACEMENTS:
        raise ValueError(f"{owner} is on a mesh already; call `collect(model)` first.")
    shared = [v.path for v in model.variables if isinstance(v.value, dtensor.DVariable)]
    if shared:
        raise ValueError(f"{owner} shares '{shared[0]}' with a model that is on a mesh already.")
    unbuilt = [layer.name for layer in keras_contract.layers_of(model) if not layer.built]
    if unbuilt:
        raise ValueError(
            f"{owner} is not built ({', '.join(unbuilt)}); call it on a batch, or `model.build`."
        )
    if model.distribute_strategy.num_replicas_in_sync > 1:
        raise ValueError(f"{owner} was made under a tf.distribute strategy; a mesh takes none.")
    if model.compiled:
        training.check_optimizer("distribute", model.optimizer)
        given = getattr(model.optimizer, "mesh", None)
        if given is not None and given != mesh:
            raise ValueError(
                f"{owner} has an optimizer of another mesh than the layout map's; leave out `mesh`."
            )


def _layouts(
    model: keras.Model, layout_map: LayoutMap, batch_dim: str | None
) -> dict[int, dtensor.Layout]:
    """Returns the layout of each weight by `id`; refuses an expression that matches none."""
    weights = _distinct(model.weights)
    layouts = {id(v): layout_map.layout_for(v.path, tuple(v.shape)) for v in weights}
    used = {layout_map.pattern_for(v.path) for v in weights}
    for pattern in layout_map:
        if pattern not in used:
            listed = ", ".join(v.path for v in weights[:20])
            raise ValueError(
                f"LayoutMap['{pattern}']: it matches no weight of '{model.name}', which has "
                f"{listed}{' ...' if len(weights) > 20 else ''}."
            )
    support.check_layouts(model, lambda v: layouts[id(v)].sharding_specs, batch_dim)
    return layouts


def _divided(layout: dtensor.Layout, shape: Sequence[int], dim: str) -> dtensor.Layout:
    """Returns the layout with its first whole dimension that fits divided over `dim`, too."""
    specs, parts = list(layout.sharding_specs), layout.mesh.dim_size(dim)
    for axis, length in enumerate(shape):
        if dim not in specs and layout.num_shards(axis) == 1 and length and length % parts == 0:
            specs[axis] = dim
    return dtensor.Layout(specs, layout.mesh)


def _variables(model: keras.Model) -> list[keras.Variable]:
    """Returns all variables of a model but its optimizer's: weights, seeds, metrics."""
    metrics = model.metrics_variables if model.compiled else []
    return _distinct([*model.variables, *metrics])


def _distinct(variables: Iterable[keras.Variable]) -> list[keras.Variable]:
    return list({id(variable): variable for variable in variables}.values())


def follow(model: keras.Model) -> None:
    """Moves variables that were made after `distribute`, such as those of metrics, to the mesh."""
    mesh = PLACEMENTS[model].layout_map.mesh
    for variable in _variables(model):
        move(variable, mesh)


class _Remade(NamedTuple):
    """An unbuilt copy of an optimizer, its state, and the weights that it was built for."""

    optimizer: Optimizer
    state: Store
    weights: list[keras.Variable]


def _detached(model: keras.Model) -> _Remade | None:
    """Returns a copy of a model's optimizer, to be built on moved variables, if it has one."""
    optimizer = model.optimizer if model.compiled else None
    if optimizer is None or not (optimizer.built or optimizer.mesh is not None):
        return None
    state: Store = {}
    if optimizer.built:
        optimizer.save_own_variables(state)
    known, key_of = optimizer.state.parameters, keras_contract.key_of
    weights = [v for v in model.weights if key_of(optimizer, v) in known]
    return _Remade(copied(optimizer), state, weights)


def _attach(model: keras.Model, remade: _Remade | None) -> None:
    """Gives a model the copy of its optimizer, if there is one, and discards its functions."""
    if remade is not None:
        model.optimizer = remade.optimizer
        if remade.state:
            building.build(remade.optimizer, remade.weights, [model])
            remade.optimizer.load_own_variables(remade.state)
    model.train_function = model.test_function = model.predict_function = None
