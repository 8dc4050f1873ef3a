"""The norms of the gradients of an optimizer's updates, computed only on request."""

import weakref

import numpy as np
import tensorflow as tf

from tf_graft.core.optimizer import Optimizer
from tf_graft.core.places import replicas
from tf_graft.core.state import slots, write
from tf_graft.core.state.parameters import Parameter
from tf_graft.core.state.slots import Slot
from tf_graft.core.tensors import numerics
from tf_graft.core.types import Gradient

ABSENT = -1.0  # in place of the norm of a gradient that an update did not have

_of: "weakref.WeakKeyDictionary[Optimizer, GradientNorms]" = weakref.WeakKeyDictionary()


class GradientNorms:
    """Variables that receive the norms of the gradients of an update.

    A compiled step decides by the value of a variable whether it computes the norms.

    Args:
        optimizer: a built optimizer.
    """

    def __init__(self, optimizer: Optimizer):
        self.paths = [p.path for p in optimizer.state.parameters]

        def made(name: str, slot: Slot) -> tf.Variable:
            return slots.create(("monitor",), name, slot, "float32", mesh=optimizer.mesh)

        with replicas.outside_functions(), replicas.creating_under(optimizer.state.strategy):
            self._updates = made("updates_to_measure", Slot(shape=(), dtype="int64"))
            self._norms = made("gradient_norms", Slot(ABSENT, shape=(len(self.paths),)))
        optimizer.engine.watch(self._watch, "monitor")

    def request(self) -> None:
        """Has the next update compute the norms."""
        write.put_everywhere(self._updates, 1)

    def found(self) -> np.ndarray | None:
        """Returns the norms in the order of `paths`; None if there was no update.

        The norm is `ABSENT` if the update had no gradient for a variable.
        """
        if int(self._updates.numpy()):
            return None
        return np.asarray(self._norms.numpy(), np.float64)

    @tf.autograph.experimental.do_not_convert
    def _watch(self, gradients: list[Gradient], parameters: list[Parameter]) -> None:
        given = {p.path: g for g, p in zip(gradients, parameters, strict=True)}

        def measure() -> None:
            norms = [_norm(given[path]) if path in given else ABSENT for path in self.paths]
            write.put(self._norms, tf.stack([tf.cast(norm, tf.float32) for norm in norms]))
            write.put(self._updates, tf.constant(0, tf.int64))

        requested = tf.convert_to_tensor(replicas.local(self._updates)) > 0
        tf.cond(requested, measure, lambda: None)


def _norm(gradient: Gradient) -> tf.Tensor:
    return numerics.length(numerics.values(gradient))


def of(optimizer: Optimizer) -> tuple[GradientNorms, bool]:
    """Returns the norms of a built optimizer, and whether they were only now added to it."""
    known = _of.get(optimizer)
    if known is not None and known.paths == [p.path for p in optimizer.state.parameters]:
        return known, False
    _of[optimizer] = GradientNorms(optimizer)
    return _of[optimizer], True
