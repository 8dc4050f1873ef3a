"""Data sets by name, and the endless stream of batches a run trains on.

A batch is a function of the seed and its number alone, so a resumed run sees what the undisturbed
one would have seen. Epoch `e` is the data set shuffled with a seed made of the run's and `e`;
what the interrupted epoch has already used is skipped before any of it is decoded or batched.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import tensorflow as tf
import tensorflow_datasets as tfds

from tf_graft.training import prepared
from tf_graft.training.errors import Source
from tf_graft.training.schema import Data

CHARACTERS = 128

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
    ours = {
        name: str(builder.__doc__).partition("\n")[0] for name, builder in prepared.SOURCES.items()
    }
    return ours | {"mnist, imdb_reviews ...": "Any image or text classes of tensorflow-datasets."}


def load(config: Data, steps_per_execution: int, source: Source) -> Batches:
    """Opens a data set, which is prepared first (downloaded, where it is not one of ours).

    An epoch is cut to whole batches, and to a whole number of executions.

    Raises:
        ConfigError: the data set is unknown, cannot be downloaded, is of another kind, or smaller
            than a batch.
    """
    builder = prepared.builder(config, source)
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
