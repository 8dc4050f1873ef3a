"""Data sets by name, and the endless stream of batches a run trains on.

A batch is a function of the seed and its number alone, so a resumed run sees what the undisturbed
one would have seen. Epoch `e` is the data set shuffled with a seed made of the run's and `e`;
what the interrupted epoch has already used is skipped before any of it is decoded or batched.
"""

import contextlib
import http.client
import io
import os
import ssl
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import tensorflow as tf
import tensorflow_datasets as tfds

from tf_graft.training.builders import SklearnDigits, StdlibText
from tf_graft.training.errors import ConfigError, Source, suggest
from tf_graft.training.schema import Data

SOURCES: dict[str, Any] = {"digits": SklearnDigits, "text": StdlibText}
CHARACTERS = 128
PATIENCE = 10.0  # seconds for a host to answer

Prepare = Callable[[Any], Any]


@dataclass(frozen=True)
class Batches:
    """A data set as a run uses it.

    A model is given images of `shape`, or `shape` ids of characters or words below `vocabulary`,
    and answers with one of `classes` (for each character: the next one).
    """

    kind: Literal["images", "characters", "words"]
    shape: tuple[int, ...]
    vocabulary: int
    classes: int
    steps_per_epoch: int
    test: Any
    _train: Any
    _prepare: Prepare
    _config: Data

    def stream(self, seed: int, start: int) -> Any:
        """The training batches from step `start` on, without end."""
        size, steps = self._config.batch_size, self.steps_per_epoch
        first, used = divmod(start, steps)

        def epoch(number: Any) -> Any:
            shuffled = self._train.shuffle(
                self._config.shuffle_buffer,
                seed=number + seed * 1_000_003,
                reshuffle_each_iteration=False,
            )
            skipped = tf.where(number == first, used * size, 0)
            return shuffled.take(steps * size).skip(tf.cast(skipped, tf.int64))

        examples = tf.data.Dataset.counter(start=first).flat_map(epoch)
        prepared = examples.map(self._prepare, num_parallel_calls=tf.data.AUTOTUNE)
        return _for_all_workers(prepared.batch(size, drop_remainder=True))


def list_data_sets() -> dict[str, str]:
    """The names `data.name` knows, with a line on each."""
    ours = {name: str(builder.__doc__).partition("\n")[0] for name, builder in SOURCES.items()}
    return ours | {"mnist, imdb_reviews ...": "Any image or text classes of tensorflow-datasets."}


def load(config: Data, steps_per_execution: int, source: Source) -> Batches:
    """Opens a data set, which is prepared first (downloaded, where it is not one of ours).

    An epoch is cut to whole batches, and to a whole number of executions.

    Raises:
        ConfigError: the data set is unknown, cannot be downloaded, is of another kind, or smaller
            than a batch.
    """
    builder = _builder(config, source)
    train, test = (_split(builder, key, config, source) for key in ("train", "test"))
    if config.name == "text":
        kind: Any = "characters"
        shape, vocabulary, classes = (config.sequence_length,), CHARACTERS, CHARACTERS
        train, test = (_windows(split, config.sequence_length) for split in (train, test))
        prepare: Prepare = _input_and_next(config.sequence_length)
    else:
        kind, shape, vocabulary, classes, prepare = _classes(builder.info, config, source)
    size, count = config.batch_size, int(train.cardinality())
    steps = count // size // steps_per_execution * steps_per_execution
    if steps == 0:
        message = f"batch_size={size} times steps_per_execution={steps_per_execution} is more "
        raise source.error(("data", "batch_size"), f"{message}than the {count} examples.")
    test = test.map(prepare, num_parallel_calls=tf.data.AUTOTUNE).batch(size)
    test = _for_all_workers(test)
    return Batches(kind, shape, vocabulary, classes, steps, test, train, prepare, config)


def _for_all_workers(batches: Any) -> Any:
    """Every worker of a strategy reads all batches and takes its part of each."""
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
    return batches.with_options(options).prefetch(tf.data.AUTOTUNE)


