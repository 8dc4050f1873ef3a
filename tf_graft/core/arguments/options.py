"""The arguments that every optimizer takes, each defined once with its check and its default."""

import dataclasses
import inspect
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Annotated, Any, Self, TypedDict, get_type_hints

import keras
from tensorflow.experimental import dtensor

from tf_graft.core import checks
from tf_graft.core.arguments import averages, decay_modes, multipliers, plain, row_clips
from tf_graft.core.arguments.averages import EMA, Averages
from tf_graft.core.arguments.checked import Checked
from tf_graft.core.arguments.decay_modes import DecayMode
from tf_graft.core.arguments.multipliers import Multipliers
from tf_graft.core.arguments.row_clips import Limits
from tf_graft.core.checks import shown
from tf_graft.core.places.mesh_arguments import MeshLike, as_mesh
from tf_graft.core.spelling import meant
from tf_graft.core.types import Config, NumberLike

ABOVE: dict[str, Any] = {"open_low": True}
OPTIONAL: dict[str, Any] = {"optional": True}
CLIPS = ("clipvalue", "clipnorm", "global_clipnorm")
DECAYING = "keras.optimizers.schedules.InverseTimeDecay(learning_rate, 1, decay)"


class Option(Checked):
    """A common argument: an attribute of every optimizer, checked whenever it is set.

    Args:
        check: one of `tf_graft.core.checks`, which returns the value as it is kept.
        *bounds: further positional arguments of `check`.
        default: the value if none is given.
        in_config: whether `get_config` returns it.
        plain: converts the value into plain values for the config.
        **details: further keyword arguments of `check`.
    """

    def __init__(
        self,
        check: Callable[..., Any],
        *bounds: Any,
        default: Any = None,
        in_config: bool = True,
        plain: Callable[[Any], Any] = lambda value: value,
        **details: Any,
    ):
        super().__init__(check, *bounds, default=default, **details)
        self.in_config = in_config
        self.plain = plain


class Clip(Option):
    """A way of clipping; an optimizer has at most one."""

    def refuse_beside(self, owner: str, given: Mapping[str, Any]) -> None:
        """Refuses a second way of clipping."""
        _refuse_two_clips(owner, {name: given.get(name) for name in CLIPS})


class Averaging(Option):
    """`use_ema` or `ema_momentum`: averages given as an object have their own momentum."""

    def refuse_beside(self, owner: str, given: Mapping[str, Any]) -> None:
        """Refuses `ema_momentum` together with averages that have their own momentum."""
        momentum = given.get("ema_momentum", OPTIONS["ema_momentum"].default)
        _refuse_two_momentums(owner, given.get("use_ema"), momentum)


def _name(owner: str, name: str, given: Any) -> str:
    plain = isinstance(given, str) and re.fullmatch(r"\w[\w.-]*", given, re.ASCII)
    if given is not None and not plain:
        raise ValueError(
            f"{owner}({name}={shown(given)}): {name} must be made of letters, digits, '_', '.' and "
            "'-'."
        )
    return given or owner.lower()


def _mesh(owner: str, name: str, given: Any) -> dtensor.Mesh | None:
    return None if given is None else as_mesh(owner, given)


