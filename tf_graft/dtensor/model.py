"""A Keras model onto a mesh and back."""

import weakref
from collections.abc import Iterable
from typing import Any, NamedTuple

import keras
from tensorflow.experimental import dtensor

from tf_graft.core import checks, keras_contract
from tf_graft.core.mesh_tensors import from_mesh
from tf_graft.core.optimizer import Optimizer
from tf_graft.dtensor import calls, support, training
from tf_graft.dtensor.dataset import check_batch_dim
from tf_graft.dtensor.layout_map import LayoutMap
from tf_graft.dtensor.replicated import move, release, replicate


class Placement(NamedTuple):
    """Where a model is."""

    layout_map: LayoutMap
    batch_dim: str | None


PLACEMENTS: weakref.WeakKeyDictionary[keras.Model, Placement] = weakref.WeakKeyDictionary()


def distribute(
    model: keras.Model, layout_map: LayoutMap, batch_dim: str | None = "batch"
) -> keras.Model:
    """Puts a built Keras model on a mesh, each device its share of every variable.

    Weights, trainable or not, the states of random seeds, metrics and a compiled optimizer of
    tf_graft keep their values. A variable lies as the layout map says and is replicated where it
    says nothing; metrics and seeds always are. `compile`, before or after, `fit`, `evaluate`,
    `predict` and their `..._on_batch` work as ever, with ordinary data, callbacks, validation and
    `steps_per_execution`. `jit_compile` of `compile` has no effect on a mesh.

    In a loop of one's own the batches go through `pack_batch`, metrics and counters through
    `replicate`; a `tf.function` made before is to be made again. An optimizer that was built is
    made anew with its state: take it from `model.optimizer`. `set_weights`, `load_weights` and
    `save` work; what is saved loads as an ordinary model. `export` wants the model collected. A
    batch that cannot be divided evenly is refused, but for a short last one, which every device
    computes whole.

    A table that is gathered from, such as an `Embedding`'s, cannot be divided by rows: TensorFlow
    does not support it. Divide its columns.

    Args:
        model: built. It is changed in place.
        layout_map: which variable lies how. Each of its expressions matches a variable.
        batch_dim: the mesh dimension the examples of a batch are divided over; None to give every
            device all of them.

    Returns:
        The same model.

    Raises:
        TypeError: the model is compiled with an optimizer that is not tf_graft's, which would be
            updated once per device.
        ValueError: the model is not built, or on a mesh already, or made under a strategy; an
            expression matches nothing; a layout does not fit its variable; an embedding divided
            by rows; no such mesh dimension. Nothing has changed.
        RuntimeError: DTensor was used before tf_graft was imported.

    Example:
        ```python
        mesh = tg.dtensor.create_mesh({"batch": 2, "model": 4})
        model.compile(tg.Adam(1e-3), "sparse_categorical_crossentropy")
        tg.dtensor.distribute(model, tg.dtensor.LayoutMap(mesh, {"dense/kernel": [None, "model"]}))
        model.fit(x, y, batch_size=32)
        ```
    """
    checks.instance("distribute", "model", model, keras.Model)
    checks.instance("distribute", "layout_map", layout_map, LayoutMap)
    keras_contract.check_order_on_mesh()
    check_batch_dim("distribute", layout_map.mesh, batch_dim)
    _check_distributable(model, layout_map.mesh)
    layouts = _layouts(model, layout_map)
    remade = _detached(model.optimizer) if model.compiled else None
    for variable in _variables(model):
        move(variable, layout_map.mesh, layouts.get(id(variable)))
    replicate(model.metrics, layout_map.mesh)  # for what they make later
    PLACEMENTS[model] = Placement(layout_map, batch_dim)
    _attach(model, remade)
    if model.compiled and model.optimizer is not None:
        model.optimizer.settle(layout_map.mesh)
    calls.replace(model, layout_map.mesh)
    training.install(model, layout_map.mesh, batch_dim, lambda: _follow(model))
    return model


def collect(model: keras.Model) -> keras.Model:
    """Brings a distributed model back off its mesh: ordinary variables of the same values.

    The optimizer, if it was built, is made anew with its state: take it from `model.optimizer`.

    Args:
        model: on a mesh. It is changed in place.

    Returns:
        The same model.

    Raises:
        ValueError: the model is not on a mesh.
    """
    if model not in PLACEMENTS:
        raise ValueError(f"collect: the model '{model.name}' is not on a mesh.")
    training.uninstall(model)
    calls.restore(model)
    release(model.metrics)
    remade = _detached(model.optimizer) if model.compiled else None
    for variable in _variables(model):
        keras_contract.set_ordinary_storage(variable, from_mesh(variable.value).numpy())
    del PLACEMENTS[model]
    _attach(model, remade)
    return model


def layout_map_of(model: keras.Model) -> LayoutMap | None:
    """The layout map a model was distributed by; None for a model that is not on a mesh."""
    placement = PLACEMENTS.get(model)
    return None if placement is None else placement.layout_map


def _check_distributable(model: keras.Model, mesh: dtensor.Mesh) -> None:
    owner = f"distribute: the model '{model.name}'"
    if model in PLACEMENTS:
        raise ValueError(
            f"{owner} is on a mesh already; `collect(model)` brings it off for another."
        )
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


def _layouts(model: keras.Model, layout_map: LayoutMap) -> dict[int, dtensor.Layout]:
    """The layout of each weight by its identity; every expression is used."""
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
    support.check_layouts(model, lambda v: layouts[id(v)].sharding_specs)
    return layouts


def _variables(model: keras.Model) -> list[keras.Variable]:
    """Everything a model holds but its optimizer: weights, seeds, metrics."""
    metrics = model.metrics_variables if model.compiled else []
    return _distinct([*model.variables, *metrics])


def _distinct(variables: Iterable[keras.Variable]) -> list[keras.Variable]:
    return list({id(variable): variable for variable in variables}.values())


def _follow(model: keras.Model) -> None:
    """Puts on the mesh what was made since, such as the variables of metrics."""
    mesh = PLACEMENTS[model].layout_map.mesh
    for variable in _variables(model):
        move(variable, mesh)


def _detached(optimizer: Any) -> tuple[Optimizer, dict[str, Any]] | None:
    """An optimizer like this one for the same variables elsewhere, and its state."""
    if optimizer is None or not (optimizer.built or optimizer.mesh is not None):
        return None
    state: dict[str, Any] = {}
    if optimizer.built:
        optimizer.save_own_variables(state)
    fresh = type(optimizer).from_config(optimizer.get_config())
    return fresh, state


def _attach(model: keras.Model, remade: tuple[Optimizer, dict[str, Any]] | None) -> None:
    """Gives a model its optimizer anew, where there is one, and has its functions made again."""
    if remade is not None:
        optimizer, state = remade
        model.optimizer = optimizer
        if state:
            optimizer.build(model.trainable_variables)
            optimizer.load_own_variables(state)
    model.train_function = model.test_function = model.predict_function = None
