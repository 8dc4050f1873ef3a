"""The engine under `tf.distribute`: one sum, then plain code on each replica's own copies.

After `summed`, every replica holds the same gradients bit for bit, so all replicas compute the same
decisions from them. The control flow that follows needs no merge call: `TPUStrategy` requires this,
and `MirroredStrategy` could not make the call.
"""

import contextlib
import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import keras
import tensorflow as tf
from tensorflow.experimental import dtensor

from tf_graft.core import checks, keras_contract
from tf_graft.core.keras_contract import ShardedVariable, storage
from tf_graft.core.places import tpus
from tf_graft.core.types import Gradient, VariableLike

Lock = contextlib.AbstractContextManager[object]
CENTRAL = tf.distribute.experimental.CentralStorageStrategy
VARIABLES = (tf.Variable, keras.Variable, ShardedVariable)


def summed(gradients: Sequence[Gradient], rows_of: Sequence[int]) -> list[Gradient]:
    """Returns gradients summed over the replicas; in cross-replica context they already are sums.

    Args:
        gradients: dense or row-sparse gradients.
        rows_of: the number of rows of each gradient's variable.
    """
    context = tf.distribute.get_replica_context()
    if context is None or context.num_replicas_in_sync == 1:
        return list(gradients)
    if isinstance(context.strategy, tpus.KINDS):
        return tpus.summed(gradients, rows_of)
    # If all replicas gave the same tensor object, TensorFlow would take it for the sum.
    distinct = tf.nest.map_structure(tf.identity, list(gradients), expand_composites=True)
    return list(context.all_reduce(tf.distribute.ReduceOp.SUM, distinct))


def count() -> int:
    """Returns the number of replicas of the current strategy."""
    return tf.distribute.get_strategy().num_replicas_in_sync


def local(variable: VariableLike) -> tf.Variable:
    """Returns the calling replica's copy of a variable, as a plain `tf.Variable`."""
    raw = storage(variable)
    context = tf.distribute.get_replica_context()
    if context is None or not isinstance(raw, tf.distribute.DistributedValues):
        return raw
    replica = tf.get_static_value(context.replica_id_in_sync_group)
    if replica is None:  # on a TPU it is known only at run time, and the variable finds the copy
        return raw
    copies = context.strategy.experimental_local_results(raw)
    return copies[int(replica) % len(copies)]


def on_server(variable: tf.Variable) -> bool:
    """Returns whether a variable is on a parameter server, where several workers write it."""
    return "/job:ps/" in (variable.device or "")


def copies(variable: VariableLike) -> list[tf.Variable]:
    """Returns the variables whose assignment changes all copies, even from inside a replica."""
    raw = storage(variable)
    if _in_replica() and isinstance(raw, tf.distribute.DistributedValues):
        return list(tf.distribute.get_strategy().experimental_local_results(raw))
    return [raw]