class Common(TypedDict, total=False):
    """Arguments common to all optimizers; the first ten are Keras' own.

    Each argument is also an attribute of the same name (`exclude_from_weight_decay` is read as
    `decay_exclusions`). You can set the attribute until the optimizer is built, except for an
    argument that needs slots of its own, such as `gradient_accumulation_steps`; the new value is
    checked too. Updates are computed in float32 (in float64 for float64 variables). Numbers must
    fit into float32, which turns 1e39 into infinity and 1e-300 into zero.

    Args:
        weight_decay: decoupled weight decay, at least 0; each step computes
            `w <- w - learning_rate * weight_decay * w`. A number, or a schedule, which follows the
            same count as the learning rate. None for none.
        clipnorm: the largest L2 norm of each gradient, above 0. Give at most one of the three
            clipping arguments.
        clipvalue: the largest magnitude of each gradient entry, above 0.
        global_clipnorm: the largest L2 norm of all gradients together, above 0.
        use_ema: whether to keep averages of the weights. True: exponential moving averages (EMA).
            `tf_graft.averages.SWA()` or `EMA()`: averages that begin later, with equal weights or
            with a momentum that grows.
        ema_momentum: how much of the average is kept at each step with `use_ema=True`, in [0, 1).
        ema_overwrite_frequency: the averages overwrite the weights after every so many updates.
        loss_scale_factor: a fixed loss scale: `scale_loss` multiplies the loss by it, and the
            optimizer divides the gradients by it.
        gradient_accumulation_steps: the number of calls for one update, at least 2; the update uses
            the mean of their gradients. Counters, schedules and averages advance only at updates.
        name: the name that the optimizer's variables begin with.
        mesh: the `tf.experimental.dtensor.Mesh` or `keras.distribution.DeviceMesh` that holds the
            state; None finds it from the variables. The config does not contain it: an optimizer
            made from a config finds its own mesh.
        jit_compile: True compiles the update of dense variables with XLA; False does not; `"auto"`
            uses TensorFlow's in-place kernels where there are some and does not compile.
        sparse: how a row-sparse gradient (`tf.IndexedSlices`) is applied. `"lazy"`: only touched
            rows and their state change, and the cost is that of these rows alone. `"exact"`: the
            result is that of the equal dense gradient, at the cost of the whole table unless the
            optimizer changes nothing on zeros. `"lazy_decay"`: as `"lazy"`, but untouched rows
            decay, too. The decay that a row has missed is applied before the next step that touches
            the row, and for all rows in `finalize_variable_values`, with which `fit` ends. Until
            then a row is read without it. Each row takes 8 bytes more. It cannot be combined with
            `use_ema`, nor with optimizers that have their own form of weight decay or whose state
            may hold weights, nor with `master_weights=False` for bfloat16.
        nonfinite: what happens if gradients contain a NaN or an infinity, if their joint L2 norm is
            above 2^51 (float64: 2^484; not checked for gradients that are clipped to at most 2^36),
            or if the learning rate is negative or not finite, or the value of a scheduled momentum,
            `beta_1` or weight decay is out of range. `"skip"`: nothing changes but
            `skipped_steps`; ten skipped updates in a row cause a warning (compiled steps only
            count, so `fit` warns when it ends). `"raise"`: an `InvalidArgumentError`, and nothing
            changes. `"apply"`: the step is made without a check, as in Keras.
        exclude_from_weight_decay: regular expressions; a variable whose path contains a match does
            not decay, neither here nor in an optimizer inside this one. A warning names an
            expression that matches no variable.
        weight_decay_mode: `tf_graft.CautiousDecay()`: only entries that the step does not lengthen
            decay. `tf_graft.CorrectedDecay(max_learning_rate)`: decay follows the square of the
            learning rate's schedule. Also a name or a config of one. An optimizer with its own form
            of weight decay refuses it; an optimizer without weight decay refuses it when it is
            built. None: all entries decay, as `weight_decay` says.
        learning_rate_multipliers: multipliers of the learning rate by regular expression: numbers
            of at least 0, or schedules, which follow the same count as the learning rate. The first
            expression that matches somewhere in a variable's path counts; the other variables have
            the multiplier 1. Weight decay is multiplied too, as the learning rate is a factor of
            it. The number 0 freezes: weights and state stay as they are, and the gradient counts
            in no norm. An expression that matches no variable is an error.
        count_rows: regular expressions; in a variable whose path contains a match every row counts
            its own updates, and `t` in the optimizer's equations is that count. Each row then has
            its own bias correction, as if it were a variable of its own. Or a dict of such
            expressions with multipliers of the learning rate: numbers, schedules, which follow
            the row's count, or a `tf_graft.RowFrequency`. In-place kernels do not update these
            variables. Optimizers with state for several rows together are refused. None: all rows
            have the optimizer's count.
        clip_rows: limits by regular expression; in a variable whose path contains a match, the
            gradient of each row is clipped by itself: to a number, the largest L2 norm, or by
            `tf_graft.CowClip`. Other ways of clipping follow. None for none.
        state_dtype: `"bfloat16"` halves the optimizer's state: slots of a float32 variable's shape
            are stored in bfloat16 with stochastic rounding, which is the same in every execution.
            `"bfloat16+8"` adds an error term of 8 bits to each, which makes rounding 256 times as
            fine and takes 3 bytes instead of 2. Steps are still computed in float32, without
            in-place kernels. Averages, float32 master weights, accumulated gradients and slots that
            must be exact keep their precision. None: float32.
        master_weights: whether the optimizer keeps a float32 master of each weight in half
            precision. False: bfloat16 variables have none, which saves 4 bytes an entry. Steps are
            then computed in float32, without in-place kernels, and the new weight is rounded to
            bfloat16 up or down at random, the same in every execution, so that small steps act in
            the mean. float16 variables keep their masters.
    """

    weight_decay: Annotated[NumberLike | None, Option(checks.number, 0, **OPTIONAL, scheduled=True)]
    clipnorm: Annotated[float | None, Clip(checks.number, 0, **ABOVE, **OPTIONAL)]
    clipvalue: Annotated[float | None, Clip(checks.number, 0, **ABOVE, **OPTIONAL)]
    global_clipnorm: Annotated[float | None, Clip(checks.number, 0, **ABOVE, **OPTIONAL)]
    use_ema: Annotated[
        bool | Averages, Averaging(averages.checked, default=False, plain=plain.serialized)
    ]
    ema_momentum: Annotated[float, Averaging(checks.number, 0, 1, open_high=True, default=0.99)]
    ema_overwrite_frequency: Annotated[int | None, Option(checks.integer, 1, **OPTIONAL)]
    loss_scale_factor: Annotated[float | None, Option(checks.number, 0, **ABOVE, **OPTIONAL)]
    gradient_accumulation_steps: Annotated[int | None, Option(checks.integer, 2, **OPTIONAL)]
    name: Annotated[str | None, Option(_name)]
    mesh: Annotated[MeshLike | None, Option(_mesh, in_config=False)]
    jit_compile: Annotated[bool | str, Option(checks.choice, ("auto", True, False), default="auto")]
    sparse: Annotated[str, Option(checks.choice, ("lazy", "exact", "lazy_decay"), default="lazy")]
    nonfinite: Annotated[str, Option(checks.choice, ("skip", "raise", "apply"), default="skip")]
    # Keras has a method of this argument's name.
    exclude_from_weight_decay: Annotated[
        Sequence[str] | None, Option(checks.patterns, kept_as="decay_exclusions")
    ]
    weight_decay_mode: Annotated[
        DecayMode | str | Config | None, Option(decay_modes.checked, plain=plain.serialized)
    ]
    learning_rate_multipliers: Annotated[
        Multipliers | None, Option(multipliers.checked, plain=multipliers.config)
    ]
    count_rows: Annotated[
        Sequence[str] | Multipliers | None,
        Option(multipliers.of_counted, plain=multipliers.config),
    ]
    clip_rows: Annotated[Limits | None, Option(row_clips.checked, plain=row_clips.config)]
    state_dtype: Annotated[str | None, Option(checks.choice, (None, "bfloat16", "bfloat16+8"))]
    master_weights: Annotated[bool, Option(checks.boolean, default=True)]


