"""OpenSeq2Seq's `optimize_loss`: makes a training step from a loss in one call."""

import contextlib
from collections.abc import Callable, Mapping, Sequence

import keras
import numpy as np
import tensorflow as tf

from tf_graft.core import checks, patterns
from tf_graft.core.optimizer import Optimizer
from tf_graft.core.pipeline import matching
from tf_graft.core.state.parameters import paths
from tf_graft.core.types import Config, TensorLike, VariableLike
from tf_graft.openseq2seq import larc, optimizers
from tf_graft.openseq2seq import summaries as metrics
from tf_graft.openseq2seq.train_step import Aggregate, TrainStep
from tf_graft.scaling import AutomaticLossScaler, LossScaler, MixedPrecision
from tf_graft.wrappers import LARC

DTYPES = ("mixed", "float32", "float16", "bfloat16", "float64")


def optimize_loss(
    loss: Callable[..., TensorLike],
    variables: keras.Model | Sequence[VariableLike],
    optimizer: optimizers.Identifier,
    optimizer_params: Mapping[str, object] | None = None,
    learning_rate_decay_fn: float | Callable[[tf.Tensor], TensorLike] | None = None,
    dtype: str | tf.DType | type = "float32",
    clip_gradients: float | None = None,
    summaries: Sequence[str] | None = None,
    larc_params: Mapping[str, object] | None = None,
    loss_scaling: float | str | LossScaler = 1.0,
    loss_scaling_params: Mapping[str, object] | None = None,
    iter_size: int = 1,
    freeze_variables_regex: str | None = None,
    aggregate: Aggregate | None = None,
) -> TrainStep:
    """Makes a compiled training step that minimizes a loss, from OpenSeq2Seq's arguments.

    ```
    value, metrics = step(*batch)
    value = loss(*batch), before the update
    variables <- optimizer(variables, clip or LARC(mean over replicas and micro-steps of gradients))
    ```

    Differences from OpenSeq2Seq's: `loss` is a function, not a tensor, and the result is a
    function. Repeated rows are summed before clipping; all summaries accept scalars and missing
    gradients; `optimizer_params` is not modified; a fixed scale may be an int, and steps that
    overflow are skipped under it too; the first update of an accumulation has all its micro-steps.

    Under a `tf.distribute` strategy, call the step from outside the replicas with a batch of a
    distributed data set. Each replica computes the loss of its part, and the gradients are averaged
    over the replicas, as with `on_horovod=True`. To continue with Horovod, pass `aggregate`.

    Args:
        loss: takes a batch and returns a scalar, computed from tensors, without `fit`'s metrics.
            It must add `get_regularization_loss(model)` itself.
        variables: the variables to train: a list, or a model for its trainable variables.
        optimizer: `"Adagrad"`, `"Adam"`, `"AdamW"`, `"Ftrl"`, `"Momentum"`, `"NovoGrad"`,
            `"RMSProp"` or `"SGD"`, as they were in TensorFlow 1; the name of another class of
            tf_graft or Keras (`"LARS"`); a class; or an optimizer.
        optimizer_params: the optimizer's arguments, under their names in TensorFlow 1 or in Keras.
            For `"AdamW"`, `weight_decay` is multiplied by the learning rate. None if `optimizer` is
            an instance.
        learning_rate_decay_fn: the learning rate: a function of the number of updates made so far,
            a schedule or a number. None only with an optimizer, which then keeps its own.
        dtype: `"mixed"` for loss scaling, or a float dtype for none. Whether there are float32
            masters depends on the dtype of `variables`, not on this argument.
        clip_gradients: the largest global norm, above 0, or None. Not together with `larc_params`.
        summaries: the metrics: some of `"learning_rate"`, `"gradients"`, `"gradient_norm"`,
            `"global_gradient_norm"`, `"variables"`, `"variable_norm"`, `"larc_summaries"`,
            `"loss_scale"`. None for the learning rate, the global norm and the loss scale. They are
            returned, and written to the default `tf.summary` writer; without TensorBoard a warning
            says what to install.
        larc_params: `{"larc_eta": float, "larc_mode": "clip" | "scale", "min_update": float,
            "epsilon": float}`, of which `larc_eta` is required, or None.
        loss_scaling: with `dtype="mixed"`, a number, `"Backoff"`, `"LogMax"` or a scaler of
            `tf_graft.scaling`. Default 1.0.
        loss_scaling_params: arguments of `"Backoff"` or `"LogMax"`.
        iter_size: micro-steps per update, at least 1. The learning rate's step counts updates.
        freeze_variables_regex: variables whose path begins with a match are not trained.
        aggregate: takes a replica's gradients (a list of float32 or float64 tensors,
            `tf.IndexedSlices` or None, still multiplied by the loss scale) and returns those to
            use, such as their mean over Horovod's workers. All workers must get the same result.

    Returns:
        A `TrainStep`: called with a batch, returns the loss and a dict of metrics.

    Raises:
        AttributeError: both `clip_gradients` and `larc_params` are given.
        TypeError: an argument has the wrong type, or there is no learning rate.
        ValueError: a name is unknown, or an argument is out of range; the message names it.

    Row-sparse gradients: as in the optimizer; `"Adam"` and `"AdamW"` move all rows, as in
    TensorFlow 1, unless `optimizer_params` has `"sparse": "lazy"`.

    Example:
        >>> w = tf.Variable([1.0, 2.0], name="w")
        >>> step = optimize_loss(
        ...     lambda x: tf.reduce_sum(w * x), [w], "SGD", learning_rate_decay_fn=lambda t: 0.5
        ... )
        >>> value, metrics = step(tf.constant([3.0, 4.0]))
        >>> float(value), w.numpy().tolist(), float(metrics["global_gradient_norm"])
        (11.0, [-0.5, 0.0], 5.0)

    Reference:
        NVIDIA's OpenSeq2Seq, `optimizers.optimize_loss` (arXiv 1805.10387).
    """
    wanted = metrics.checked(summaries)
    if clip_gradients is not None and larc_params is not None:
        raise AttributeError("LARC and gradient norm clipping should not be used together")
    _refuse_no_functions(loss=loss, aggregate=aggregate)
    _refuse_no_dicts(optimizer_params=optimizer_params, larc_params=larc_params)
    scaler = _scaler(loss_scaling, loss_scaling_params)
    common = _common(clip_gradients, iter_size)
    made = _optimizer(
        *(optimizer, optimizer_params, learning_rate_decay_fn),
        *(common, larc_params, scaler if _mixed(dtype) else None),
    )
    trained, models = _variables(variables, freeze_variables_regex)
    return TrainStep(loss, trained, made, wanted, aggregate, models)


