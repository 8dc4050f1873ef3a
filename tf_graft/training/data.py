"""Data sets by name, and the endless stream of batches that a run trains on.

A batch depends only on the seed and its number, so a resumed run gets the same batches as an
uninterrupted one. Epoch `e` is the data set shuffled with a seed made from the run's seed and `e`;
examples that the interrupted epoch has used are skipped before they are decoded or batched.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias

import numpy as np
import tensorflow as tf
import tensorflow_datasets as tfds

from tf_graft.core.media import for_message
from tf_graft.core.spelling import suggest
from tf_graft.training import prepared
from tf_graft.training.schema import Data

CHARACTERS = 128

Kind: TypeAlias = Literal["images", "characters", "words", "clicks"]
Read: TypeAlias = Callable[[tf.Tensor], tf.Tensor]
Example: TypeAlias = tf.Tensor | dict[str, tf.Tensor]
Prepare: TypeAlias = Callable[[Example], tuple[tf.Tensor, tf.Tensor]]  # to an input and its class


@dataclass(frozen=True)
class Batches:
    """A data set as a run uses it.

    A model's inputs are images of `shape`, or `shape` ids of characters or words below
    `vocabulary`, or an id of each field, below its number in `fields`; it predicts one of `classes`
    (for each character: the next one).
    """

    kind: Kind
    shape: tuple[int, ...]
    vocabulary: int
    classes: int
    steps_per_epoch: int
    test: tf.data.Dataset
    _train: tf.data.Dataset
    _prepare: Prepare
    _config: Data

    @property
    def fields(self) -> dict[str, int]:
        """The fields of clicks, each with its number of ids."""
        return self._config.fields or {}

    def stream(self, seed: int, start: int) -> tf.data.Dataset:
        """Returns the training batches from step `start` on, without end."""
        size, steps = self._config.batch_size, self.steps_per_epoch
        first, used = divmod(start, steps)

        def epoch(number: tf.Tensor) -> tf.data.Dataset:
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

    def zeros(self, count: int) -> tf.data.Dataset:
        """Returns one batch, of `count` examples that are all zero."""
        batch = tuple(tf.zeros([count, *s.shape[1:]], s.dtype) for s in self.test.element_spec)
        return _for_all_workers(tf.data.Dataset.from_tensors(batch))


class _Form(NamedTuple):
    """The kind of a data set's examples, and how to make inputs and classes from them."""

    kind: Kind
    shape: tuple[int, ...]
    vocabulary: int
    classes: int
    prepare: Prepare


def list_data_sets() -> dict[str, str]:
    """Lists the values of `data.name`, with a line on each."""
    ours = {
        name: str(builder.__doc__).partition("\n")[0] for name, builder in prepared.SOURCES.items()
    }
    return ours | {"mnist, imdb_reviews ...": "Any image or text classes of tensorflow-datasets."}


def kind_of(config: Data) -> tuple[Kind, bool]:
    """Returns the kind of a data set's examples, and whether they are of one size; loads none.

    Raises:
        ConfigError: the data set is unknown or of an unsupported kind.
    """
    if config.name == "text":
        return "characters", True
    info = prepared.found(config).info
    form, _ = _classes(info, config)
    return form.kind, None not in info.features[info.supervised_keys[0]].shape


def load(config: Data, steps_per_execution: int, distributed: bool = False) -> Batches:
    """Opens a data set, after preparing it (downloading it, if it is not one of ours).

    An epoch is cut to whole batches, and to a whole number of executions.

    Args:
        config: the config's section `data`.
        steps_per_execution: the steps of an execution.
        distributed: whether a strategy reads the data. Such data is not kept in memory: Keras drops
            an iterator after its first batch, and TensorFlow (2.21) may then take what a
            distributed iterator has read by then for the whole data set.

    Raises:
        ConfigError: the data set is unknown, cannot be downloaded, is of an unsupported kind, or
            is smaller than a batch.
    """
    builder, cached = prepared.builder(config), not distributed
    train, test = (_split(builder, key, config, cached) for key in ("train", "test"))
    if config.name == "text":
        if config.classes is not None:
            raise config.error(("data", "classes"), "classes: 'text' has characters, not classes.")
        form = _characters(config.sequence_length)
        train, test = (
            _windows(split, config, key) for split, key in ((train, "train"), (test, "test"))
        )
    else:
        form, answer = (_clicks if config.fields else _classes)(builder.info, config)
        if config.classes is not None:
            form, (train, test) = _chosen(form, answer, (train, test), config)
    size, count = config.batch_size, int(train.cardinality())
    steps = count // size // steps_per_execution * steps_per_execution
    if steps == 0:
        message = f"batch_size={size} times steps_per_execution={steps_per_execution} is more "
        raise config.error(("data", "batch_size"), f"{message}than the {count} examples.")
    test = test.map(form.prepare, num_parallel_calls=tf.data.AUTOTUNE).batch(size)
    test = _for_all_workers(test)
    return Batches(*form[:4], steps, test, train, form.prepare, config)