OPTIONS: dict[str, Option] = {}
for _argument, _hint in get_type_hints(Common, include_extras=True).items():
    OPTIONS[_argument] = _hint.__metadata__[0]
    OPTIONS[_argument].__set_name__(Common, _argument)

# Defaults that their own check returns unchanged; they are not checked at each construction.
DEFAULTS = {n: o.default for n, o in OPTIONS.items() if o.checked("", o.default) is o.default}
OF_KERAS = [n for n in inspect.signature(keras.optimizers.SGD).parameters if n in OPTIONS]


@dataclasses.dataclass(frozen=True)
class Options:
    """The current common arguments of an optimizer; `Common` describes them."""

    weight_decay: NumberLike | None
    clipnorm: float | None
    clipvalue: float | None
    global_clipnorm: float | None
    use_ema: bool | Averages
    ema_momentum: float
    ema_overwrite_frequency: int | None
    loss_scale_factor: float | None
    gradient_accumulation_steps: int | None
    name: str
    mesh: dtensor.Mesh | None
    jit_compile: bool | str
    sparse: str
    nonfinite: str
    exclude_from_weight_decay: Sequence[str] | None
    weight_decay_mode: DecayMode | None
    learning_rate_multipliers: Multipliers | None
    count_rows: Multipliers | None
    clip_rows: Limits | None
    state_dtype: str | None
    master_weights: bool

    @classmethod
    def of(cls, optimizer: Any) -> Self:
        """Returns the common arguments of an optimizer."""
        return cls(**{n: getattr(optimizer, option.kept_as) for n, option in OPTIONS.items()})

    def config(self) -> dict[str, Any]:
        """Returns the arguments that a config contains, as plain values."""
        kept = {n: o.plain(vars(self)[n]) for n, o in OPTIONS.items() if o.in_config}
        return {n: list(x) if isinstance(x, list) else x for n, x in kept.items()}

    @property
    def averages(self) -> Averages:
        """How the averages of the weights are made, if there are any."""
        return self.use_ema if isinstance(self.use_ema, Averages) else EMA(self.ema_momentum)

    @property
    def clips(self) -> tuple[float | None, float | None, float | None]:
        """The limits of clipping by value, by norm and by global norm; at most one is not None."""
        return self.clipvalue, self.clipnorm, self.global_clipnorm


