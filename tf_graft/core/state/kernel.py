"""The step of an optimizer as TensorFlow kernels that update a variable in place."""

from collections.abc import Callable
from typing import Any, NamedTuple


class Kernel(NamedTuple):
    """The kernel of one optimizer.

    Args:
        run: takes the arguments of `step`, but `w` and the slots are variables; only `shared_slots`
            are tensors. It adds the step to `w`.
        exact: whether it adds exactly the bits of `step`.
        reads_weights: whether it reads `w`, which must not decay before it runs.
        replaces: whether it assigns `w` new values, from finite gradients only, instead of adding.
    """

    run: Callable[..., None]
    exact: bool
    reads_weights: bool
    replaces: bool = False


class InPlace:
    """A kernel as a class declares it; an optimizer of the class has its `Kernel`, or None.

    Args: see `in_place`.
    """

    def __init__(
        self,
        run: Callable[..., None],
        exact: bool | Callable[[Any], bool] = False,
        reads_weights: bool = False,
        serves: Callable[[Any], bool] | None = None,
        replaces: bool = False,
    ):
        self._run, self._exact, self._reads, self._serves = run, exact, reads_weights, serves
        self._replaces = replaces
        self.__doc__ = run.__doc__

    def __get__(self, optimizer: Any, cls: type | None = None) -> Any:
        if optimizer is None:
            return self
        if self._serves is not None and not self._serves(optimizer):
            return None
        exact = self._exact(optimizer) if callable(self._exact) else self._exact
        return Kernel(self._run.__get__(optimizer), exact, self._reads, self._replaces)


def in_place(
    exact: bool | Callable[[Any], bool] = False,
    reads_weights: bool = False,
    serves: Callable[[Any], bool] | None = None,
    replaces: bool = False,
) -> Callable[[Callable[..., None]], Any]:
    """Makes the method `kernel` of an optimizer the in-place form of its `step`.

    The method takes the arguments of `step`, but `w` and the slots are variables; only
    `shared_slots` are tensors. It adds the step to `w`. The engine calls it for dense gradients; on
    rows, measurements showed `step` to be as fast. A kernel that gives the bits of `step` also
    updates the float32 masters of variables in half precision.

    Args:
        exact: whether the kernel adds exactly the bits of `step`; or a function of the optimizer
            that says so.
        reads_weights: whether it reads `w.value()`, so that the weights must not decay before.
        serves: a function of the optimizer that says whether the kernel does what `step` does with
            its arguments; None if it always does.
        replaces: whether the kernel assigns new weights instead of adding a step, and gives them
            right only for finite gradients. It then serves where the optimizer itself updates a
            variable, with gradients that were checked to be finite; `step` serves elsewhere.
    """
    return lambda run: InPlace(run, exact, reads_weights, serves, replaces)


def remembers(*roles: str) -> Callable[[Any], bool]:
    """Returns a function for `serves`: whether each of these decays is a schedule or at least 0.5.

    A kernel that computes `v + (1 - decay) * (g^2 - v)` rounds g^2 away where it is far below v and
    nothing of v remains; `running_mean` does not, unless the decay is a schedule.
    """

    def serves(optimizer: Any) -> bool:
        decays = [getattr(optimizer, role) for role in roles]
        return all(callable(decay) or decay >= 0.5 for decay in decays)

    return serves
