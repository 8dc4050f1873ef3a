"""The engine under `tf.distribute`: one summation, then plain code on each replica's own copies.

After `summed`, every replica holds the same gradients bit for bit, so each decision that is
computed from them comes out the same everywhere. No merge call is needed inside the control flow
that follows, which is what `TPUStrategy` requires and what `MirroredStrategy` cannot do.
"""

import contextlib
import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import keras
import tensorflow as tf
from tensorflow.experimental import dtensor

from tf_graft.core import checks, keras_contract, tpus

ShardedVariable = tf.__internal__.distribute.ShardedVariable
VARIABLES = (tf.Variable, keras.Variable, ShardedVariable)


def summed(gradients: Sequence[Any], rows_of: Sequence[int]) -> list[Any]:
    """The gradients summed over the replicas; in cross-replica context they are taken as summed.

    Args:
        gradients: dense or row-sparse.
        rows_of: how many rows the variable of each gradient has.
    """
    context = tf.distribute.get_replica_context()
    if context is None or context.num_replicas_in_sync == 1:
        return list(gradients)
    if isinstance(context.strategy, tpus.KINDS):
        return tpus.summed(gradients, rows_of)
    # One tensor given on every replica would be taken for the sum already.
    distinct = tf.nest.map_structure(tf.identity, list(gradients), expand_composites=True)
    return list(context.all_reduce(tf.distribute.ReduceOp.SUM, distinct))


def count() -> int:
    """How many replicas there are where this is called."""
    return tf.distribute.get_strategy().num_replicas_in_sync


def local(variable: Any) -> tf.Variable:
    """The copy of a variable that belongs to the calling replica, as a plain `tf.Variable`."""
    variable = variable.value if not isinstance(variable, tf.Variable) else variable
    context = tf.distribute.get_replica_context()
    if context is None or not isinstance(variable, tf.distribute.DistributedValues):
        return variable
    replica = tf.get_static_value(context.replica_id_in_sync_group)
    if replica is None:  # on a TPU it is known at run time only, and the variable itself resolves
        return variable
    copies = context.strategy.experimental_local_results(variable)
    return copies[int(replica) % len(copies)]


def copies(variable: Any) -> list[Any]:
    """The copies of a variable that one assignment each has to reach, from inside a replica too."""
    raw = variable if isinstance(variable, tf.Variable) else variable.value
    if _in_replica() and isinstance(raw, tf.distribute.DistributedValues):
        return list(tf.distribute.get_strategy().experimental_local_results(raw))
    return [raw]


class Everywhere:
    """Runs methods once in each replica's context of a strategy: here, where we are in one already.

    Traced functions are kept, so that each method is traced once.
    """

    def __init__(self) -> None:
        self._traced: dict[Callable[..., None], Any] = {}

    def __call__(
        self,
        strategy: tf.distribute.Strategy,
        method: Callable[..., None],
        *args: Any,
        traced: bool = False,
    ) -> None:
        """`method(*args)`; of distributed values each replica is given its own.

        Args:
            strategy: the strategy.
            method: called with the arguments.
            *args: tensors, distributed values and what is the same on all replicas.
            traced: whether to trace a method called eagerly, as `TPUStrategy` always has it.
                Eagerly a strategy hands each operation to its replicas one by one.
        """
        if not outside(strategy):
            method(*args)
        elif tf.executing_eagerly() and (traced or isinstance(strategy, tpus.KINDS)):
            if method not in self._traced:
                run = functools.partial(_run, strategy, method)
                self._traced[method] = tf.function(run, autograph=False)
            self._traced[method](*args)
        else:
            _run(strategy, method, *args)


def _run(strategy: tf.distribute.Strategy, method: Callable[..., None], *args: Any) -> None:
    """Runs a method on all replicas; `TPUStrategy` has them passed tensors and nothing else."""
    flat = tf.nest.flatten(list(args))
    passed = {str(i): _parts(x) for i, x in enumerate(flat) if _differs(x)}

    def on_replica(passed: dict[str, Any]) -> None:
        mine = [_whole(passed.get(str(i), (x,))) for i, x in enumerate(flat)]
        method(*tf.nest.pack_sequence_as(list(args), mine))

    with strategy.scope():
        strategy.run(on_replica, args=(passed,))


def _differs(x: Any) -> bool:
    """Whether an argument may be another on each replica."""
    return tf.is_tensor(x) or isinstance(x, tf.distribute.DistributedValues)