def as_attributes(cls: type) -> type:
    """Makes every common argument a checked attribute of a class."""
    for option in OPTIONS.values():
        setattr(cls, option.kept_as, option)
    return cls


def checked(owner: str, own: Iterable[str], given: Mapping[str, Any]) -> dict[str, Any]:
    """Returns all common arguments, checked, with defaults for those that are not given.

    Args:
        owner: the optimizer's class.
        own: the names of the class's own arguments, for the message about an unknown one.
        given: the common arguments as the caller gave them.

    Raises:
        TypeError: an argument is unknown or has the wrong type.
        ValueError: an argument is out of range, or more than one way of clipping is given.
    """
    _refuse_unknown(owner, own, given)
    left = {n: o for n, o in OPTIONS.items() if n in given or n not in DEFAULTS}
    result = DEFAULTS | {n: o.checked(owner, given.get(n, o.default)) for n, o in left.items()}
    _refuse_two_clips(owner, result)
    _refuse_two_momentums(owner, result["use_ema"], result["ema_momentum"])
    return result


def _refuse_unknown(owner: str, own: Iterable[str], given: Iterable[str]) -> None:
    for name in given:
        if name not in OPTIONS:
            near = "learning_rate" if name == "lr" else meant(name, [*own, *OPTIONS])
            hint = f"; did you mean {near}?" if near else "."
            if name == "decay":  # which older optimizers had
                hint = f"; to lower the learning rate, give a schedule: {DECAYING}."
            raise TypeError(f"{owner}({shown(name, str)}=...): there is no such argument{hint}")


def _refuse_two_momentums(owner: str, use_ema: bool | Averages | None, momentum: float) -> None:
    if isinstance(use_ema, Averages) and momentum != OPTIONS["ema_momentum"].default:
        raise ValueError(
            f"{owner}(use_ema={use_ema}, ema_momentum={momentum:g}): ema_momentum is for "
            "use_ema=True only; set the momentum in tf_graft.averages.EMA instead."
        )


def _refuse_two_clips(owner: str, given: Mapping[str, Any]) -> None:
    clips = [f"{n}={given[n]:g}" for n in OPTIONS if n in CLIPS and given[n] is not None]
    if len(clips) > 1:
        raise ValueError(f"{owner}({', '.join(clips)}): at most one way of clipping can be given.")
