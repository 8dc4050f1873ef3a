"""The arguments that every optimizer takes, and what they must be."""

import difflib
import re
from collections.abc import Iterable, Sequence
from typing import Any, TypedDict, cast

from tensorflow.experimental import dtensor

from tf_graft.core import checks, keras_contract
from tf_graft.core.checked import Checked
from tf_graft.core.checks import shown

JIT = ("auto", True, False)
SPARSE = ("lazy", "exact")
NONFINITE = ("skip", "raise", "apply")
CLIPS = ("clipnorm", "clipvalue", "global_clipnorm")


class Common(TypedDict, total=False):
    """Arguments common to all optimizers; the first ten are Keras' own.

    Each is an attribute, too, and checked again when that is set. What decides which state is kept
    (`use_ema`, `gradient_accumulation_steps`, and with an optimizer's own arguments `momentum` or
    `amsgrad`) cannot be set to anything else once the state has been made. Numbers must hold in
    float32, which updates are computed in: 1e39 is infinite there, and 1e-300 is zero.

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


def _name(owner: str, name: str, given: Any) -> str:
    plain = isinstance(given, str) and re.fullmatch(r"\w[\w.-]*", given, re.ASCII)
    if given is not None and not plain:
        raise ValueError(
            f"{owner}({name}={shown(given)}): {name} must be made of letters, digits, '_', '.' and "
            "'-'."
        )
    return given or owner.lower()


def _mesh(owner: str, name: str, given: Any) -> dtensor.Mesh | None:
    if given is not None and not isinstance(given, dtensor.Mesh):
        raise TypeError(
            f"{owner}({name}={shown(given)}): {name} must be a tf.experimental.dtensor.Mesh."
        )
    return given


class Clip(Checked):
    """A way of clipping, of which there is at most one."""

    def __set__(self, optimizer: Any, value: Any) -> None:
        owner = type(optimizer).__name__
        held = {name: vars(optimizer).get(name) for name in CLIPS}
        _refuse_two_clips(owner, held | {self.name: self.checked(owner, value)})
        super().__set__(optimizer, value)


class Arguments(keras_contract.KerasOptimizer):
    """The common arguments as attributes, each with what it must be.

    `exclude_from_weight_decay` is a method, as with Keras.
    """

    weight_decay = Checked(checks.number, 0, optional=True)
    clipnorm = Clip(checks.number, 0, open_low=True, optional=True)
    clipvalue = Clip(checks.number, 0, open_low=True, optional=True)
    global_clipnorm = Clip(checks.number, 0, open_low=True, optional=True)
    use_ema = Checked(checks.boolean, default=False)
    ema_momentum = Checked(checks.number, 0, 1, default=0.99)
    ema_overwrite_frequency = Checked(checks.integer, 1, optional=True)
    loss_scale_factor: Any = Checked(checks.number, 0, open_low=True, optional=True)
    gradient_accumulation_steps = Checked(checks.integer, 2, optional=True)
    name = Checked(_name)
    mesh = Checked(_mesh)
    jit_compile = Checked(checks.choice, JIT, default="auto")
    sparse = Checked(checks.choice, SPARSE, default="lazy")
    nonfinite = Checked(checks.choice, NONFINITE, default="skip")


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
    declared = [x for x in vars(Arguments).values() if isinstance(x, Checked)]
    result = {x.name: x.checked(owner, given.get(x.name, x.default)) for x in declared}
    _refuse_two_clips(owner, result)
    name = "exclude_from_weight_decay"
    return cast(Common, {**result, name: checks.patterns(owner, name, given.get(name))})


def _refuse_unknown(owner: str, own: Iterable[str], given: dict[str, Any]) -> None:
    for name in given:
        if name not in Common.__annotations__:
            known = [*own, *Common.__annotations__]
            near = ["learning_rate"] if name == "lr" else difflib.get_close_matches(name, known, 1)
            hint = f"; did you mean {near[0]}?" if near else "."
            raise TypeError(f"{owner}({name}=...): there is no such argument{hint}")


def _refuse_two_clips(owner: str, given: dict[str, Any]) -> None:
    clips = [f"{name}={given[name]:g}" for name in CLIPS if given[name] is not None]
    if len(clips) > 1:
        raise ValueError(f"{owner}({', '.join(clips)}): at most one way of clipping can be given.")
