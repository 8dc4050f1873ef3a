"""Where a config says something, and what to say there that makes no sense."""

import inspect
import json

import tf_graft as tg
from tf_graft.core.arguments import registry
from tf_graft.core.keras_contract import own_way

RUN = {
    "data": {
        "name": "digits",
        "batch_size": 64,
        "shuffle_buffer": 10,
        "train": "train[:128]",
        "test": "test[:64]",
        "sequence_length": 8,
        "vocabulary": 9,
        "image_size": 8,
    },
    "model": {"name": "mlp", "units": [4], "dropout": 0.5},
    "optimizer": {"name": "sgd", "learning_rate": 0.1},
    "precision": {"policy": "float32"},
    "run": {
        "epochs": 1,
        "seed": 3,
        "checkpoint_every": 5,
        "keep_checkpoints": 1,
        "steps_per_execution": 1,
        "jit_compile": False,
        "deterministic": True,
        "tensorboard": False,
        "progress": "none",
    },
}
COMMON = {
    "weight_decay": 0.1,
    "global_clipnorm": 1.0,
    "use_ema": True,
    "ema_momentum": 0.9,
    "ema_overwrite_frequency": 3,
    "loss_scale_factor": 2.0,
    "gradient_accumulation_steps": 2,
    "sparse": "lazy",
    "nonfinite": "skip",
    "exclude_from_weight_decay": ["bias"],
}
SGD = {"name": "sgd", "learning_rate": 0.1}
# What an optimizer cannot do without, and what its signature does not say.
NEEDED = {
    "ada_graft": {
        "magnitude_optimizer": {"name": "lion", "beta_1": 0.9},
        "direction_optimizer": SGD,
    },
    "agn": {"communication_period": 1, "num_worker": 1, "center_optimizer": SGD},
    "larc": {"optimizer": {"name": "nadam", "epsilon": 1e-7}},
    "mixed_precision": {"optimizer": {"name": "ftrl", "beta": 0.5}, "loss_scale": 8.0},
    "multi_optimizer": {"optimizers": {"kernel": SGD, ".*": {"name": "adam", "beta_1": 0.5}}},
}
# Whose rates are of a certain model; whose optimizer is one that only a user has.
WITHOUT = ("layerwise_rates", "wrapped")
RATE = {"learning_rate": 0.1}
KERAS_RATE = {"initial_learning_rate": 0.1}
SCHEDULES = [
    {"name": "fixed_lr", **RATE},
    {"name": "exp_decay", **RATE, "decay_steps": 5, "decay_rate": 0.5, "begin_decay_at": 1},
    {"name": "poly_decay", **RATE, "decay_steps": "total", "power": 2.0, "warmup_steps": 1},
    {"name": "inv_poly_decay", **RATE, "decay_steps": 5, "min_lr": 0.01, "power": 2.0},
    {"name": "noam", **RATE, "d_model": 8, "warmup_steps": 2, "coefficient": 0.5},
    {"name": "piecewise_constant", **RATE, "boundaries": [1, 2], "decay_rates": [0.5, 0.1]},
    {"name": "lr_policy", "policy": "fixed_lr", "params": RATE},
    {"name": "warmup", "schedule": {"name": "fixed_lr", **RATE}, "steps": 2, "shift": True},
    {"name": "cosine_decay", **KERAS_RATE, "decay_steps": 5, "alpha": 0.1, "warmup_steps": 1},
    {"name": "cosine_decay_restarts", **KERAS_RATE, "first_decay_steps": 5, "t_mul": 2.0},
    {"name": "exponential_decay", **KERAS_RATE, "decay_steps": 5, "decay_rate": 0.5},
    {"name": "inverse_time_decay", **KERAS_RATE, "decay_steps": 5, "decay_rate": 0.5},
    {"name": "piecewise_constant_decay", "boundaries": [1, 2], "values": [1.0, 0.5, 0.2]},
    {"name": "polynomial_decay", **KERAS_RATE, "decay_steps": 5, "power": 2.0, "cycle": True},
    {"name": "one_cycle", "max_lr": 0.1, "total_steps": 9, "anneal": "linear"},
    {
        **{"name": "cyclical", "base_lr": 0.1, "max_lr": 0.2, "step_size_up": 2},
        **{"mode": "exp_range", "gamma": 0.9},
    },
    {"name": "cosine_restarts", **RATE, "first_decay_steps": 3, "t_mul": 3, "m_mul": 0.5},
    {"name": "warmup_stable_decay", **RATE, "total_steps": 9, "decay_steps": 4, "shape": "cosine"},
    {"name": "power_decay", **RATE, "power": -0.5, "offset": 2, "max_lr": 0.3},
    {"name": "power_linear_decay", **RATE, "decay_steps": 7, "linear_fraction": 0.2},
    {"name": "step_cosine", "boundaries": [2, 4], "values": [0.3, 0.1], "offset": 3},
    {"name": "sequence", "schedules": [0.1, {"name": "fixed_lr", **RATE}], "milestones": [3]},
]
SCALERS = [
    {"name": "fixed", "loss_scale": 8.0},
    {"name": "backoff", "scale_max": 64.0, "step_factor": 2.0, "step_window": 3, "hysteresis": 1},
    {"name": "logmax", "scale_max": 64.0, "beta1": 0.9, "beta2": 0.9, "overflow_std_dev": 3.0},
]
OPENSEQ2SEQ = {
    "optimizer": "Momentum",
    "optimizer_params": {"momentum": 0.9, "use_nesterov": True},
    "lr_policy": "poly_decay",
    "lr_policy_params": {"learning_rate": 0.1, "power": 2.0, "warmup_steps": 1},
    "dtype": "mixed",
    "loss_scaling": "Backoff",
    "loss_scaling_params": {"scale_max": 64.0, "step_window": 3},
    "max_grad_norm": 1.0,
    "iter_size": 2,
}

