"""The metrics of a step of `optimize_loss`, returned and written to TensorBoard."""

import warnings
from collections.abc import Sequence

import keras
import tensorflow as tf

from tf_graft.core import checks, keras_contract, tensorboard
from tf_graft.core.optimizer import Optimizer
from tf_graft.core.pipeline import clipping
from tf_graft.core.pipeline.update import Update
from tf_graft.core.places import replicas
from tf_graft.core.state import slots
from tf_graft.core.state.parameters import Parameter
from tf_graft.core.state.slots import Slot
from tf_graft.core.state.write import part_of, put
from tf_graft.core.tensors import numerics, rows
from tf_graft.core.types import Gradient, Scalar, VariableLike
from tf_graft.wrappers import LARC

NAMES = (
    *("learning_rate", "gradients", "gradient_norm", "global_gradient_norm", "variables"),
    *("variable_norm", "larc_summaries", "loss_scale"),
)
DEFAULT = ("learning_rate", "global_gradient_norm", "loss_scale")
LARC_SUMMARIES = ("larc_clip_on", "larc_grad_update", "larc_final_lr")
SCALAR = Slot(shape="scalar", dtype="float32")


def checked(names: Sequence[str] | None) -> tuple[str, ...]:
    """Returns the requested summaries; the default ones for None.

    Raises:
        ValueError: there is no summary of that name.
    """
    if names is None:
        return DEFAULT
    listed = "optimize_loss(summaries={}): summaries must be a list of names."
    names = [names] if isinstance(names, str) else checks.listed(listed, names)
    for name in names:
        if name not in NAMES:
            raise ValueError(
                f"optimize_loss(summaries={checks.shown(names)}): Summaries should be one of "
                f"[{', '.join(NAMES)}], you provided {name}."
            )
    return tuple(names)