class Everywhere:
    """Runs a method once in each replica's context, or only here if called in a replica.

    Traced functions are kept, so that each method is traced once.
    """

    def __init__(self) -> None:
        self._traced: dict[Callable[..., None], Callable[..., None]] = {}

    def __call__(
        self,
        strategy: tf.distribute.Strategy,
        method: Callable[..., None],
        *args: Any,
        traced: bool = False,
    ) -> None:
        """Calls `method(*args)`, with each replica's own value for distributed values.

        Args:
            strategy: the strategy.
            method: called with the arguments.
            *args: tensors, distributed values and values that are the same on all replicas.
            traced: whether to trace a method that is called eagerly; with `TPUStrategy` it always
                is. Without tracing, a strategy sends its replicas each operation one by one.
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
    """Runs a method on all replicas, passing only tensors: `TPUStrategy` takes nothing else."""
    flat = tf.nest.flatten(list(args))
    passed = {str(i): _parts(x) for i, x in enumerate(flat) if _differs(x)}

    def on_replica(passed: dict[str, tuple[tf.Tensor, ...]]) -> None:
        mine = [_whole(passed.get(str(i), (x,))) for i, x in enumerate(flat)]
        method(*tf.nest.pack_sequence_as(list(args), mine))

    with strategy.scope():
        strategy.run(on_replica, args=(passed,))


def _differs(x: object) -> bool:
    """Returns whether an argument may differ between replicas."""
    return tf.is_tensor(x) or isinstance(x, tf.distribute.DistributedValues)


def _parts(x: tf.Tensor | tf.IndexedSlices) -> tuple[tf.Tensor, ...]:
    return (x.values, x.indices) if isinstance(x, tf.IndexedSlices) else (x,)


def _whole(parts: tuple[tf.Tensor, ...]) -> tf.Tensor | tf.IndexedSlices:
    return parts[0] if len(parts) == 1 else tf.IndexedSlices(*parts)


def one_at_a_time(lock: Lock) -> contextlib.AbstractContextManager[object]:
    """A context that only one thread at a time can enter.

    Threads that are replicas of one strategy wait for each other anyway, at each sum.
    """
    return contextlib.nullcontext() if _in_replica() and count() > 1 else lock


def outside(strategy: tf.distribute.Strategy) -> bool:
    """Returns whether the strategy has several replicas and the caller is in none of them."""
    return strategy.num_replicas_in_sync > 1 and not _in_replica()


def creating_under(strategy: tf.distribute.Strategy) -> contextlib.AbstractContextManager[object]:
    """A context in which to create variables under a strategy, even in a replica."""
    return contextlib.nullcontext() if _in_replica() else strategy.scope()


def ahead_of(variables: Iterable[VariableLike]) -> contextlib.AbstractContextManager[object]:
    """A context in which to create state for variables while a function is traced.

    The context is outside the function, unless the function also creates the variables, which then
    have no value outside. XLA cannot compile a function that creates variables.
    """
    traced = not tf.executing_eagerly() and not keras_contract.in_xla()
    made_here = traced and not all(_has_value(v) for v in variables)
    return contextlib.nullcontext() if made_here else outside_functions()


@contextlib.contextmanager
def outside_functions() -> Iterator[None]:
    """A context that creates variables as if they had been there before a function was traced.

    In a plain `tf.init_scope` TensorFlow takes them for variables of the function: it traces the
    function twice, and refuses to create any if the first trace of the function failed.
    """
    with tf.init_scope(), tf.variable_creator_scope(_not_lifted):
        yield


def _not_lifted(create: Callable[..., tf.Variable], **arguments: Any) -> tf.Variable:
    return create(**arguments | {"experimental_enable_variable_lifting": False})


def beside(variable: VariableLike | None) -> contextlib.AbstractContextManager[object]:
    """A context that places new variables on the device of another one; anywhere for None."""
    if variable is None:
        return contextlib.nullcontext()
    return tf.distribute.get_strategy().extended.colocate_vars_with(storage(variable))


def shards(variables: Iterable[VariableLike]) -> list[VariableLike]:
    """Returns the variables with each partitioned one replaced by its shards.

    A `variable_partitioner` of `ParameterServerStrategy` divides a Keras variable into shards, each
    a `tf.Variable` on a server of its own. Take gradients with respect to the shards, and give the
    optimizer the shards:

    ```python
    variables = tg.shards(model.trainable_variables)
    gradients = tape.gradient(loss, variables)  # row-sparse for the shards of an embedding
    optimizer.apply(gradients, variables)
    ```

    A shard is a variable of its own, named `dense/kernel/part_0` and so on: `clipnorm`, LARS, LAMB,
    LARC and AdaGraft (without `use_global_norm=True`) use the norm of the shard. `global_clipnorm`
    uses the norm over all shards, whatever the partitioner does.

    Args:
        variables: variables of a model, `keras.Variable` or `tf.Variable`.

    Returns:
        A flat list; variables that are not divided stay as they are.

    Raises:
        TypeError: the argument is not a list of variables.
    """
    given = checks.listed("shards: the variables are {}; they must be in a list.", variables)
    for variable in given:
        checks.instance("shards", "variables", variable, *VARIABLES)
    return [part for variable in given for part in _shards_of(variable) or [variable]]


def refuse_unwritable(owner: str, variables: Sequence[VariableLike]) -> None:
    """Refuses variables that no replica can write: divided into shards, or of all replicas.

    Raises:
        ValueError: there is one; the message names it, and what to give instead.
    """
    strategy = strategy_of(variables)
    if isinstance(strategy, CENTRAL) and strategy.num_replicas_in_sync > 1:
        raise ValueError(
            f"{owner}: '{getattr(variables[0], 'path', variables[0].name)}' was made under a "
            f"CentralStorageStrategy of {strategy.num_replicas_in_sync} devices, under which no "
            "replica can write a variable, and the metrics of Keras count wrong; make it under a "
            "tf.distribute.MirroredStrategy, which takes the same steps."
        )
    for variable in variables:
        parts = _shards_of(variable)
        if parts:
            raise ValueError(
                f"{owner}: '{getattr(variable, 'path', variable.name)}' is divided into "
                f"{len(parts)} shards on parameter servers; take the gradients of "
                "tf_graft.shards(variables), and give the optimizer those."
            )


def _shards_of(variable: VariableLike) -> list[tf.Variable]:
    raw = storage(variable)
    return list(raw.variables) if isinstance(raw, ShardedVariable) else []


def strategy_of(variables: Sequence[VariableLike]) -> tf.distribute.Strategy:
    """Returns the strategy under which variables were made; the current one if that is unknown."""
    for variable in variables:
        strategy = getattr(storage(variable), "distribute_strategy", None)
        if strategy is not None:
            return strategy
    return tf.distribute.get_strategy()


def _has_value(variable: VariableLike) -> bool:
    raw = storage(variable)
    with tf.init_scope():
        plain = not isinstance(raw, tf.distribute.DistributedValues | dtensor.DVariable)
        return bool(raw.is_initialized()) if plain and tf.executing_eagerly() else True


def _in_replica() -> bool:
    return tf.distribute.has_strategy() and not tf.distribute.in_cross_replica_context()
