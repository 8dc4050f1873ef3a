"""Writes the click log of the guide "Recommenders" as a data set of tensorflow-datasets.

    python configs/recommenders/click_log.py

The configs beside this file read it from `runs/data`. Each row says which item a user saw, on which
page and from which advertiser, and whether the user clicked. To write data of your own in
the same form, replace `rows`, and set `ROWS` and `SIZES` to the size and the fields of your log.
"""

from collections.abc import Iterator

import numpy as np
import tensorflow_datasets as tfds

ROWS = 60_000
SIZES = {"user": 600, "item": 800, "page": 2_000, "advertiser": 400}
TAILS = {"user": 0.5, "item": 0.7, "page": 1.0, "advertiser": 1.0}  # exponents of Zipf's law


def rows() -> dict[str, np.ndarray]:
    """Draws the ids, which have a long tail, and clicks that follow hidden tastes."""
    random = np.random.default_rng(0)
    log, tastes, logits = {}, [], -2.0
    for name, size in SIZES.items():
        share = np.arange(1, size + 1) ** -TAILS[name]
        log[name] = random.choice(size, ROWS, p=share / share.sum())
        tastes.append(random.normal(0, 0.8, [size, 4])[log[name]])
        logits = logits + random.normal(0, 0.4, size)[log[name]]
    for i, left in enumerate(tastes):
        for right in tastes[:i]:
            logits += 0.3 * np.sum(left * right, axis=1)
    logits += 2 * np.sum(tastes[0] * tastes[1], axis=1)
    return {**log, "clicked": random.random(ROWS) < 1 / (1 + np.exp(-logits))}


class ClickLog(tfds.core.GeneratorBasedBuilder):
    """A generated click log; the last fifth of its rows is for testing."""

    VERSION = tfds.core.Version("1.0.0")

    def _info(self) -> tfds.core.DatasetInfo:
        features = dict.fromkeys(SIZES, np.int64) | {"clicked": np.bool_}
        return tfds.core.DatasetInfo(builder=self, features=tfds.features.FeaturesDict(features))

    def _split_generators(self, _: tfds.download.DownloadManager) -> dict[str, Iterator]:
        log, end = rows(), ROWS * 4 // 5
        return {
            "train": self._generate_examples(log, range(end)),
            "test": self._generate_examples(log, range(end, ROWS)),
        }

    def _generate_examples(self, log: dict[str, np.ndarray], numbers: range) -> Iterator:
        for number in numbers:
            yield number, {name: values[number] for name, values in log.items()}


if __name__ == "__main__":
    ClickLog(data_dir="runs/data").download_and_prepare()
