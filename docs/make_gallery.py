"""Makes the gallery: trains every config, or those that are named, and keeps what its page shows.

    python docs/make_gallery.py [NAME]...

`gallery/NAME.png` is a run's plot, `gallery/NAME_ratios.png` what a graft measured, and
`data/gallery.json` has the final numbers of each run.
"""

import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from PIL import Image

from tf_graft.report import GraftReport

DOCS = Path(__file__).parent
CONFIGS = DOCS.parent / "configs"
PICTURES = DOCS / "gallery"
NUMBERS = DOCS / "data" / "gallery.json"
DOWNLOADS = ("mnist_cnn",)  # run where they are named
COLORS = 48  # enough for a plot, and a third of the bytes


def commands(config: Path) -> list[str]:
    """The commands in the comments of a config up to its own, which needs those before it."""
    found = re.findall(r"^# +(tf-graft (?:train|launch) .*?\.yaml)", config.read_text(), re.M)
    own = [command.endswith(f"/{config.name}") for command in found].index(True)
    return found[: own + 1]


def keep(picture: Path, name: str) -> None:
    """Puts a picture into the gallery, in few bytes."""
    colors = Image.open(picture).convert("RGB").quantize(COLORS)
    colors.save(PICTURES / f"{name}.png", optimize=True)


def make(config: Path) -> dict:
    """Runs a config in a folder of its own; returns its final numbers."""
    with tempfile.TemporaryDirectory() as folder:
        os.symlink(CONFIGS, Path(folder) / "configs")
        for command in commands(config):
            words = [sys.executable, "-m", *command.replace("-", "_", 1).split()]
            subprocess.run(words, cwd=folder, check=True)
        run = Path(folder) / "runs" / config.stem
        keep(run / "plot.png", config.stem)
        if (run / "graft.records").exists():
            GraftReport.read(run).plot(10, 5).savefig(run / "ratios.png", dpi=110)
            keep(run / "ratios.png", f"{config.stem}_ratios")
        return json.loads((run / "summary.json").read_text())


def main() -> None:
    """Makes what is asked for; what was made before stays."""
    made = json.loads(NUMBERS.read_text()) if NUMBERS.exists() else {}
    all_here = sorted({path.stem for path in CONFIGS.glob("*.yaml")} - set(DOWNLOADS))
    for name in sys.argv[1:] or all_here:
        made[name] = make(CONFIGS / f"{name}.yaml")
        NUMBERS.write_text(json.dumps(dict(sorted(made.items())), indent=1) + "\n")


if __name__ == "__main__":
    main()