def _for_all_workers(batches: tf.data.Dataset) -> tf.data.Dataset:
    """Lets every worker of a strategy read all batches and take its part of each."""
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
    # Deleting an iterator waits for its autotuning thread, which sleeps up to a minute and may miss
    # the wake-up (TensorFlow 2.21): a second run in a process would hang meanwhile.
    options.autotune.enabled = False
    return batches.with_options(options).prefetch(tf.data.AUTOTUNE)


def _split(
    builder: tfds.core.DatasetBuilder, key: str, config: Data, cached: bool
) -> tf.data.Dataset:
    split, how = getattr(config, key), tfds.ReadConfig(try_autocache=cached)
    try:
        examples = builder.as_dataset(split=split, shuffle_files=False, read_config=how)
    except (ValueError, KeyError, AssertionError) as error:
        known = ", ".join(builder.info.splits)
        message = f"no split '{split}' in '{config.name}'; there are {known}."
        raise config.error(("data", key), message) from error
    if int(examples.cardinality()) < 1:
        message = f"the split '{split}' of '{config.name}' holds no examples."
        raise config.error(("data", key), message)
    return examples


def _windows(files: tf.data.Dataset, config: Data, key: str) -> tf.data.Dataset:
    """Joins the texts and cuts them into pieces of one character more than a sequence.

    Raises:
        ConfigError: the texts of the split `key` are shorter than that.
    """
    length = config.sequence_length
    text = b"".join(example["text"] for example in files.as_numpy_iterator())
    pieces = [text[at : at + length + 1] for at in range(0, len(text) - length, length)]
    if not pieces:
        message = f"sequence_length={length} is too long: data.{key} has {len(text):,} characters."
        raise config.error(("data", "sequence_length"), message)
    return tf.data.Dataset.from_tensor_slices(pieces)


