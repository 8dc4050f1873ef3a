"""Warns when one update after another is skipped."""

import warnings
from collections.abc import Mapping

import keras

from tf_graft.core.places import replicas
from tf_graft.core.places.mesh_tensors import from_mesh

IN_A_ROW = 10
UNKNOWN = (
    "gradients were not finite, or too large, or the learning rate was not finite. With "
    "compile(run_eagerly=True) this warning names the first such variable, and tf_graft.Monitor "
    "shows the norm of every gradient"
)


class Skips:
    """What was known of the counters when Python last looked at them.

    Compiled steps can count, but not warn, so the optimizer looks at the counters whenever Python
    runs anyway: in a step that is skipped eagerly, and after training.
    """

    def __init__(self) -> None:
        self._updates = self._skipped = 0
        self._told = False

    def found(self, counters: Mapping[str, keras.Variable], skipping: bool = False) -> bool:
        """Returns whether `IN_A_ROW` updates were skipped in a row; True once until an update.

        The updates made since the last look divide the skipped ones into one run more than there
        are updates, and the longest run has at least the mean length.

        Args:
            counters: the counters by role.
            skipping: whether the last of the skipped updates is the latest of all.
        """
        updates, skipped = (_value(counters[role]) for role in ("iteration", "skipped_steps"))
        made, more = updates - self._updates, skipped - self._skipped
        loaded = made < 0 or more < 0  # an earlier state
        told = self._told and made == 0
        found = not (loaded or told) and more >= IN_A_ROW * (made + 1)
        if loaded or made or found:
            self._updates, self._skipped, self._told = updates, skipped - skipping, found
        return found


def warn(owner: str, reason: str = UNKNOWN) -> None:
    """Warns that updates are skipped, and says what to look at.

    Args:
        owner: the class name of the optimizer.
        reason: what keeps the updates from being made.
    """
    warnings.warn(
        f"{owner}: {IN_A_ROW} or more updates in a row were skipped, which left the weights as "
        f"they were: {reason}. Look for a NaN in the data and in the loss, and for a learning rate "
        "or a loss scale that is too high.",
        stacklevel=2,
    )


def _value(counter: keras.Variable) -> int:
    return int(from_mesh(replicas.local(counter)).numpy())
