"""Builders of tensorflow-datasets for data that installed packages ship: no network needed."""

import platform
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import TypeAlias

import numpy as np
import tensorflow_datasets as tfds

Example: TypeAlias = dict[str, np.ndarray | int | str]
Examples: TypeAlias = Iterator[tuple[int | str, Example]]  # with their keys


class SklearnDigits(tfds.core.GeneratorBasedBuilder):
    """Handwritten digits, 8x8 gray images, as scikit-learn ships them.

    1,797 images of the UCI collection; every fifth is for testing: 1,437 and 360.
    """

    VERSION = tfds.core.Version("1.0.0")

    def _info(self) -> tfds.core.DatasetInfo:
        return self.dataset_info_from_configs(
            features=tfds.features.FeaturesDict(
                {
                    "image": tfds.features.Image(shape=(8, 8, 1)),
                    "label": tfds.features.ClassLabel(num_classes=10),
                }
            ),
            supervised_keys=("image", "label"),
            homepage="https://archive.ics.uci.edu/dataset/80",
        )

    def _split_generators(self, _: tfds.download.DownloadManager) -> dict[str, Examples]:
        return {"train": self._generate_examples(False), "test": self._generate_examples(True)}

    def _generate_examples(self, test: bool) -> Examples:
        from sklearn.datasets import load_digits

        digits = load_digits()
        images = np.round(digits.images * (255 / 16)).astype(np.uint8)[..., np.newaxis]
        for index, (image, label) in enumerate(zip(images, digits.target, strict=True)):
            if (index % 5 == 0) == test:
                yield index, {"image": image, "label": int(label)}


class StdlibText(tfds.core.GeneratorBasedBuilder):
    """The sources of Python's standard library, one file per example.

    The plain-ASCII modules of the top level in the order of their names, up to 2 MB; every tenth
    is for testing. Each Python release is a separate data set, as its sources differ.
    """

    VERSION = tfds.core.Version("1.0.0")
    BUILDER_CONFIGS = [  # noqa: RUF012  (tensorflow-datasets wants a plain list)
        tfds.core.BuilderConfig(name=f"python_{platform.python_version()}")
    ]
    MAX_BYTES = 2_000_000

    def _info(self) -> tfds.core.DatasetInfo:
        return self.dataset_info_from_configs(
            features=tfds.features.FeaturesDict(
                {"file": tfds.features.Text(), "text": tfds.features.Text()}
            ),
            homepage="https://docs.python.org/3/library",
        )

    def _split_generators(self, _: tfds.download.DownloadManager) -> dict[str, Examples]:
        return {"train": self._generate_examples(False), "test": self._generate_examples(True)}

    def _generate_examples(self, test: bool) -> Examples:
        for index, (name, text) in enumerate(self._modules()):
            if (index % 10 == 9) == test:
                yield name, {"file": name, "text": text}

    def _modules(self) -> Iterator[tuple[str, str]]:
        total = 0
        for path in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py")):
            content = path.read_bytes()
            if (
                content.isascii()
                and b"\0" not in content
                and total + len(content) <= self.MAX_BYTES
            ):
                total += len(content)
                yield path.name, content.decode("ascii")