def data_dir(config: Data) -> str:
    """Where prepared data sets lie: `data.dir`, else TFDS_DATA_DIR, else the user's cache."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    chosen = config.dir or os.environ.get("TFDS_DATA_DIR") or cache / "tf_graft" / "datasets"
    return str(Path(chosen).expanduser())


def _builder(config: Data, source: Source) -> Any:
    folder = data_dir(config)
    download = tfds.download.DownloadConfig(try_download_gcs=False)
    if config.name in SOURCES:
        with _usable(folder, source):
            builder = SOURCES[config.name](data_dir=folder)
            # A second's work on local files: no progress bars, no talk of downloading.
            tfds.disable_progress_bar()
            with contextlib.redirect_stdout(io.StringIO()):
                builder.download_and_prepare(download_config=download)
            tfds.enable_progress_bar()
        return builder
    try:
        with _usable(folder, source):
            builder = tfds.builder(config.name, data_dir=folder, try_gcs=False)
    except ConfigError:
        raise
    except (tfds.core.registered.DatasetNotFoundError, ValueError):
        hint = suggest(config.name, [*SOURCES, *tfds.list_builders(with_community_datasets=False)])
        hint = hint if hint.startswith("did") else "tf-graft list shows what there is."
        message = (
            f"no data set '{config.name}', and none is prepared in {folder} (data.dir); {hint}"
        )
        raise source.error(("data", "name"), message) from None
    if not builder.is_prepared():
        _download(builder, download, config, source)
    return builder


@contextlib.contextmanager
def _usable(folder: str, source: Source) -> Iterator[None]:
    """Turns what is wrong with the folder of the data sets into a ConfigError."""
    try:
        yield
    except (OSError, tf.errors.OpError) as error:
        reason = getattr(error, "strerror", None) or str(error).partition("\n")[0].rstrip(".")
        message = f"data sets cannot be kept in {folder} ({reason}); choose another data.dir."
        raise source.error(("data", "dir"), message) from None


def _download(builder: Any, how: Any, config: Data, source: Source) -> None:
    """Prepares a data set of tensorflow-datasets, which retries for minutes where we ask first."""
    try:
        for url in list(builder.url_infos or ())[:1]:
            _reach(url)
        builder.download_and_prepare(download_config=how)
    except (OSError, AssertionError, tfds.download.DownloadError) as error:
        reason = str(error).strip().partition("\n")[0].rstrip(".")
        message = (
            f"'{config.name}' is not in {data_dir(config)} (data.dir) and cannot be downloaded "
            f"({reason}); {' and '.join(SOURCES)} need no network: data.name={next(iter(SOURCES))}."
        )
        raise source.error(("data", "name"), message) from None


def _reach(url: str) -> None:
    """Raises a ConnectionError where a URL's host cannot be reached. What it answers is all one."""
    try:
        urllib.request.urlopen(urllib.request.Request(url, method="HEAD"), timeout=PATIENCE).close()
    except urllib.error.URLError as error:
        if isinstance(error.reason, OSError) and not isinstance(error.reason, ssl.SSLError):
            host = urllib.parse.urlsplit(url).hostname
            raise ConnectionError(f"no connection to {host}") from None
    except (OSError, http.client.HTTPException):
        return


def _split(builder: Any, key: str, config: Data, source: Source) -> Any:
    split = getattr(config, key)
    try:
        examples = builder.as_dataset(split=split, shuffle_files=False)
    except (ValueError, KeyError, AssertionError) as error:
        known = ", ".join(builder.info.splits)
        message = f"no split '{split}' in '{config.name}'; there are {known}."
        raise source.error(("data", key), message) from error
    if int(examples.cardinality()) < 1:
        message = f"the split '{split}' of '{config.name}' holds no examples."
        raise source.error(("data", key), message)
    return examples


def _windows(files: Any, length: int) -> Any:
    """The texts, one after the other, cut into pieces of `length` + 1 characters."""
    text = b"".join(example["text"] for example in files.as_numpy_iterator())
    pieces = [text[at : at + length + 1] for at in range(0, len(text) - length, length)]
    return tf.data.Dataset.from_tensor_slices(pieces)


def _input_and_next(length: int) -> Prepare:
    def read(piece: Any) -> Any:
        ids = tf.cast(tf.io.decode_raw(piece, tf.uint8), tf.int32)
        return tf.ensure_shape(ids[:-1], [length]), tf.ensure_shape(ids[1:], [length])

    return read


def _classes(info: Any, config: Data, source: Source) -> Any:
    """How to read a data set of (image or text, class) pairs."""
    keys = info.supervised_keys
    if not keys or len(keys) != 2 or not all(isinstance(key, str) for key in keys):
        message = f"'{config.name}' has no (input, class) pairs to train on."
        raise source.error(("data", "name"), message)
    x, y = (info.features[key] for key in keys)
    if not isinstance(y, tfds.features.ClassLabel):
        raise source.error(("data", "name"), f"the answers of '{config.name}' are not classes.")
    if isinstance(x, tfds.features.Image):
        kind, vocabulary, (shape, read) = "images", 0, _image(x, config, source)
    elif isinstance(x, tfds.features.Text):
        kind, shape, vocabulary = "words", (config.sequence_length,), config.vocabulary
        read = _words(config)
    else:
        message = f"'{config.name}' holds neither images nor texts but {type(x).__name__}."
        raise source.error(("data", "name"), message)
    return kind, shape, vocabulary, y.num_classes, lambda e: (read(e[keys[0]]), e[keys[1]])


def _image(feature: Any, config: Data, source: Source) -> tuple[tuple[int, ...], Prepare]:
    height, width, channels = feature.shape
    size = config.image_size
    if size is None and None in (height, width):
        message = f"the images of '{config.name}' differ in size; set data.image_size."
        raise source.error(("data", "name"), message)

    def read(image: Any) -> Any:
        scaled = tf.cast(image, tf.float32) / 255.0
        return scaled if size is None else tf.image.resize(scaled, (size, size))

    return (size or height, size or width, channels), read


def _words(config: Data) -> Prepare:
    """Words as ids: hashed, so that no dictionary must be made and kept; 0 is padding."""

    def read(text: Any) -> Any:
        words = tf.strings.split(tf.strings.lower(text))[: config.sequence_length]
        ids = tf.strings.to_hash_bucket_fast(words, config.vocabulary - 1) + 1
        padding = config.sequence_length - tf.size(ids)
        return tf.ensure_shape(tf.pad(ids, [[0, padding]]), [config.sequence_length])

    return read
