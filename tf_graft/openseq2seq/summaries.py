"""What OpenSeq2Seq's `optimize_loss` reports of a step: as metrics, and to TensorBoard."""

import importlib.util
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tf_graft.core import checks, clipping, numerics, replicas, rows, slots
from tf_graft.core.optimizer import Optimizer
from tf_graft.core.parameters import Parameter
from tf_graft.core.slots import Slot
from tf_graft.core.write import Whole, put
from tf_graft.scaling import MixedPrecision

NAMES = (
    *("learning_rate", "gradients", "gradient_norm", "global_gradient_norm", "variables"),
    *("variable_norm", "larc_summaries", "loss_scale"),
)
DEFAULT = ("learning_rate", "global_gradient_norm", "loss_scale")
LARC = ("larc_clip_on", "larc_grad_update", "larc_final_lr")
SCALAR = Slot(shape="scalar", dtype="float32")


def checked(names: Sequence[str] | None) -> tuple[str, ...]:
    """The summaries that are wanted; None for the default ones.

    Raises:
        ValueError: one that there is not.
    """
    if names is None:
        return DEFAULT
    listed = "optimize_loss(summaries={}): a list of names is wanted."
    names = [names] if isinstance(names, str) else checks.listed(listed, names)
    for name in names:
        if name not in NAMES:
            raise ValueError(
                f"optimize_loss(summaries={names!r}): Summaries should be one of "
                f"[{', '.join(NAMES)}], you provided {name}."
            )
    return tuple(names)


class Summaries:
    """The metrics of a step.

    What is of gradients is of an update: the gradients of all replicas and micro-steps, unscaled.
    It is kept in variables and stands until the next update.

    Args:
        names: of `NAMES`.
        optimizer: a built optimizer, which is watched.
        parameters: the paths of its variables, with the variables.
        larc: the LARC in it, or None.
    """

    def __init__(
        self, names: Sequence[str], optimizer: Optimizer, variables: dict[str, Any], larc: Any
    ):
        self._names, self._optimizer, self._variables = names, optimizer, variables
        self._larc = larc if "larc_summaries" in names else None
        self._clips = optimizer.clipvalue, optimizer.clipnorm, optimizer.global_clipnorm
        self._kept: dict[str, Any] = {}
        self._told: dict[str, Any] = {}  # those that the traced step has gradients for
        with tf.init_scope(), replicas.creating_under(replicas.strategy_of([*variables.values()])):
            self._make()
        if self._kept:
            optimizer.watch(self._watch)

    @tf.autograph.experimental.do_not_convert
    def before(self) -> dict[str, tf.Tensor]:
        """The metrics that are known before the step."""
        found: dict[str, tf.Tensor] = {}
        if "learning_rate" in self._names:
            found["learning_rate"] = tf.cast(self._optimizer.learning_rate, tf.float32)
        if "loss_scale" in self._names:
            mixed = isinstance(self._optimizer, MixedPrecision)
            found["loss_scale"] = self._optimizer.loss_scale() if mixed else tf.ones([])
        for path, variable in self._variables.items():
            value = tf.convert_to_tensor(variable)  # now, where `tf.cast` might read it later
            value = tf.cast(value, numerics.compute_dtype(value.dtype))
            if "variables" in self._names:
                found[f"variables/{path}"] = value
            if "variable_norm" in self._names:
                found[f"variable_norm/{path}"] = tf.cast(numerics.norm([value]), tf.float32)
        return found

    @tf.autograph.experimental.do_not_convert
    def after(self) -> dict[str, tf.Tensor]:
        """The metrics of the gradients of the last update."""
        return {name: tf.convert_to_tensor(replicas.local(self._kept[name])) for name in self._told}

    def _make(self) -> None:
        wanted = {"global_gradient_norm": SCALAR} if "global_gradient_norm" in self._names else {}
        if wanted and any(clip is not None for clip in self._clips):
            wanted["global_clipped_gradient_norm"] = SCALAR
        for name, slot in wanted.items():
            self._kept[name] = self._created(name, slot)
        each = dict.fromkeys(LARC, SCALAR) if self._larc is not None else {}
        each |= {"gradients": Slot()} if "gradients" in self._names else {}
        each |= {"gradient_norm": SCALAR} if "gradient_norm" in self._names else {}
        for name, slot in each.items():
            for path, variable in self._variables.items():
                self._kept[f"{name}/{path}"] = self._created(f"{name}/{path}", slot, variable)

    def _created(self, name: str, slot: Slot, variable: Any = None) -> Any:
        dtype = "float32" if variable is None else tf.as_dtype(variable.dtype)
        dtype = numerics.compute_dtype(tf.as_dtype(dtype)).name
        return slots.create(("summaries",), name, slot, dtype, variable, self._optimizer.mesh)

    def _keep(self, name: str, value: tf.Tensor) -> None:
        if name in self._kept:
            self._told[name] = None
            put(self._kept[name], tf.cast(value, self._kept[name].dtype))

    def _watch(self, gradients: list[Any], parameters: list[Parameter]) -> None:
        if "global_gradient_norm" in self._kept:
            self._keep("global_gradient_norm", _norm(gradients))
        if len(self._kept) == 1:
            return
        gradients = clipping.clipped(gradients, *self._clips)
        if "global_clipped_gradient_norm" in self._kept:
            self._keep("global_clipped_gradient_norm", _norm(gradients))
        for gradient, parameter in zip(gradients, parameters, strict=True):
            path, values = parameter.path, numerics.values(gradient)
            if "gradient_norm" in self._names:
                self._keep(f"gradient_norm/{path}", numerics.norm([values]))
            if "gradients" in self._names:
                sparse = numerics.row_sparse(gradient)
                dense = rows.densify(gradient, parameter.rows) if sparse else values
                finite = tf.where(tf.math.is_finite(dense), dense, tf.zeros_like(dense))
                self._keep(f"gradients/{path}", finite)
            if self._larc is not None:
                self._keep_larc(self._larc, path, values, parameter.read(Whole()))

    def _keep_larc(self, larc: Any, path: str, g: tf.Tensor, w: tf.Tensor) -> None:
        """What LARC makes of a gradient."""
        lr = tf.cast(self._optimizer.learning_rate, g.dtype)
        ratio = larc.ratio(g, w, lr) if larc.adapts(path) else tf.ones([], g.dtype)
        on = (ratio < 1) & (larc.mode == "clip")
        for name, value in zip(LARC, (on, ratio, lr * ratio), strict=True):
            self._keep(f"{name}/{path}", value)


def write(loss: tf.Tensor, metrics: dict[str, tf.Tensor], step: tf.Tensor, made: Any) -> None:
    """Writes the metrics of an update to the default `tf.summary` writer, if there is one.

    Args:
        loss: of the step.
        metrics: scalars, and tensors for histograms.
        step: number of updates before it.
        made: whether this step was an update, made or skipped: micro-steps write nothing.
    """
    if importlib.util.find_spec("tensorboard") is None:
        return
    with tf.summary.record_if(made):
        tf.summary.scalar("train_loss", loss, step=step)
        for name, value in metrics.items():
            if name.startswith(("gradients/", "variables/")):
                tf.summary.histogram(name, value, step=step)
            else:
                tf.summary.scalar(name, value, step=step)


def _norm(gradients: Sequence[Any]) -> tf.Tensor:
    return numerics.norm([numerics.values(gradient) for gradient in gradients])
