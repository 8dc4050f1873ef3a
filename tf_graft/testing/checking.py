"""Runs the guarantees, prints the table, and fails if one is broken."""

import functools
import inspect
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import keras

from tf_graft.core.checks import shown
from tf_graft.core.optimizer import Optimizer
from tf_graft.testing import algorithm, pipeline, places, saving
from tf_graft.testing.trials import RATE, Skipped

Guarantee = Callable[[Callable[..., Optimizer]], str]
KEPT, BROKEN, SKIPPED = "kept", "BROKEN", "skipped"


class Result(NamedTuple):
    """The result of one guarantee.

    Args:
        guarantee: The guarantee's name.
        result: "kept", "BROKEN" or "skipped".
        detail: What was compared, or why the guarantee is broken or skipped.
    """

    guarantee: str
    result: str
    detail: str


def check(make: Callable[..., Optimizer], **arguments: Any) -> list[Result]:
    """Runs the guarantees of this package on an optimizer, and prints a table of them.

    `check` takes about 20 seconds; it ends at once if the optimizer is refused when it is built.
    The check of replicas needs two devices: on one machine, call `tf_graft.dtensor.logical_cpus(2)`
    before TensorFlow starts.

    Args:
        make: An optimizer class, or a function that takes the common arguments and returns a new
            optimizer: `lambda **common: tg.LARC(AdaBelief(0.1), **common)`.
        **arguments: The arguments for each call of `make`.

    Returns:
        The rows of the table.

    Raises:
        AssertionError: A guarantee is broken; the message lists all that are.
    """
    modules = (algorithm, pipeline, saving, places)
    guarantees = [guarantee for module in modules for guarantee in module.GUARANTEES]
    return _run(_maker(make, arguments), guarantees)


def check_on_mesh(make: Callable[..., Optimizer], **arguments: Any) -> list[Result]:
    """Runs only the guarantee of a mesh of two devices, as `check` runs the others.

    Use a process of its own: a mesh and replicas on the same devices of one process break each
    other.

    Args:
        make: As for `check`.
        **arguments: As for `check`.

    Raises:
        AssertionError: The guarantee is broken.
    """
    return _run(_maker(make, arguments), [places.mesh])


def _maker(make: Callable[..., Optimizer], arguments: dict[str, Any]) -> Callable[..., Optimizer]:
    rate = inspect.signature(make).parameters.get("learning_rate")
    if rate is not None and rate.default is rate.empty:
        arguments = {"learning_rate": RATE, **arguments}
    return lambda **common: make(**{"name": "trial", **arguments, **common})


def _run(make: Callable[..., Optimizer], guarantees: Iterable[Guarantee]) -> list[Result]:
    guarantees = list(guarantees)
    owner, results = type(make()).__name__, list[Result]()
    width = max(len(guarantee.__name__) for guarantee in guarantees)
    print(f"{owner}: the guarantees of tf_graft")
    for guarantee in guarantees:
        results.append(result_of(make, guarantee))
        name, result, detail = results[-1]
        print(f"  {name:{width}}  {result:7}  {detail}", flush=True)
        if guarantee is algorithm.purity and result == BROKEN:  # then all others would break, too
            raise AssertionError(f"{owner} is refused: {detail}")
    broken = [f"  {r.guarantee}: {r.detail}" for r in results if r.result == BROKEN]
    if broken:
        raise AssertionError(
            f"{owner} breaks {len(broken)} of {len(results)} guarantees:\n" + "\n".join(broken)
        )
    return results


def result_of(make: Callable[..., Optimizer], guarantee: Guarantee) -> Result:
    """Runs one guarantee and returns its result, also if it fails."""
    named = functools.partial(Result, guarantee.__name__.replace("_", " "))
    try:
        with keras.saving.custom_object_scope(_classes(make())):  # no class needs to be registered
            return named(KEPT, guarantee(make))
    except Skipped as reason:
        return named(SKIPPED, str(reason))
    except AssertionError as error:
        return named(BROKEN, str(error))
    except Exception as error:  # another's optimizer may raise anything
        return named(BROKEN, f"{type(error).__name__}: {shown(error, str)}")


def _classes(optimizer: Any) -> dict[str, type]:
    """Returns the classes of an optimizer and its children, by name."""
    classes = {type(optimizer).__name__: type(optimizer)}
    for child in getattr(optimizer, "children", dict)().values():
        classes |= _classes(child)
    return classes
