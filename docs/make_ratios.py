"""Compares the ratios that the grafts of `studies/transfer.yaml` measured, for "When it pays".

    python docs/make_ratios.py runs/transfer

Ratios of other seeds, first steps, widths and batches stand beside those of the model's own whole
graft: the mean factor between the two, how far the variables spread around this factor, and the
correlation of the logarithms. The numbers, by seed, go to docs/data/ratios.json.
"""

import json
import sys
from pathlib import Path

import numpy as np
import yaml

from tf_graft import report

OUTPUT = Path(__file__).parent / "data" / "ratios.json"
STUDY = Path(__file__).parents[1] / "studies" / "transfer.yaml"
SEEDS = (0, 1, 2)
GRAFTS = ("graft_half_width", "graft_quarter_width", "graft_half_batch", "graft_double_batch")
FIRST = ("first_1_percent", "first_3_percent", "first_10_percent", "first_30_percent")


def ratios(arm: Path, seed: int, until: int | None = None) -> dict[str, float]:
    """Returns the logarithm of the ratio that a run measured, by the path of a variable."""
    found = report.GraftReport.read(arm / f"seed_{seed}" / "graft.records")
    rates = found.rates("constant", with_learning_rate=False, until=until).rates
    return {path: float(np.log(rate)) for path, rate in rates.items()}


def compared(own: dict[str, float], other: dict[str, float]) -> dict[str, float]:
    """Returns how other ratios differ from those of the model's own graft."""
    mine, its = (np.array([each[path] for path in own]) for each in (own, other))
    return {
        "factor": float(np.exp(np.mean(its - mine))),
        "spread": float(np.exp(np.std(its - mine))),
        "correlation": float(np.corrcoef(mine, its)[0, 1]),
    }


def main() -> None:
    runs = Path(sys.argv[1]) / "text"
    own = {seed: ratios(runs / "graft", seed) for seed in SEEDS}
    others = {"another_seed": {seed: own[(seed + 1) % len(SEEDS)] for seed in SEEDS}}
    arms = yaml.safe_load(STUDY.read_text())["arms"]
    for name in FIRST:
        until = arms[name]["set"]["optimizer.rates.until"]
        others[name] = {seed: ratios(runs / "graft", seed, until) for seed in SEEDS}
    for name in GRAFTS:
        others[name] = {seed: ratios(runs / name, seed) for seed in SEEDS}
    found = {
        name: {seed: compared(own[seed], by_seed[seed]) for seed in SEEDS}
        for name, by_seed in others.items()
    }
    OUTPUT.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
