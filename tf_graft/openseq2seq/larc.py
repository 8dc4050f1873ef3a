"""OpenSeq2Seq's `larc_params`."""

from collections.abc import Mapping

from tf_graft.core.checks import shown
from tf_graft.core.types import Config

# For each name in `larc_params`, the argument of LARC and its type.
NAMES = {
    "larc_eta": ("eta", float),
    "larc_mode": ("mode", str),
    "min_update": ("min_update", float),
    "epsilon": ("epsilon", float),
}


def arguments(params: Mapping[str, object]) -> Config:
    """Translates `larc_params` to arguments of LARC, with OpenSeq2Seq's checks."""
    call = "optimize_loss(larc_params=...): "
    if "larc_eta" not in params:
        raise ValueError(f"{call}larc_eta parameter has to be specified.")
    for key, value in params.items():
        if key not in NAMES:
            raise ValueError(f"{call}Unknown parameter: {key}; there are {', '.join(NAMES)}.")
        kind = NAMES[key][1]
        if key == "larc_mode" and value not in ("clip", "scale"):
            raise ValueError(
                f"{call}larc_mode has to be one of ['clip', 'scale'], not {shown(value)}."
            )
        if not isinstance(value, kind):
            raise ValueError(f"{call}{key} has to be of type {kind}, not {shown(value)}.")
    return {NAMES[key][0]: value for key, value in params.items()}
