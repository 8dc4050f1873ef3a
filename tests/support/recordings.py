"""Recorded runs of other programs that are not replayed by a test, each with the reason.

`ELSEWHERE` are held by a test in another way: their roots, factors or statistics. `OTHER` are rules
that this package does not have. `DIFFERS` are runs of a rule that is here, which
differ from it on purpose or by an error of theirs.
A key is a system, or `system/case`.
"""

import json
import os

ELSEWHERE = {
    "lr_schedulers_torch/plateau_min_abs_cooldown": "Keras' own callback is equal.",
    "lr_schedulers_torch/plateau_min_lr": "Keras' own callback is equal.",
    "lr_schedulers_torch/plateau_nan": "Keras' own callback is equal.",
    "shampoo_google/block2": "The factors of its blocks are equal.",
    "shampoo_google/eigh": "Its roots are equal; its momentum is another.",
    "shampoo_google/graft_rmsprop": "Its roots are equal; its momentum is another.",
    "shampoo_google/exponent_override4": "Its roots are equal; its momentum is another.",
    "shampoo_google/decoupled_decay": "Its roots are equal; its momentum is another.",
    "shampoo_google/graft_sgd": "Its roots are equal; its momentum is another.",
    "shampoo_google/no_nesterov_decay": "Its roots are equal; its momentum is another.",
    "shampoo_tearfree/graft_adafactor": "Its roots are equal; its momentum is another.",
    "shampoo_tearfree/graft_rmsprop": "Its roots are equal; its momentum is another.",
    "shampoo_tearfree/no_ema_decay": "Its roots are equal; its momentum is another.",
    "shampoo_tearfree/graft_none": "Its roots are equal; its momentum is another.",
    "shampoo_tearfree/block3": "Its roots are equal; its momentum is another.",
    "swa_torch/update_bn_momentum01": "The statistics are equal.",
}
OTHER = {
    "adam_mini": "Adam-mini.",
    "asgd_torch": "Averaged SGD with decaying rates.",
    "keras_tests/optimizer__overwrite_with_gradient_with_gradient_accumulation": (
        "Keras' variables that are overwritten by their gradient, for float8."
    ),
    "mars/mars_m_as_keras__ns_float64": "Muon of MARS's gradient.",
    "mars/mars_m_transposed__ns_float64": "Muon of MARS's gradient.",
    "mars/shampoo_transposed__ns_float64": "Orthogonal steps of MARS's gradient.",
    "muon_optax/adaptive": "The step is scaled by the nuclear norm.",
    "muon_optax/preconditioning_aol": "Another start of the iterations.",
    "muon_optax/preconditioning_schatten": "Another start of the iterations.",
    "muon_optax/preconditioning_spectral": "Another start of the iterations.",
    "optax_acprop": "ACProp.",
    "optax_dadapt_adamw": "D-Adaptation.",
    "optax_dog": "DoG.",
    "optax_dowg": "DoWG.",
    "optax_fromage": "Fromage.",
    "optax_madgrad": "MADGRAD.",
    "optax_momo": "MoMo.",
    "optax_optimistic": "Optimistic Adam.",
    "optax_polyak_sgd": "SGD with Polyak's rate.",
    "optax_transforms/ema_debias": "Steps along the corrected mean of the gradients.",
    "optax_radam/nesterov": "RAdam with Nesterov's momentum.",
    "optax_rprop": "Rprop.",
    "optax_sm3": "SM3.",
    "optax_sophia": "Sophia.",
    "rprop_torch": "Rprop.",
    "shampoo_facebook/averaging_schedule_free": "Schedule-free averages of Shampoo's steps.",
    "shampoo_facebook/sign_descent": "Signs of the gradient.",
    "shampoo_facebook/soap_eigenvalue_corrected": "Shampoo with corrected eigenvalues.",
    "shampoo_facebook/spectral_descent_svd": "Steps along the singular vectors.",
    "sm3_google": "SM3.",
    "tfa_conditional_gradient": "The conditional gradient method.",
    "tfa_proximal_adagrad": "Proximal Adagrad.",
}
_RECTIFIED = "AdaBelief with RAdam's rectification."
_WARM_UP = "It warms up inside of the optimizer; here a schedule does."
_BF16 = "The same program in bfloat16; its run in float64 is equal."
_ROOT = "Epsilon is added to the root there; here it is in the root, as in Keras."
_BEGINS = "The average begins with the initial weights; here with those after the first step."
_FIRST = "The first normalized gradient is not averaged there."
_REGULARIZED = "Regularization by the optimizer; here it is the layers'."
DIFFERS = {
    "adagrad_torch/eps": _ROOT,
    "cautious/c_muon_transposed__ns_float64": (
        "The momentum is masked before it is made orthogonal; here the step is masked."
    ),
    "lamb_cybertronai": "No bias correction, and norms of weights are clamped to 10.",
    "lr_schedulers_torch/plateau_max_abs_eps": (
        "Keras' callback has no `eps`, below which PyTorch leaves the rate."
    ),
    "muon_dion/reference_default__bf16": _BF16,
    "muon_emerging/l2_wd_simple_transposed": "The decay is added to the gradient.",
    "muon_emerging/spectral_medium_precision__bf16": _BF16,
    "muon_kellerjordan/aux_adam__bf16": "Its Newton-Schulz iterations are in bfloat16.",
    "muon_kellerjordan/decay_momentum08_as_keras__bf16": _BF16,
    "muon_kellerjordan/decay_momentum08_transposed__bf16": _BF16,
    "muon_kellerjordan/default_as_keras__bf16": _BF16,
    "muon_kellerjordan/default_transposed__bf16": _BF16,
    "muon_torch/default_transposed__bf16": _BF16,
    "normuon_dion/default__bf16": "Its Newton-Schulz iterations are in bfloat16.",
    "muon_optax/default_lr002_two": "optax corrects the bias of Nesterov's momentum.",
    "muon_optax/dimension_numbers": "optax corrects the bias of Nesterov's momentum.",
    "muon_optax/steps3_coeffs": "optax corrects the bias of Nesterov's momentum.",
    "optax_ademamix/schedules": "alpha and beta_3 follow schedules of one's own there.",
    "optax_adan": "optax multiplies the difference by 1 - beta_2, the authors by beta_2.",
    "optax_amsgrad": "The maximum is taken after the bias correction; here before, as in Keras.",
    "optax_schedules/warmup_cosine_exponent2": "The cosine is squared there.",
    "prodigy/production_beta3_slice": "`slice_p`: it measures every third entry; here all.",
    "rmsprop_torch": _ROOT,
    "schedule_free_keras": "Keras reads z after it changed, and averages by 1/t.",
    "sgd_torch/dampening": "No dampening here.",
    "sgd_torch/maximize": "The gradient's sign is changed; here the loss's is.",
    "shampoo_facebook/attention_3d": (
        "One factor for each of the three axes; here a matrix, as its layer says."
    ),
    "shampoo_facebook/trace_scaling": "Each factor is divided by the root of its trace.",
    "shampoo_facebook/merged_dims_default": "One matrix for all axes together.",
    "soap_emerging": "The basis holds the present gradient, and the first update moves.",
    "soap_nikhilvyas/conv_merge_dims_transposed": (
        "A factor lacks rank, so that its basis is arbitrary; the steps from theirs are the same."
    ),
    "tfa_adabelief/default": _RECTIFIED,
    "tfa_moving_average/decay09": _BEGINS,
    "tfa_novograd/decay_averaging": _FIRST,
    "tfa_rectified_adam/sparse": (
        "The moments of rows without a gradient decay there; here such rows stay as they are."
    ),
    "tfa_rectified_adam/warmup": _WARM_UP,
    "tfa_tests/adabelief__dense_sample_with_warmup": _WARM_UP,
    "tfa_tests/adabelief__sparse_sample_with_amsgrad": "AdaBelief has no `amsgrad` here.",
    "tfa_tests/adabelief__sparse_sample_with_rectify": _RECTIFIED,
    "tfa_tests/adabelief__sparse_sample_with_warmup": _WARM_UP,
    "tfa_tests/moving_average__dynamic_decay": _BEGINS,
    "tfa_tests/novograd__dense_sample_with_grad_averaging__1": _FIRST,
    "tfa_tests/novograd__sparse_sample_with_grad_averaging__0": _FIRST,
    "tfa_tests/rectified_adam__dense_sample_with_warmup": _WARM_UP,
    "tfa_tests/yogi__basic_momentum_regularization": _REGULARIZED,
    "tfa_tests/yogi__sparse_regularization": _REGULARIZED,
    "tfa_yogi/l1_l2": _REGULARIZED,
}


KEPT_IN = "TF_GRAFT_RECORDINGS"


def check(name: str, off: float, allowed: float) -> None:
    """Asserts that a run is near enough, and keeps how near in the file that KEPT_IN names."""
    if KEPT_IN in os.environ:
        line = json.dumps([name, {"off": float(f"{off:.1e}"), "allowed": allowed}])
        with open(os.environ[KEPT_IN], "a") as file:
            file.write(f"{line}\n")
    assert off < allowed


KINDS = {"equal": ELSEWHERE, "other rule": OTHER, "differs": DIFFERS}


def reason(name: str) -> tuple[str, str]:
    """Returns the kind of a recording that no test replays, and the reason."""
    for key in (name, name.partition("/")[0]):
        for kind, held in KINDS.items():
            if key in held:
                return kind, held[key]
    raise KeyError(name)
