"""Builders of tensorflow-datasets for data that installed packages ship: no network needed."""

import abc
import functools
import platform
import re
import sysconfig
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TypeAlias

import numpy as np
import tensorflow_datasets as tfds

Example: TypeAlias = dict[str, np.ndarray | int | str]
Examples: TypeAlias = Iterator[tuple[int | str, Example]]  # with their keys

MAX_BYTES = 2_000_000  # of texts


class _TrainAndTest(tfds.core.GeneratorBasedBuilder):
    """A data set of two splits; `_generate_examples` yields those of one."""

    def _split_generators(self, _: tfds.download.DownloadManager) -> dict[str, Examples]:
        return {"train": self._generate_examples(False), "test": self._generate_examples(True)}

    @abc.abstractmethod
    def _generate_examples(self, test: bool) -> Examples: ...


class SklearnDigits(_TrainAndTest):
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

    def _generate_examples(self, test: bool) -> Examples:
        from sklearn.datasets import load_digits

        digits = load_digits()
        images = np.round(digits.images * (255 / 16)).astype(np.uint8)[..., np.newaxis]
        for index, (image, label) in enumerate(zip(images, digits.target, strict=True)):
            if (index % 5 == 0) == test:
                yield index, {"image": image, "label": int(label)}


class StdlibText(_TrainAndTest):
    """The sources of Python's standard library, one file per example.

    The plain-ASCII modules of the top level in the order of their names, up to 2 MB; every tenth
    is for testing. Each Python release is a separate data set, as its sources differ.
    """

    VERSION = tfds.core.Version("1.0.0")
    BUILDER_CONFIGS = [  # noqa: RUF012  (tensorflow-datasets wants a plain list)
        tfds.core.BuilderConfig(name=f"python_{platform.python_version()}")
    ]

    def _info(self) -> tfds.core.DatasetInfo:
        return self.dataset_info_from_configs(
            features=tfds.features.FeaturesDict(
                {"file": tfds.features.Text(), "text": tfds.features.Text()}
            ),
            homepage="https://docs.python.org/3/library",
        )

    def _generate_examples(self, test: bool) -> Examples:
        for name, text in _modules(test):
            yield name, {"file": name, "text": text}


class StdlibWords(_TrainAndTest):
    """The next word in the sources of Python's standard library, one of the 1,000 commonest.

    Of the modules of `text`, every fifth word; an example is the 32 words before it, the last
    of them first.
    """

    VERSION = tfds.core.Version("1.0.0")
    BUILDER_CONFIGS = StdlibText.BUILDER_CONFIGS
    CLASSES, BEFORE, EVERY = 1_000, 32, 5

    @functools.cached_property
    def _known(self) -> list[str]:
        words = Counter(word for _, text in _modules(False) for word in _words(text))
        return [word for word, _ in words.most_common(self.CLASSES)]

    def _info(self) -> tfds.core.DatasetInfo:
        return self.dataset_info_from_configs(
            features=tfds.features.FeaturesDict(
                {
                    "text": tfds.features.Text(),
                    "label": tfds.features.ClassLabel(names=self._known),
                }
            ),
            supervised_keys=("text", "label"),
            homepage="https://docs.python.org/3/library",
        )

    def _generate_examples(self, test: bool) -> Examples:
        known = set(self._known)
        for name, text in _modules(test):
            words = _words(text)
            for at in range(self.BEFORE, len(words), self.EVERY):
                if words[at] in known:
                    before = reversed(words[at - self.BEFORE : at])
                    yield f"{name} {at}", {"text": " ".join(before), "label": words[at]}


def _modules(test: bool) -> Iterator[tuple[str, str]]:
    """Yields the names and texts of the modules to train on, or of those to test on."""
    total = number = 0
    for path in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py")):
        content = path.read_bytes()
        if content.isascii() and b"\0" not in content and total + len(content) <= MAX_BYTES:
            total, number = total + len(content), number + 1
            if (number % 10 == 0) == test:
                yield path.name, content.decode("ascii")


def _words(text: str) -> list[str]:
    """Returns the words and signs of a text, in lower case."""
    return re.findall(r"\w+|[^\w\s]", text.lower())
