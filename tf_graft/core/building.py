"""Builds an optimizer: checks the variables, moves to where they are, and makes the state."""

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import keras
from tensorflow.experimental import dtensor

from tf_graft.core import contract, keras_contract
from tf_graft.core.arguments import description
from tf_graft.core.pipeline import matching, row_counts, row_decay
from tf_graft.core.places import replicas
from tf_graft.core.state import slots
from tf_graft.core.state.algorithm import refuse_mode
from tf_graft.core.state.parameters import Parameter, paths
from tf_graft.core.types import Key, VariableLike


@keras_contract.tracing_anew_after_errors()
def build(
    optimizer: Any, variables: Sequence[VariableLike], models: Sequence[keras.Model] = ()
) -> None:
    """Creates all state for variables of models; if none are given, the caller's is looked for.

    Args:
        optimizer: the optimizer.
        variables: the variables.
        models: the models that hold them, or for whose variables they stand.
    """
    owner, state = f"{type(optimizer).__name__}.build", optimizer.state
    keys = [keras_contract.key_of(optimizer, variable) for variable in variables]
    replicas.refuse_unwritable(owner, variables)
    matching.refuse_untrainable(owner, variables, keys)
    mesh = optimizer.mesh or (None if optimizer.built else slots.mesh_of(variables))
    _refuse_elsewhere(owner, mesh, variables)
    if not optimizer.built:
        optimizer.saved.examine()
        state.move_to(variables)
    new = {key: v for key, v in zip(keys, variables, strict=True) if key not in state.parameters}
    if optimizer.built and new:
        _refuse_others(owner, optimizer, len(new) == len(keys))
    if not new:
        return
    by_path = state.parameters.paths_with(owner, list(new.values()))
    with state.adding(by_path) as everything:
        found = models or keras_contract.calling_models(variables) or optimizer.rule.models
        introduce(optimizer, everything, by_path, found)
        make_state(optimizer, by_path, keys)


def introduce(
    optimizer: Any,
    everything: Mapping[str, VariableLike],
    new: Mapping[str, VariableLike],
    models: Sequence[keras.Model],
) -> None:
    """Shows variables to an optimizer, and refuses what it cannot do; no state is made yet.

    Args:
        optimizer: the optimizer.
        everything: all variables by path.
        new: those that there is no state for.
        models: the models that hold them.

    Raises:
        TypeError, ValueError: an argument, or an option, does not fit to the variables.
    """
    rule = optimizer.rule
    rule.introduce(everything, rule.outer_exclusions, models)
    contract.check(optimizer, new)
    for each in itertools.chain.from_iterable(map(rule.tree, everything)):
        refuse_mode(each.optimizer)
    row_counts.refuse(optimizer, everything)
    row_decay.refuse(optimizer, everything)


def make_state(optimizer: Any, new: Mapping[str, VariableLike], order: Sequence[Key] = ()) -> None:
    """Makes the state for variables that were introduced; then the optimizer is built.

    Args:
        optimizer: the optimizer.
        new: the variables that there is no state for, by path.
        order: the keys of all variables in the order of the model; the new ones come last if it
            lacks them.
    """
    state = optimizer.state
    keys = [keras_contract.key_of(optimizer, variable) for variable in new.values()]
    made, shared = state.make(new)
    state.hold(dict(zip(keys, made, strict=True)), shared, order)
    optimizer.rule.complete(list(state.parameters))
    try:
        optimizer.saved.settle()
    finally:  # the optimizer is built, whether the state that waited fits or not
        built_for = [p.variable for p in state.parameters]
        keras_contract.declare(optimizer, built_for, state.strategy)


def _refuse_elsewhere(
    owner: str, mesh: dtensor.Mesh | None, variables: Sequence[VariableLike]
) -> None:
    """Refuses variables that are not on the optimizer's mesh, or on one if it has none."""
    for path, variable in zip(paths(variables), variables, strict=True):
        found = slots.mesh_of([variable])
        if found is mesh or (found and mesh and found == mesh):  # a mesh cannot be compared to None
            continue
        its, own = (f"on {description.mesh(x)}" if x else "on no mesh" for x in (found, mesh))
        raise ValueError(
            f"{owner}: '{path}' is {its}, and the optimizer {own}; put all variables on one mesh, "
            "and give the optimizer that one or none."
        )


def _refuse_others(owner: str, optimizer: Any, all_new: bool) -> None:
    """Refuses to add variables, if all of them are new or if the class cannot do it."""
    if all_new:
        raise ValueError(
            f"{owner}: it was built for other variables; make a new optimizer for these."
        )
    if not optimizer.rule.extends:
        raise ValueError(
            f"{owner}: it was built for fewer variables, and {optimizer.rule.called} cannot add "
            "any; make a new optimizer for these."
        )


def parameters_for(
    optimizer: Any, method: str, variables: Sequence[VariableLike] | None
) -> list[Parameter]:
    """Returns the parameters of variables, all if None; builds the optimizer if necessary.

    Args:
        optimizer: the optimizer.
        method: the method that was called, for messages.
        variables: the variables.
    """
    owner, state = f"{type(optimizer).__name__}.{method}", optimizer.state
    if variables is None:
        if not optimizer.built:
            raise ValueError(f"{owner}: without variables the optimizer must be built first.")
        return list(state.parameters)
    if not optimizer.built:
        optimizer.build(variables)
    keys = [keras_contract.key_of(optimizer, variable) for variable in variables]
    known = [key in state.parameters for key in keys]
    if any(known) and not all(known):
        optimizer.build(variables)
    return matching.parameters_for(owner, state.parameters, keys, variables)