def _parts(x: Any) -> tuple[Any, ...]:
    return (x.values, x.indices) if isinstance(x, tf.IndexedSlices) else (x,)


def _whole(parts: tuple[Any, ...]) -> Any:
    return parts[0] if len(parts) == 1 else tf.IndexedSlices(*parts)


def outside(strategy: tf.distribute.Strategy) -> bool:
    """Whether the strategy has several replicas and the calling code is in none of them."""
    return strategy.num_replicas_in_sync > 1 and not _in_replica()


def creating_under(strategy: tf.distribute.Strategy) -> contextlib.AbstractContextManager[Any]:
    """The context in which variables are created for a strategy, from inside a replica too."""
    return contextlib.nullcontext() if _in_replica() else strategy.scope()


def ahead_of(variables: Iterable[Any]) -> contextlib.AbstractContextManager[Any]:
    """The context in which state is created for variables, while a function is traced: outside of
    it; inside where it makes the variables too, which then have no value outside. XLA compiles no
    function that makes variables.
    """
    traced = not tf.executing_eagerly() and not keras_contract.in_xla()
    made_here = traced and not all(_has_value(v) for v in variables)
    return contextlib.nullcontext() if made_here else tf.init_scope()


def beside(variable: Any) -> contextlib.AbstractContextManager[Any]:
    """The context in which variables are created where another one is; anywhere when None."""
    if variable is None:
        return contextlib.nullcontext()
    raw = variable if isinstance(variable, tf.Variable) else variable.value
    return tf.distribute.get_strategy().extended.colocate_vars_with(raw)


def shards(variables: Iterable[Any]) -> list[Any]:
    """The variables, with the shards of one that a parameter server strategy divided in its place.

    A `variable_partitioner` of `ParameterServerStrategy` divides a Keras variable into shards, each
    a `tf.Variable` on a server of its own. Gradients are taken of the shards, and the optimizer is
    given the shards:

    ```python
    variables = tg.shards(model.trainable_variables)
    gradients = tape.gradient(loss, variables)  # row-sparse for the shards of an embedding
    optimizer.apply(gradients, variables)
    ```

    A shard is a variable of its own, named `dense/kernel/part_0` and so on: `clipnorm` takes its
    norm, and so do LARS, LAMB, LARC and AdaGraft (but for `use_global_norm=True`).
    `global_clipnorm` is over all of them, whatever the partitioner does.

    Args:
        variables: of a model, `keras.Variable` or `tf.Variable`.

    Returns:
        A flat list; what is not divided is in it as it is.

    Raises:
        TypeError: no list, or one of what is no variable.
    """
    given = checks.listed("shards: the variables are {}; they must be in a list.", variables)
    for variable in given:
        checks.instance("shards", "variables", variable, *VARIABLES)
    return [part for variable in given for part in _shards_of(variable) or [variable]]


def refuse_divided(owner: str, variables: Iterable[Any]) -> None:
    """Refuses a variable that is divided into shards.

    Raises:
        ValueError: naming it and what to give instead.
    """
    for variable in variables:
        parts = _shards_of(variable)
        if parts:
            raise ValueError(
                f"{owner}: '{getattr(variable, 'path', variable.name)}' is divided into "
                f"{len(parts)} shards on parameter servers; take the gradients of "
                "tf_graft.shards(variables), and give the optimizer those."
            )


def _shards_of(variable: Any) -> list[tf.Variable]:
    raw = variable if isinstance(variable, tf.Variable) else getattr(variable, "value", variable)
    return list(raw.variables) if isinstance(raw, ShardedVariable) else []


def strategy_of(variables: Sequence[Any]) -> tf.distribute.Strategy:
    """The strategy the variables were made under; the current one where they do not say."""
    for variable in variables:
        raw = variable if isinstance(variable, tf.Variable) else variable.value
        strategy = getattr(raw, "distribute_strategy", None)
        if strategy is not None:
            return strategy
    return tf.distribute.get_strategy()


def _has_value(variable: Any) -> bool:
    raw = variable if isinstance(variable, tf.Variable) else variable.value
    with tf.init_scope():
        plain = not isinstance(raw, tf.distribute.DistributedValues | dtensor.DVariable)
        return bool(raw.is_initialized()) if plain and tf.executing_eagerly() else True


def _in_replica() -> bool:
    return tf.distribute.has_strategy() and not tf.distribute.in_cross_replica_context()