def _characters(length: int) -> _Form:
    def prepare(piece: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        ids = tf.cast(tf.io.decode_raw(piece, tf.uint8), tf.int32)
        return tf.ensure_shape(ids[:-1], [length]), tf.ensure_shape(ids[1:], [length])

    return _Form("characters", (length,), CHARACTERS, CHARACTERS, prepare)


def _chosen(
    form: _Form, answer: Read, splits: Sequence[tf.data.Dataset], config: Data
) -> tuple[_Form, list[tf.data.Dataset]]:
    """Leaves out the examples of other classes than `data.classes`, which get the numbers from 0.

    Args:
        form: the form of the data set with all classes.
        answer: returns the class of an example.
        splits: the examples.
        config: the config's section `data`.
    """
    chosen = config.classes or []
    for number in chosen:
        if number >= form.classes:
            message = f"classes holds {number}; '{config.name}' has the classes 0 to "
            raise config.error(("data", "classes"), f"{message}{form.classes - 1}.")
    numbers = tf.constant(chosen, tf.int64)

    def prepare(example: Example) -> tuple[tf.Tensor, tf.Tensor]:
        x, y = form.prepare(example)
        return x, tf.argmax(tf.cast(y == numbers, tf.int8))

    kept = [s.filter(lambda e: tf.reduce_any(answer(e) == numbers)) for s in splits]
    counts = [int(split.reduce(np.int64(0), lambda count, _: count + 1)) for split in kept]
    for key, count in zip(("train", "test"), counts, strict=True):
        if not count:
            message = f"the split '{getattr(config, key)}' holds no examples of these classes."
            raise config.error(("data", "classes"), message)
    known = map(tf.data.experimental.assert_cardinality, counts)
    applied = [split.apply(known) for split, known in zip(kept, known, strict=True)]
    return form._replace(classes=len(chosen), prepare=prepare), applied


def _classes(info: tfds.core.DatasetInfo, config: Data) -> tuple[_Form, Read]:
    """Describes a data set of (image or text, class) pairs; returns what reads the class, too."""
    keys = info.supervised_keys
    if not keys or len(keys) != 2 or not all(isinstance(key, str) for key in keys):
        message = (
            f"'{config.name}' has no (input, class) pairs to train on; for a click model, give "
            "data.fields and data.label."
        )
        raise config.error(("data", "name"), message)
    x, y = (info.features[key] for key in keys)
    if not isinstance(y, tfds.features.ClassLabel):
        raise config.error(("data", "name"), f"the answers of '{config.name}' are not classes.")
    if isinstance(x, tfds.features.Image):
        kind: Kind = "images"
        vocabulary, (shape, read) = 0, _image(x, config)
    elif isinstance(x, tfds.features.Text):
        kind, shape, vocabulary = "words", (config.sequence_length,), config.vocabulary
        read = _words(config)
    else:
        message = f"'{config.name}' holds neither images nor texts but {type(x).__name__}."
        raise config.error(("data", "name"), message)

    def prepare(example: Example) -> tuple[tf.Tensor, tf.Tensor]:
        return read(example[keys[0]]), example[keys[1]]

    return _Form(kind, shape, vocabulary, y.num_classes, prepare), lambda example: example[keys[1]]


def _clicks(info: tfds.core.DatasetInfo, config: Data) -> tuple[_Form, Read]:
    """Describes a data set of examples with ids and a label; returns what reads the class, too."""
    fields, label = config.fields or {}, config.label or ""
    ids = {name: _ids(info, name, size, config) for name, size in fields.items()}
    number = tf.as_dtype(_feature(info, label, "label", config).tf_dtype)
    if not (number.is_bool or number.is_integer or number.is_floating):
        raise config.error(("data", "label"), f"label: '{label}' holds no numbers.")

    def clicked(example: Example) -> tf.Tensor:
        return tf.cast(tf.cast(example[label], tf.float32) >= config.positive_from, tf.int64)

    def prepare(example: Example) -> tuple[tf.Tensor, tf.Tensor]:
        return tf.stack([read(example[name]) for name, read in ids.items()]), clicked(example)

    return _Form("clicks", (len(ids),), 0, 2, prepare), clicked


def _ids(info: tfds.core.DatasetInfo, name: str, size: int, config: Data) -> Read:
    """Maps a field to ids below `size`: texts by a hash, whole numbers modulo `size`."""
    dtype = tf.as_dtype(_feature(info, name, "fields", config).tf_dtype)
    if dtype == tf.string:
        return lambda text: tf.cast(tf.strings.to_hash_bucket_fast(text, size), tf.int32)
    if not (dtype.is_integer or dtype.is_bool):
        message = f"fields: '{name}' holds {dtype.name}, neither whole numbers nor texts."
        raise config.error(("data", "fields", name), message)
    return lambda number: tf.cast(tf.cast(number, tf.int64) % size, tf.int32)


def _feature(
    info: tfds.core.DatasetInfo, name: str, key: str, config: Data
) -> tfds.features.FeatureConnector:
    """Returns the feature of a name, which has one value for each example."""
    known = {each: feature for each, feature in info.features.items() if feature.shape == ()}
    if name not in known:
        message = f"{key}: '{config.name}' has no feature '{for_message(name)}' of one value; "
        at = ("data", key, name) if key == "fields" else ("data", key)
        raise config.error(at, message + suggest(name, known))
    return known[name]


def _image(feature: tfds.features.Image, config: Data) -> tuple[tuple[int, ...], Read]:
    height, width, channels = feature.shape
    size = config.image_size
    if size is None and None in (height, width):
        message = f"the images of '{config.name}' differ in size; set data.image_size."
        raise config.error(("data", "name"), message)

    def read(image: tf.Tensor) -> tf.Tensor:
        scaled = tf.cast(image, tf.float32) / 255.0
        return scaled if size is None else tf.image.resize(scaled, (size, size))

    return (size or height, size or width, channels), read


def _words(config: Data) -> Read:
    """Maps words to ids by a hash, so that no dictionary is needed; 0 is padding.

    A text without words has the id of an empty word, because layers cannot average padding alone.
    """

    def read(text: tf.Tensor) -> tf.Tensor:
        words = tf.strings.split(tf.strings.lower(text))[: config.sequence_length]
        words = tf.cond(tf.size(words) > 0, lambda: words, lambda: tf.constant([""]))
        ids = tf.strings.to_hash_bucket_fast(words, config.vocabulary - 1) + 1
        padding = config.sequence_length - tf.size(ids)
        return tf.ensure_shape(tf.pad(ids, [[0, padding]]), [config.sequence_length])

    return read
