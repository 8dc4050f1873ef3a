"""The arguments that every optimizer takes, and what they must be."""

import difflib
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal, TypedDict

import keras
from tensorflow.experimental import dtensor

from tf_graft.core import checks

JIT = ("auto", True, False)
SPARSE = ("lazy", "exact")
NONFINITE = ("skip", "raise", "apply")
CLIPS: tuple[Literal["clipnorm", "clipvalue", "global_clipnorm"], ...] = (
    "clipnorm",
    "clipvalue",
    "global_clipnorm",
)


class Common(TypedDict, total=False):
    """Arguments common to all optimizers; the first ten are Keras' own.

    Args:
        weight_decay: decoupled weight decay per step, times the learning rate, at least 0:
            `w <- w - learning_rate * weight_decay * w`. None for none.
        clipnorm: the largest L2 norm of each gradient, above 0. At most one of the three clips.
        clipvalue: the largest magnitude of each gradient entry, above 0.
        global_clipnorm: the largest L2 norm of all gradients together, above 0.
        use_ema: whether to keep exponential moving averages of the weights.
        ema_momentum: how much of the average is kept each step, in [0, 1].
        ema_overwrite_frequency: write the averages into the weights every so many updates.
        loss_scale_factor: `scale_loss` multiplies the loss by it; gradients are divided by it.
        gradient_accumulation_steps: an update for every so many calls, at least 2, with the mean
            of their gradients. Counters, schedules and averages see updates only.
        name: the name that the optimizer's variables begin with.
        mesh: the `tf.experimental.dtensor.Mesh` the state lives on; found from the variables when
            None. It is not in the config: an optimizer made from one finds its own.
        jit_compile: True compiles the update of dense variables with XLA; False does not; `"auto"`
            takes TensorFlow's in-place kernels where there are some and does not compile.
        sparse: what a row-sparse gradient (`tf.IndexedSlices`) does. `"lazy"`: only touched rows
            move, decay and age, at a cost that follows them. `"exact"`: as the equal dense
            gradient would, at the cost of the table unless the optimizer is idle on zeros.
        nonfinite: what a step does whose gradients have a NaN, an infinity or, together, an L2 norm
            above 2^51 (float64: 2^484; not asked of gradients that are clipped to at most 2^36), or
            whose learning rate is negative or not finite. `"skip"`: nothing changes but
            `skipped_steps`. `"raise"`: an `InvalidArgumentError`, and nothing changes. `"apply"`:
            it is made, unchecked, as Keras would.
        exclude_from_weight_decay: regular expressions; a variable whose path contains one does not
            decay.
    """

    weight_decay: float | None
    clipnorm: float | None
    clipvalue: float | None
    global_clipnorm: float | None
    use_ema: bool
    ema_momentum: float
    ema_overwrite_frequency: int | None
    loss_scale_factor: float | None
    gradient_accumulation_steps: int | None
    name: str | None
    mesh: dtensor.Mesh | None
    jit_compile: bool | str
    sparse: str
    nonfinite: str
    exclude_from_weight_decay: Sequence[str] | None


def checked(owner: str, own: Iterable[str], given: dict[str, Any]) -> Common:
    """All common arguments, those not given at their defaults.

    Args:
        owner: the optimizer's class.
        own: the names of its own arguments, for the message about an unknown one.
        given: the common arguments as the caller gave them.

    Raises:
        TypeError: unknown argument, or one of the wrong type.
        ValueError: one out of range, or more than one way of clipping.
    """
    _refuse_unknown(owner, own, given)

    def value(name: str, check: Callable[..., Any], default: Any, *args: Any, **kwargs: Any) -> Any:
        return check(owner, name, given.get(name, default), *args, **kwargs)

    def above_zero(name: str) -> float | None:
        return value(name, checks.number, None, 0, open_low=True, optional=True)

    def count(name: str, least: int) -> int | None:
        return value(name, checks.integer, None, least, optional=True)

    result = Common(
        weight_decay=value("weight_decay", checks.number, None, 0, optional=True),
        clipnorm=above_zero("clipnorm"),
        clipvalue=above_zero("clipvalue"),
        global_clipnorm=above_zero("global_clipnorm"),
        use_ema=value("use_ema", checks.boolean, False),
        ema_momentum=value("ema_momentum", checks.number, 0.99, 0, 1),
        ema_overwrite_frequency=count("ema_overwrite_frequency", 1),
        loss_scale_factor=above_zero("loss_scale_factor"),
        gradient_accumulation_steps=count("gradient_accumulation_steps", 2),
        name=_name(owner, given.get("name")),
        mesh=_mesh(owner, given.get("mesh")),
        jit_compile=value("jit_compile", checks.choice, "auto", JIT),
        sparse=value("sparse", checks.choice, "lazy", SPARSE),
        nonfinite=value("nonfinite", checks.choice, "skip", NONFINITE),
        exclude_from_weight_decay=value("exclude_from_weight_decay", checks.patterns, None),
    )
    _refuse_two_clips(owner, result)
    return result


def _refuse_unknown(owner: str, own: Iterable[str], given: dict[str, Any]) -> None:
    for name in given:
        if name not in Common.__annotations__:
            known = [*own, *Common.__annotations__]
            near = ["learning_rate"] if name == "lr" else difflib.get_close_matches(name, known, 1)
            hint = f"; did you mean {near[0]}?" if near else "."
            raise TypeError(f"{owner}({name}=...): there is no such argument{hint}")


def _refuse_two_clips(owner: str, common: Common) -> None:
    clips = [f"{name}={common[name]:g}" for name in CLIPS if common[name] is not None]
    if len(clips) > 1:
        raise ValueError(f"{owner}({', '.join(clips)}): at most one way of clipping can be given.")


def rate(owner: str, given: Any) -> Any:
    """A learning rate: a float at least 0, a schedule, or a callable without arguments."""
    if isinstance(given, dict):
        given = keras.optimizers.schedules.deserialize(given)
    if isinstance(given, keras.optimizers.schedules.LearningRateSchedule) or callable(given):
        return given
    return checks.number(owner, "learning_rate", given, 0)


def _name(owner: str, given: Any) -> str:
    if given is not None and not (isinstance(given, str) and re.fullmatch(r"\w[\w.-]*", given)):
        raise ValueError(
            f"{owner}(name={given!r}): name must be made of letters, digits, '_', '.' and '-'."
        )
    return given or owner.lower()


def _mesh(owner: str, given: Any) -> dtensor.Mesh | None:
    if given is not None and not isinstance(given, dtensor.Mesh):
        raise TypeError(f"{owner}(mesh={given!r}): mesh must be a tf.experimental.dtensor.Mesh.")
    return given