class Summaries:
    """Computes the metrics of a step.

    Metrics of gradients are those of an update: of all replicas and micro-steps, unscaled. They
    are kept in variables until the next update.

    Args:
        names: some of `NAMES`.
        optimizer: a built optimizer, which calls back with its gradients.
        variables: the variables that the optimizer was built for, by path.
        larc: the LARC nested in it, or None.
    """

    def __init__(
        self,
        names: Sequence[str],
        optimizer: Optimizer,
        variables: dict[str, VariableLike],
        larc: LARC | None,
    ):
        self._names, self._optimizer, self._variables = names, optimizer, variables
        self._larc = larc if "larc_summaries" in names else None
        self._clips = optimizer.clipvalue, optimizer.clipnorm, optimizer.global_clipnorm
        self._kept: dict[str, keras.Variable] = {}
        self._given = set(variables)
        self._told: dict[str, None] = {}  # the names that the traced step has gradients for
        strategy = replicas.strategy_of([*variables.values()])
        with replicas.outside_functions(), replicas.creating_under(strategy):
            self._make()
        if self._kept:
            optimizer.engine.watch(self._watch)

    @tf.autograph.experimental.do_not_convert
    def before(self) -> dict[str, tf.Tensor]:
        """Computes the metrics that do not depend on gradients, before the step."""
        found: dict[str, tf.Tensor] = {}
        if "learning_rate" in self._names:
            found["learning_rate"] = tf.cast(self._optimizer.learning_rate, tf.float32)
        if "loss_scale" in self._names:
            scales = isinstance(self._optimizer, keras_contract.ScalesLoss)
            found["loss_scale"] = self._optimizer.loss_scale() if scales else tf.ones([])
        for path, variable in self._variables.items():
            value = tf.convert_to_tensor(variable)  # reads now; `tf.cast` may read later
            value = tf.cast(value, numerics.compute_dtype(value.dtype))
            if "variables" in self._names:
                found[f"variables/{path}"] = value
            if "variable_norm" in self._names:
                found[f"variable_norm/{path}"] = tf.cast(numerics.norm([value]), tf.float32)
        return found

    def of(self, variables: Sequence[VariableLike]) -> None:
        """Limits the metrics of gradients to variables that have one in the traced step."""
        given = {id(variable) for variable in variables}
        self._given = {path for path, each in self._variables.items() if id(each) in given}

    @tf.autograph.experimental.do_not_convert
    def after(self) -> dict[str, tf.Tensor]:
        """Reads the metrics of the last update's gradients."""
        return {name: tf.convert_to_tensor(replicas.local(self._kept[name])) for name in self._told}

    def _make(self) -> None:
        wanted = {"global_gradient_norm": SCALAR} if "global_gradient_norm" in self._names else {}
        if wanted and any(clip is not None for clip in self._clips):
            wanted["global_clipped_gradient_norm"] = SCALAR
        for name, slot in wanted.items():
            self._kept[name] = self._created(name, slot)
        each = dict.fromkeys(LARC_SUMMARIES, SCALAR) if self._larc is not None else {}
        each |= {"gradients": Slot()} if "gradients" in self._names else {}
        each |= {"gradient_norm": SCALAR} if "gradient_norm" in self._names else {}
        for name, slot in each.items():
            for path, variable in self._variables.items():
                self._kept[f"{name}/{path}"] = self._created(f"{name}/{path}", slot, variable)

    def _created(
        self, name: str, slot: Slot, variable: VariableLike | None = None
    ) -> keras.Variable:
        dtype = "float32" if variable is None else tf.as_dtype(variable.dtype)
        dtype = numerics.compute_dtype(tf.as_dtype(dtype)).name
        return slots.create(("summaries",), name, slot, dtype, variable, self._optimizer.mesh)

    def _keep(self, name: str, value: tf.Tensor) -> None:
        if name in self._kept:
            self._told[name] = None
            put(self._kept[name], tf.cast(value, self._kept[name].dtype))

    def _watch(self, gradients: list[Gradient], parameters: list[Parameter]) -> None:
        if "global_gradient_norm" in self._kept:
            self._keep("global_gradient_norm", _norm(gradients))
        if len(self._kept) == 1:
            return
        update = Update(gradients, parameters, None, {})
        gradients = clipping.clipped(update, *self._clips).unscaled()
        if "global_clipped_gradient_norm" in self._kept:
            self._keep("global_clipped_gradient_norm", _norm(gradients))
        rule = self._optimizer.rule
        rates = {} if self._larc is None else rule.rates()
        both = zip(gradients, parameters, strict=True)
        for gradient, parameter in ((g, p) for g, p in both if p.path in self._given):
            path, values = parameter.path, numerics.values(gradient)
            if "gradient_norm" in self._names:
                self._keep(f"gradient_norm/{path}", numerics.norm([values]))
            if "gradients" in self._names:
                sparse = numerics.row_sparse(gradient)
                dense = rows.densify(gradient, parameter.rows) if sparse else values
                finite = tf.where(tf.math.is_finite(dense), dense, tf.zeros_like(dense))
                self._keep(f"gradients/{path}", finite)
            if self._larc is not None:
                touched = parameter.read(part_of(gradient, parameter.rows))
                self._keep_larc(self._larc, path, values, touched, rule.rate_of(path, rates))

    def _keep_larc(self, larc: LARC, path: str, g: tf.Tensor, w: tf.Tensor, rate: Scalar) -> None:
        """Keeps how LARC changes the learning rate of a variable."""
        lr = tf.cast(rate, g.dtype)
        ratio = larc.ratio(g, w, lr) if larc.adapts(path) else tf.ones([], g.dtype)
        on = (ratio < 1) & (larc.mode == "clip")
        for name, value in zip(LARC_SUMMARIES, (on, ratio, lr * ratio), strict=True):
            self._keep(f"{name}/{path}", value)


def write(loss: tf.Tensor, metrics: dict[str, tf.Tensor], step: tf.Tensor, made: tf.Tensor) -> None:
    """Writes the metrics of an update to the default `tf.summary` writer, if there is one.

    Args:
        loss: the loss of the step.
        metrics: scalars, and tensors for histograms.
        step: the number of updates before the step.
        made: whether the step ends an update, applied or skipped; micro-steps write nothing.
    """
    if not tensorboard.installed():
        recorded = tf.get_static_value(tf.summary.should_record_summaries())
        if recorded is None or recorded:
            missing = f"optimize_loss writes no summaries: {tensorboard.MISSING}."
            warnings.warn(missing, stacklevel=2)
        return
    with tf.summary.record_if(made):
        tf.summary.scalar("train_loss", loss, step=step)
        for name, value in metrics.items():
            if name.startswith(("gradients/", "variables/")):
                tf.summary.histogram(name, value, step=step)
            else:
                tf.summary.scalar(name, value, step=step)


def _norm(gradients: Sequence[Gradient]) -> tf.Tensor:
    return numerics.norm([numerics.values(gradient) for gradient in gradients])