def get_regularization_loss(model: keras.Model) -> tf.Tensor:
    """Sums a model's penalties in float32; 0 for a model without penalties.

    The sum excludes half-precision weights with a `tf_graft.scaling.MasterRegularizer`: the
    optimizer computes their penalties.

    Args:
        model: a Keras model; penalties of activities are those of its last call.

    Returns:
        A float32 scalar.

    Example:
        >>> layer = keras.layers.Dense(1, kernel_initializer="ones", kernel_regularizer="l2")
        >>> model = keras.Sequential([keras.Input([3]), layer])
        >>> round(float(get_regularization_loss(model)), 6)  # 0.01 * (1 + 1 + 1)
        0.03
    """
    checks.instance("get_regularization_loss", "model", model, keras.Model)
    return tf.add_n([tf.zeros([]), *(tf.cast(loss, tf.float32) for loss in model.losses)])


def _refuse_no_functions(loss: object, aggregate: object) -> None:
    for name, given in (("loss", loss), ("aggregate", aggregate)):
        if not callable(given) and (name == "loss" or given is not None):
            raise TypeError(
                f"optimize_loss({name}={checks.shown(given)}): {name} must be a function."
            )


def _refuse_no_dicts(**params: object) -> None:
    for name, given in params.items():
        if not isinstance(given, Mapping | None):
            raise TypeError(f"optimize_loss({name}={checks.shown(given)}): {name} must be a dict.")


def _mixed(dtype: str | tf.DType | type) -> bool:
    if isinstance(dtype, tf.DType | np.dtype | type):
        with contextlib.suppress(TypeError):
            dtype = tf.as_dtype(dtype).name
    return bool(checks.choice("optimize_loss", "dtype", dtype, DTYPES) == "mixed")


def _scaler(
    loss_scaling: float | str | LossScaler, params: Mapping[str, object] | None
) -> float | LossScaler:
    if isinstance(loss_scaling, str):
        return AutomaticLossScaler(loss_scaling, params)
    if params:
        raise ValueError(
            f"optimize_loss(loss_scaling={checks.shown(loss_scaling)}, loss_scaling_params="
            f"{checks.shown(params)}): only "
            "'Backoff' and 'LogMax' take parameters."
        )
    return loss_scaling


def _common(clip_gradients: float | None, iter_size: int) -> Config:
    given: Config = {}
    name = "clip_gradients"
    if clip_gradients is not None:
        norm = checks.number("optimize_loss", name, clip_gradients, 0, open_low=True)
        given["global_clipnorm"] = norm
    if checks.integer("optimize_loss", "iter_size", iter_size, 1) != 1:
        given["gradient_accumulation_steps"] = iter_size
    return given


def _optimizer(
    optimizer: optimizers.Identifier,
    params: Mapping[str, object] | None,
    decay: object,
    common: Config,
    larc_params: Mapping[str, object] | None,
    scaler: float | LossScaler | None,
) -> Optimizer:
    """Makes the optimizer, within LARC and MixedPrecision if these are asked for."""
    around = None if larc_params is None else larc.arguments(larc_params)
    given = isinstance(optimizer, keras.optimizers.Optimizer)
    if given and isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        raise TypeError(
            f"optimize_loss(optimizer={type(optimizer).__name__}(...)): what scales the loss comes "
            "from loss_scaling, with dtype='mixed'; give the optimizer in it."
        )
    inner_takes = {} if around is not None else common
    made = optimizers.build(optimizer, params, decay, inner_takes)
    if around is not None:
        made = LARC(made, **around, **common)
    elif given and common and scaler is None:
        return MixedPrecision(made, 1.0, **common)  # lifts the optimizer's own arguments
    if scaler is None:
        return made
    return MixedPrecision(made, scaler, **(common if given and around is None else {}))


def _variables(
    given: keras.Model | Sequence[VariableLike], freeze: str | None
) -> tuple[list[VariableLike], list[keras.Model]]:
    """Returns the variables to train, and the models that they are known to be of."""
    variables, models = matching.variables_and_models("optimize_loss", given)
    if freeze is not None:
        checks.patterns("optimize_loss", "freeze_variables_regex", [freeze])
        named = zip(paths(variables), variables, strict=True)
        variables = [variable for path, variable in named if not patterns.found(freeze, path, True)]
    if not variables:
        raise ValueError("optimize_loss: no variable is left to train.")
    return variables, models