# Refused wherever they stand.
ALWAYS = (
    *(".nan", ".inf", "-.inf", "1e39", "-1e39", "1e400", "1e-300", "1" + "0" * 400),
    *("010", "0x10", "0o17", "!!int 1", "&a 1", "*a", "{a: 1, a: 2}", "[1", "{a: .nan}"),
    *('"${oc.env:HOME}"', '"\\0"', '"\\ud800"', "[" * 40 + "]" * 40, "{module: os}", "{[a]: 1}"),
)
NUMBER = ("-1", "true", "text", "yes", "1:30", "2020-01-01", "???", "'1'", "[1]", "{a: 1}", "''")
TEXT = ("3", "true", "[a]", "{a: 1}", "'1'", "''", "'../x y'", "os.system", "__class__")
KINDS = {
    float: NUMBER,
    int: (*NUMBER, "0.5"),
    bool: ("0", "1", "1.0", "text", "yes", "'true'", "[true]", "{a: 1}", "''"),
    str: TEXT,
    list: ("3", "text", "true", "{a: 1}", "[{a: 1}]", "[[1]]", "[true]", "[-1]"),
    dict: ("3", "text", "true", "[1]", "[{a: 1}]", "{a: 1}", "{name: 3}", "''"),
}
NAMES = (
    *("Optimizer", "object", "LossScaleOptimizer", "multi_optimizer", "tf_graft>Nope", "' adam'"),
    *("keras.optimizers.Adam", "tf_graft>Wrapper", "Pipeline", "LearningRateSchedule", "~", "-1"),
)
PATTERNS = ("''", "'../x y'", "os.system", "__class__")
# What makes sense all the same: (the end of a place, the text).
MEANT = {
    *((name, "-1") for name in ("learning_rate_power", "beta_2_decay", "log_max")),
    ("adam_lr_ratio", "0.5"),
    ("first_decay_steps", "0.5"),  # Keras' schedules count in fractions of steps, too
    *((name, "3") for name in ("loss_scale", "learning_rate", "schedule", "decay_steps")),
    *(("exclude_from_weight_decay.0", text) for text in PATTERNS),
    *(("exclude_layers.0", text) for text in PATTERNS),
}


def bases():
    """Complete configs that can be run, by name: every optimizer, schedule and scaler."""
    yield "run", RUN
    yield "common", RUN | {"optimizer": SGD | COMMON}
    keras_own = (
        name
        for name in registry.KERAS.names()
        if not own_way(registry.KERAS.get(name)) and registry.find(name) is registry.KERAS.get(name)
    )
    for name in (*tg.list_optimizers(), *keras_own):
        if name not in WITHOUT:
            yield name, RUN | {"optimizer": _optimizer(name)}
    for schedule in SCHEDULES:
        yield schedule["name"], RUN | {"optimizer": {"name": "adam", "learning_rate": schedule}}
    for scaler in SCALERS:
        optimizer = {"name": "mixed_precision", "optimizer": SGD, "loss_scale": scaler}
        yield f"scaler {scaler['name']}", RUN | {"optimizer": optimizer}
    without = {key: value for key, value in RUN.items() if key not in ("optimizer", "precision")}
    yield "openseq2seq", without | {"openseq2seq": OPENSEQ2SEQ}
    yield "mirrored", RUN | {"strategy": {"name": "mirrored", "devices": 2}}
    layouts = {"kernel": [None, "model"], "bias": ["model"]}
    yield "mesh", RUN | {"mesh": {"batch": 2, "model": 2, "layouts": layouts}}


def _optimizer(name):
    """A section with everything an optimizer's signature gives a number or a truth value for."""
    parameters = inspect.signature(registry.find(name)).parameters
    own = {k: p.default for k, p in parameters.items() if isinstance(p.default, int | float | str)}
    own = {k: v for k, v in own.items() if k not in tg.algorithm.Common.__annotations__}
    inner = {"optimizer": SGD} if "optimizer" in parameters else {}
    return {"name": name, **inner, **own, **NEEDED.get(name, {})}


def places(values, key=()):
    """Every key of a config, sections and lists included, with its value."""
    named = values.items() if isinstance(values, dict) else enumerate(values)
    for name, value in named:
        yield (*key, name), value
        if isinstance(value, dict | list):
            yield from places(value, (*key, name))


def kinds(key, value):
    """What to write in a place."""
    if value is None:
        return
    named = key[-1] in ("name", "optimizer", "lr_policy", "policy") and isinstance(value, str)
    own = KINDS[type(value)] + (NAMES if named else ())
    place = ".".join(map(str, key))
    yield from (
        text
        for text in (*ALWAYS, *own)
        if not any(place.endswith(end) and text == meant for end, meant in MEANT)
    )


def written(values, key, text):
    """The config as a file, with the text in a place."""
    copy = json.loads(json.dumps(values))
    inner = copy
    for name in key[:-1]:
        inner = inner[name]
    inner[key[-1]] = "@"
    return json.dumps(copy, indent=1).replace('"@"', text)
