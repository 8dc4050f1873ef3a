"""Translates OpenSeq2Seq's words in a config into the runner's own."""

import inspect

from tf_graft.core.spelling import snake_case
from tf_graft.core.types import Config
from tf_graft.openseq2seq import larc
from tf_graft.openseq2seq.optimizers import NAMES
from tf_graft.schedules.lr_policy import POLICIES
from tf_graft.training.schema import OPENSEQ2SEQ as SECTION
from tf_graft.training.schema import OpenSeq2Seq
from tf_graft.training.source import Key, Source, shown


def translate(values: Config, section: OpenSeq2Seq, source: Source) -> Config:
    """Translates the section `openseq2seq` of a config into `optimizer` and `precision`.

    The learning rate follows OpenSeq2Seq's models: a decay without `decay_steps` begins after the
    warm-up and lasts to the end of the run, and boundaries of `piecewise_constant` are in epochs.

    Args:
        values: the config as it was read; not modified.
        section: the section, checked.
        source: receives the places of the new values.

    Raises:
        ConfigError: two values exclude each other, or a name is unknown.
    """
    if "optimizer" in values:
        raise source.error(("optimizer",), f"'optimizer' and '{SECTION}' exclude one another.")
    if section.max_grad_norm is not None and section.larc_params is not None:
        message = "LARC and gradient norm clipping should not be used together."
        raise source.error((SECTION, "max_grad_norm"), message)
    result = {name: value for name, value in values.items() if name != SECTION}
    result["optimizer"] = _optimizer(section, source)
    if "precision" not in result:
        policy = "mixed_float16" if section.dtype == "mixed" else section.dtype
        result["precision"] = {"policy": policy}
    _note_places(source, result["optimizer"])
    return result


def _optimizer(section: OpenSeq2Seq, source: Source) -> Config:
    optimizer = _named(section, source)
    if section.larc_params is not None:
        optimizer = {"name": "larc", "optimizer": optimizer, **_larc(section.larc_params, source)}
    if section.dtype == "mixed":
        scale: float | str | Config = section.loss_scaling
        if isinstance(scale, str):
            scale = {"name": scale.strip().lower(), **(section.loss_scaling_params or {})}
        elif section.loss_scaling_params:
            message = "only 'Backoff' and 'LogMax' take parameters."
            raise source.error((SECTION, "loss_scaling_params"), message)
        optimizer = {"name": "mixed_precision", "optimizer": optimizer, "loss_scale": scale}
    optimizer["learning_rate"] = _rate(section, source)
    if section.max_grad_norm is not None:
        optimizer["global_clipnorm"] = section.max_grad_norm
    if section.iter_size > 1:
        optimizer["gradient_accumulation_steps"] = section.iter_size
    return optimizer


def _named(section: OpenSeq2Seq, source: Source) -> Config:
    """Translates an optimizer, with TensorFlow 1's defaults; a name of ours stays."""
    named = NAMES.get(section.optimizer)
    if named is None:
        return {"name": section.optimizer, **section.optimizer_params}
    try:
        arguments = named.arguments(section.optimizer_params)
    except ValueError as error:
        message = f"{section.optimizer} {error}"
        raise source.error((SECTION, "optimizer_params"), message) from None
    flat = {"name": snake_case(named.make.__name__), **arguments}
    is_ours = named.make.__module__.startswith("tf_graft.")
    return flat if is_ours else {"name": "wrapped", "optimizer": flat}


def _larc(params: Config, source: Source) -> Config:
    for name in params:
        if name not in larc.NAMES:
            message = f"unknown parameter '{name}'; there are {', '.join(larc.NAMES)}."
            raise source.error((SECTION, "larc_params", name), message)
    if "larc_eta" not in params:
        raise source.error((SECTION, "larc_params"), "larc_eta parameter has to be specified.")
    return {larc.NAMES[name][0]: value for name, value in params.items()}


def _rate(section: OpenSeq2Seq, source: Source) -> Config:
    if section.lr_policy not in POLICIES:
        message = f"no policy '{section.lr_policy}'; there are {', '.join(POLICIES)}."
        raise source.error((SECTION, "lr_policy"), message)
    params = dict(section.lr_policy_params)
    for name, value in params.items():
        if isinstance(value, int | float) and value < 0:
            message = f"{name} is {value}; it must be at least 0."
            raise source.error((SECTION, "lr_policy_params", name), message)
    known = inspect.signature(POLICIES[section.lr_policy]).parameters
    if "decay_steps" in known and "decay_steps" not in params:
        if "begin_decay_at" in known and "warmup_steps" in known:
            params["begin_decay_at"] = _begin(params, source)
        params["decay_steps"] = "total"  # until the end, from `begin_decay_at` on
    if "steps_per_epoch" in known and "steps_per_epoch" not in params:
        params["steps_per_epoch"] = "epoch"
    return {"name": "lr_policy", "policy": section.lr_policy, "params": params}


def _begin(params: Config, source: Source) -> int | str:
    """Returns the step at which a decay until the end of the run begins, after the warm-up."""
    given = {name: params[name] for name in ("begin_decay_at", "warmup_steps") if params.get(name)}
    for name, value in given.items():
        place = (SECTION, "lr_policy_params", name)
        if value != "epoch" and not (isinstance(value, int | float) and value == int(value)):
            message = f"{name} is {shown(value)}; without decay_steps it must be a whole number or"
            raise source.error(place, f"{message} 'epoch'.")
        if value == "epoch" and len(set(given.values())) > 1:
            message = f"{name} is 'epoch'; without decay_steps, write both lengths as 'epoch' or"
            raise source.error(place, f"{message} both as numbers.")
    return "epoch" if "epoch" in given.values() else int(max(given.values(), default=0))


def _note_places(source: Source, optimizer: Config) -> None:
    """Records where in the section each argument of the optimizer comes from, for errors."""
    origins: dict[str, Key] = {
        "learning_rate": ("lr_policy_params",),
        "global_clipnorm": ("max_grad_norm",),
        "gradient_accumulation_steps": ("iter_size",),
        "loss_scale": ("loss_scaling",),
        "name": ("optimizer",),
        "optimizer": ("optimizer_params",),
    }
    for name in ("", *optimizer):
        origin = (SECTION, *origins.get(name, () if not name else ("optimizer_params", name)))
        target: Key = ("optimizer", name) if name else ("optimizer",)
        for end in range(len(origin), 0, -1):
            if origin[:end] in source.overrides:
                source.overrides[target] = source.overrides[origin[:end]]
                break
            if origin[:end] in source.lines:
                source.lines[target] = source.lines[origin[:end]]
                break
