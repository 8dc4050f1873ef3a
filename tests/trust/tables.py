"""Every class with arguments: what it is made with, and what each argument must not be."""

from typing import Any

import keras

import tf_graft
from tf_graft.compose.of_keras import Wrapped
from trust.nonsense import (
    ABOVE_ONE,
    AXES,
    BETA,
    BOOLEAN,
    BOUNDARIES,
    CHOICE,
    CHOICE_OR_NONE,
    COEFFICIENTS,
    COUNT,
    FROM_ONE,
    FROM_TWO,
    INSIDE,
    MESH,
    MULTIPLIERS,
    NAME,
    NO_FINITE,
    NO_NUMBERS,
    NO_RATES,
    NOT_NEGATIVE,
    NOTHING,
    OPTIMIZER,
    PATTERNS,
    POSITIVE,
    RATE,
    RATES,
    SCALE,
    SCALER,
    TINY,
    UNIT,
    Values,
    each_in,
)

# Of an argument that may be a schedule: schedules whose first value is out of any range.
IN_TIME = {name: value for name, value in RATE.items() if name.startswith("a schedule")}
GROUPS: Values = {
    **{"no dict": ["sgd"], "an empty dict": {}, "None": None, "a text": "sgd", "a number": 3},
    **{"no text": {3: "sgd"}, "no expression": {"(": "sgd"}},
}
COMMON: dict[str, Values] = {
    "weight_decay": NOT_NEGATIVE | IN_TIME,
    "clipnorm": POSITIVE,
    "clipvalue": POSITIVE,
    "global_clipnorm": POSITIVE,
    "use_ema": BOOLEAN
    | {"no averages": {"name": "mean"}, "a period of 0": {"name": "swa", "period": 0}},
    "ema_momentum": BETA | NOTHING,
    "ema_overwrite_frequency": FROM_ONE,
    "loss_scale_factor": POSITIVE,
    "gradient_accumulation_steps": FROM_TWO,
    "name": NAME,
    "mesh": MESH,
    "jit_compile": CHOICE,
    "sparse": CHOICE,
    "nonfinite": CHOICE,
    "exclude_from_weight_decay": PATTERNS,
    "weight_decay_mode": CHOICE_OR_NONE
    | {"a rate of 0": {"name": "corrected_decay", "max_learning_rate": 0}},
    "learning_rate_multipliers": MULTIPLIERS,
    "count_rows": MULTIPLIERS,
    "clip_rows": MULTIPLIERS,
    "state_dtype": CHOICE_OR_NONE,
    "master_weights": BOOLEAN,
}
ADAM = {"beta_1": BETA | IN_TIME, "beta_2": BETA, "epsilon": POSITIVE, "amsgrad": BOOLEAN}
WEIGHTING = {"r": NOT_NEGATIVE, "weight_lr_power": NOT_NEGATIVE}
LAYERWISE = {"weight_decay_rate": NOT_NEGATIVE, "exclude_from_layer_adaptation": PATTERNS}
OWN_RATE = {"learning_rate": RATE | NOTHING}
# Of each class: what it is made with, and what of its arguments makes no sense.
MUON = {
    **{"momentum": BETA | IN_TIME, "nesterov": BOOLEAN, "scale": CHOICE, "ns_steps": FROM_ONE},
    **{"ns_coefficients": COEFFICIENTS, "epsilon": POSITIVE, "others": OPTIMIZER},
    **{"axes": AXES, "heads": CHOICE, "divide": BOOLEAN, "ns_dtype": CHOICE_OR_NONE},
}
OPTIMIZERS: dict[type, tuple[dict[str, Any], dict[str, Values]]] = {
    tf_graft.SGD: ({}, OWN_RATE | {"momentum": UNIT | IN_TIME, "nesterov": BOOLEAN}),
    tf_graft.Momentum: ({}, OWN_RATE | {"momentum": UNIT | IN_TIME, "use_nesterov": BOOLEAN}),
    tf_graft.Adagrad: (
        {},
        OWN_RATE | {"initial_accumulator_value": NOT_NEGATIVE, "epsilon": POSITIVE},
    ),
    tf_graft.Adadelta: ({}, OWN_RATE | {"rho": UNIT, "epsilon": POSITIVE}),
    tf_graft.RMSprop: (
        {"momentum": 0.5},
        OWN_RATE
        | {"rho": UNIT, "momentum": UNIT | IN_TIME, "epsilon": POSITIVE, "centered": BOOLEAN}
        | {"initial_velocity": NOT_NEGATIVE},
    ),
    tf_graft.Adam: ({}, OWN_RATE | ADAM),
    tf_graft.AdamW: ({}, OWN_RATE | ADAM | {"weight_decay": NOT_NEGATIVE | NOTHING}),
    tf_graft.Lion: ({}, OWN_RATE | {k: ADAM[k] for k in ("beta_1", "beta_2")}),
    tf_graft.RAdam: (
        {},
        OWN_RATE
        | {k: ADAM[k] for k in ("beta_1", "beta_2", "epsilon")}
        | {"threshold": POSITIVE | {"3.9": 3.9}},
    ),
    tf_graft.AdaBelief: (
        {},
        OWN_RATE
        | {k: ADAM[k] for k in ("beta_1", "beta_2", "epsilon")}
        | {"epsilon_root": NOT_NEGATIVE},
    ),
    tf_graft.AdEMAMix: (
        {},
        OWN_RATE
        | {"beta_1": INSIDE, "beta_2": BETA, "beta_3": INSIDE, "epsilon": POSITIVE}
        | {"alpha": NOT_NEGATIVE, "beta_3_warmup": FROM_ONE, "alpha_warmup": FROM_ONE},
    ),
    tf_graft.Muon: ({}, OWN_RATE | MUON),
    tf_graft.NorMuon: ({}, OWN_RATE | MUON | {"beta_2": BETA}),
    tf_graft.Shampoo: (
        {},
        OWN_RATE
        | {"beta_1": BETA, "beta_2": UNIT, "epsilon": POSITIVE, "relative_epsilon": BOOLEAN}
        | {"exponent": POSITIVE, "sides": CHOICE, "precondition_frequency": FROM_ONE}
        | {"start": FROM_ONE, "block_size": FROM_ONE, "others": OPTIMIZER}
        | {"axes": AXES, "heads": CHOICE, "divide": BOOLEAN, "spread": BOOLEAN},
    ),
    tf_graft.SOAP: (
        {},
        OWN_RATE
        | {"beta_1": BETA, "beta_2": BETA, "shampoo_beta": BETA, "epsilon": POSITIVE}
        | {"precondition_frequency": FROM_ONE, "max_size": FROM_ONE, "others": OPTIMIZER}
        | {"axes": AXES, "heads": CHOICE, "divide": BOOLEAN, "spread": BOOLEAN},
    ),
    tf_graft.KLShampoo: (
        {},
        OWN_RATE
        | {"beta_1": BETA, "beta_2": BETA, "epsilon": POSITIVE, "relative_epsilon": BOOLEAN}
        | {"exponent": POSITIVE, "precondition_frequency": FROM_ONE}
        | {"start": FROM_ONE, "block_size": FROM_ONE, "others": OPTIMIZER}
        | {"axes": AXES, "heads": CHOICE, "divide": BOOLEAN, "spread": BOOLEAN},
    ),
    tf_graft.KLSOAP: (
        {},
        OWN_RATE
        | {"beta_1": BETA, "beta_2": BETA, "shampoo_beta": BETA, "shampoo_epsilon": POSITIVE}
        | {"epsilon": POSITIVE, "precondition_frequency": FROM_ONE, "max_size": FROM_ONE}
        | {"others": OPTIMIZER, "axes": AXES, "heads": CHOICE}
        | {"divide": BOOLEAN, "spread": BOOLEAN},
    ),
    tf_graft.SOAPMuon: (
        {},
        OWN_RATE
        | {"beta_1": BETA, "beta_2": BETA, "shampoo_beta": BETA}
        | {"precondition_frequency": FROM_ONE, "max_size": FROM_ONE, "spread": BOOLEAN}
        | {name: x for name, x in MUON.items() if name not in ("momentum", "nesterov")},
    ),
    tf_graft.NAdam: (
        {},
        OWN_RATE
        | {k: ADAM[k] for k in ("beta_1", "beta_2", "epsilon")}
        | {"momentum_decay": NOT_NEGATIVE},
    ),
    tf_graft.NAdamW: (
        {},
        OWN_RATE
        | {k: ADAM[k] for k in ("beta_1", "beta_2", "epsilon")}
        | {"weight_decay": NOT_NEGATIVE | NOTHING},
    ),
    tf_graft.Adamax: ({}, OWN_RATE | {k: ADAM[k] for k in ("beta_1", "beta_2", "epsilon")}),
    tf_graft.Adan: (
        {},
        OWN_RATE
        | {"beta_1": BETA, "beta_2": BETA, "beta_3": BETA, "epsilon": POSITIVE}
        | {"no_prox": BOOLEAN},
    ),
    tf_graft.Yogi: (
        {},
        OWN_RATE
        | {k: ADAM[k] for k in ("beta_1", "beta_2", "epsilon")}
        | {"initial_accumulator_value": NOT_NEGATIVE, "epsilon_hat": BOOLEAN},
    ),
    tf_graft.ADOPT: (
        {},
        OWN_RATE | {k: ADAM[k] for k in ("beta_1", "beta_2", "epsilon")} | {"clips": BOOLEAN},
    ),
    tf_graft.RowWiseAdagrad: (
        {},
        OWN_RATE | {"initial_accumulator_value": NOT_NEGATIVE, "epsilon": POSITIVE},
    ),
    tf_graft.RowWiseAdam: (
        {},
        OWN_RATE | {k: ADAM[k] for k in ("beta_1", "beta_2", "epsilon")},
    ),
    tf_graft.Ftrl: (
        {},
        OWN_RATE
        | {"learning_rate_power": NO_NUMBERS | NO_FINITE | NOTHING | {"0.5": 0.5, "-2": -2}}
        | dict.fromkeys(("initial_accumulator_value", "beta"), NOT_NEGATIVE)
        | {
            f"{kind}_regularization_strength": NOT_NEGATIVE for kind in ("l1", "l2", "l2_shrinkage")
        },
    ),
    tf_graft.Adafactor: (
        {},
        OWN_RATE
        | dict.fromkeys(("epsilon_1", "epsilon_2", "clip_threshold"), POSITIVE)
        | {"beta_1": BETA, "min_dim_size_to_factor": FROM_ONE, "relative_step": BOOLEAN}
        | {"multiply_by_parameter_scale": BOOLEAN, "factored_axes": CHOICE}
        | {"beta_2_decay": NO_NUMBERS | NO_FINITE | TINY | NOTHING | {"0": 0, "1": 1}},
    ),
    tf_graft.MARS: (
        {},
        OWN_RATE
        | {k: ADAM[k] for k in ("beta_1", "beta_2", "epsilon")}
        | {"gamma": NOT_NEGATIVE, "optimize_1d": BOOLEAN, "beta_1_1d": BETA, "beta_2_1d": BETA}
        | {"mars_type": CHOICE},
    ),
    tf_graft.Prodigy: (
        {},
        OWN_RATE
        | {k: ADAM[k] for k in ("beta_1", "beta_2", "epsilon")}
        | {"d0": POSITIVE, "d_coef": POSITIVE, "use_bias_correction": BOOLEAN}
        | {"safeguard_warmup": BOOLEAN, "decouple": BOOLEAN, "beta_3": BETA}
        | {"growth_rate": POSITIVE | {"0.5": 0.5}},
    ),
    tf_graft.SGDSaI: ({}, OWN_RATE | {"momentum": BETA, "epsilon": POSITIVE}),
    tf_graft.COCOB: ({}, OWN_RATE | {"alpha": POSITIVE}),
    tf_graft.ScheduleFreeSGD: (
        {},
        OWN_RATE | {"momentum": BETA, "warmup_steps": COUNT} | WEIGHTING,
    ),
    tf_graft.ScheduleFreeAdamW: (
        {},
        OWN_RATE
        | {"beta_1": BETA, "beta_2": BETA, "epsilon": POSITIVE, "warmup_steps": COUNT}
        | WEIGHTING,
    ),
    tf_graft.ScheduleFreeRAdam: (
        {},
        OWN_RATE
        | {"beta_1": BETA, "beta_2": INSIDE | {"0.6": 0.6}, "epsilon": POSITIVE}
        | WEIGHTING
        | {"silent_sgd_phase": BOOLEAN},
    ),
    tf_graft.NovoGrad: (
        {},
        OWN_RATE
        | {"beta1": BETA, "beta2": BETA, "epsilon": POSITIVE, "grad_averaging": BOOLEAN}
        | {"weight_decay": NOT_NEGATIVE | NOTHING},
    ),
    tf_graft.LARS: (
        {},
        OWN_RATE
        | LAYERWISE
        | {
            "momentum": UNIT | IN_TIME,
            "eeta": POSITIVE,
            "epsilon": NOT_NEGATIVE,
            "nesterov": BOOLEAN,
        }
        | {"classic_momentum": BOOLEAN, "sum_of_norms": BOOLEAN},
    ),
    tf_graft.LAMB: ({}, OWN_RATE | LAYERWISE | {k: ADAM[k] for k in list(ADAM)[:3]}),
    tf_graft.AdaGraft: (
        {"magnitude_optimizer": "sgd", "direction_optimizer": "adam"},
        OWN_RATE
        | {"magnitude_optimizer": OPTIMIZER, "direction_optimizer": OPTIMIZER}
        | {"use_global_norm": BOOLEAN, "diagnostic": BOOLEAN},
    ),
    tf_graft.MultiOptimizer: (
        {"optimizers": {".*": "sgd"}},
        OWN_RATE | {"optimizers": {k: {".*": x} for k, x in OPTIMIZER.items()} | GROUPS},
    ),
    tf_graft.LARC: (
        {"optimizer": "sgd"},
        {"optimizer": OPTIMIZER, "learning_rate": RATE, "eta": POSITIVE, "mode": CHOICE}
        | {"min_update": UNIT, "epsilon": NOT_NEGATIVE, "exclude_from_layer_adaptation": PATTERNS},
    ),
    tf_graft.AdaptiveGradientClipping: (
        {"optimizer": "sgd"},
        {"optimizer": OPTIMIZER, "learning_rate": RATE, "clipping": POSITIVE, "epsilon": POSITIVE}
        | {"by_row": PATTERNS, "exclude_from_clipping": PATTERNS},
    ),
    tf_graft.GradientCentralization: (
        {"optimizer": "sgd"},
        {"optimizer": OPTIMIZER, "learning_rate": RATE, "exclude_from_centralization": PATTERNS},
    ),
    tf_graft.Hyperball: (
        {"optimizer": "sgd"},
        {"optimizer": OPTIMIZER, "learning_rate": RATE, "exclude_from_hyperball": PATTERNS},
    ),
    tf_graft.EMANesterov: (
        {"optimizer": "sgd"},
        {"optimizer": OPTIMIZER, "learning_rate": RATE, "momentum": BETA}
        | {"ahead": BETA | IN_TIME},
    ),
    tf_graft.RadialBrake: (
        {"optimizer": "sgd"},
        {"optimizer": OPTIMIZER, "learning_rate": RATE, "outward": UNIT, "floor": NOT_NEGATIVE}
        | {"exclude_from_brake": PATTERNS},
    ),
    tf_graft.Cautious: (
        {"optimizer": "sgd"},
        {"optimizer": OPTIMIZER, "learning_rate": RATE, "xi": NOT_NEGATIVE},
    ),
    tf_graft.AGN: (
        {"optimizer": "adam"},
        {"optimizer": OPTIMIZER, "learning_rate": RATE, "mode": CHOICE, "num_worker": FROM_ONE}
        | {"communication_period": FROM_ONE, "use_locking": BOOLEAN, "reset_local_state": BOOLEAN}
        | {"center_optimizer": {k: v for k, v in OPTIMIZER.items() if v is not None}},
    ),
    tf_graft.MixedPrecision: (
        {"optimizer": "sgd"},
        {"optimizer": OPTIMIZER, "learning_rate": RATE, "loss_scale": SCALER},
    ),
    tf_graft.LayerwiseRates: (
        {"optimizer": "sgd", "rates": RATES},
        OWN_RATE | {"optimizer": OPTIMIZER, "rates": NO_RATES},
    ),
    Wrapped: (
        {"optimizer": keras.optimizers.serialize(keras.optimizers.Ftrl())},
        {"optimizer": OPTIMIZER, "learning_rate": RATE},
    ),
}
# What else holds its arguments: schedules and loss scalers.
WHOLE: dict[str, Values] = {"decay_steps": FROM_ONE, "begin_decay_at": COUNT, "warmup_steps": COUNT}
NUMBER = NOT_NEGATIVE | NOTHING
# What is computed with in float64 may be as small or large as it can hold.
WIDE = {*TINY, *("1e39", "1e300", "1 in float32", "above 1 - 2^-25")}
FLOAT64, ANY_SIZE, WIDE_BETA = (
    {k: v for k, v in values.items() if k not in WIDE} for values in (POSITIVE, NOT_NEGATIVE, BETA)
)
schedules, scaling = tf_graft.schedules, tf_graft.scaling
POLY = {"learning_rate": 0.5, "decay_steps": 4}
HOLDERS: dict[type, tuple[dict[str, Any], dict[str, Values]]] = {
    schedules.FixedLR: ({"learning_rate": 0.5}, {"learning_rate": NUMBER}),
    schedules.PolyDecay: (
        POLY,
        WHOLE
        | {"learning_rate": NUMBER, "power": FLOAT64}
        | {"min_lr": ANY_SIZE | {"above the rate": 0.6}},
    ),
    schedules.InvPolyDecay: (
        {**POLY, "min_lr": 0.25},
        WHOLE
        | {"learning_rate": POSITIVE, "power": FLOAT64}
        | {"min_lr": FLOAT64 | {"above the rate": 0.6}},
    ),
    schedules.ExpDecay: (
        {**POLY, "decay_rate": 0.5},
        {"learning_rate": NUMBER, "decay_steps": FROM_ONE, "begin_decay_at": COUNT}
        | {"decay_rate": FLOAT64 | {"1.5": 1.5}, "staircase": BOOLEAN}
        | {"min_lr": ANY_SIZE | {"above the rate": 0.6}},
    ),
    schedules.PiecewiseConstant: (
        {"learning_rate": 0.5, "boundaries": [1, 2], "decay_rates": [0.5, 0.25]},
        {"learning_rate": NUMBER, "steps_per_epoch": FROM_ONE | {"2^53": 2**53}}
        | {
            "boundaries": BOUNDARIES,
            "decay_rates": each_in(NOT_NEGATIVE, 0.5)
            | {"one": [0.5], "products above float32": [3e38, 1e30 * 1e9]},
        },
    ),
    schedules.TransformerSchedule: (
        {"d_model": 4, "warmup_steps": 4},
        {"learning_rate": NUMBER, "d_model": FROM_ONE, "warmup_steps": COUNT, "max_lr": POSITIVE}
        | {"coefficient": NUMBER},
    ),
    schedules.Warmup: (
        {"schedule": 0.5, "steps": 4},
        {"schedule": {k: v for k, v in RATE.items() if k != "a schedule of a NaN variable"}}
        | {"steps": COUNT, "shape": CHOICE, "start": UNIT, "shift": BOOLEAN},
    ),
    schedules.LrPolicy: (
        {"policy": "poly_decay", "params": POLY},
        {
            "policy": CHOICE,
            "params": {
                **{"a list": [1], "text": "a", "3": 3, "nothing": {}, "unknown": {**POLY, "q": 1}},
                **{f"{k}, a rate": {**POLY, "learning_rate": v} for k, v in NO_FINITE.items()},
                **{
                    f"{k}, a rate": {**POLY, "learning_rate": v}
                    for k, v in NO_NUMBERS.items()
                    if k != "a list"
                },
            },
        },
    ),
    scaling.FixedScaler: ({}, {"loss_scale": SCALE}),
    scaling.BackoffScaler: (
        {},
        {"scale_min": SCALE | {"above scale_max": 2.0**15}, "scale_max": SCALE}
        | {"step_factor": ABOVE_ONE, "step_window": FROM_ONE, "hysteresis": COUNT},
    ),
    scaling.LogMaxScaler: (
        {},
        {"scale_min": SCALE | {"above scale_max": 2.0**15}, "scale_max": SCALE}
        | {"log_max": NO_NUMBERS | NO_FINITE | {"129": 129, "-127": -127}}
        | {
            "beta1": WIDE_BETA,
            "beta2": WIDE_BETA,
            "overflow_std_dev": ANY_SIZE | {"2^127": 2.0**127},
        },
    ),
}
