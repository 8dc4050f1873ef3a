"""Data sets on disk, as tensorflow-datasets keeps them."""

import contextlib
import functools
import http.client
import io
import os
import ssl
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import tensorflow as tf
import tensorflow_datasets as tfds
from google.protobuf.json_format import ParseError

from tf_graft.core.media import for_message
from tf_graft.core.spelling import suggest
from tf_graft.training.builders import SklearnDigits, StdlibText, StdlibWords
from tf_graft.training.schema import Data
from tf_graft.training.source import ConfigError

SOURCES: dict[str, type[tfds.core.DatasetBuilder]] = {
    "digits": SklearnDigits,
    "text": StdlibText,
    "words": StdlibWords,
}
PATIENCE = 10.0  # seconds for a host to answer


def data_dir(config: Data) -> str:
    """Returns the folder of prepared data sets: `data.dir`, TFDS_DATA_DIR or the user's cache."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    chosen = config.dir or os.environ.get("TFDS_DATA_DIR") or cache / "tf_graft" / "datasets"
    return str(Path(chosen).expanduser())


def builder(config: Data) -> tfds.core.DatasetBuilder:
    """Prepares a data set on disk, and downloads it first if it is not one of ours.

    Raises:
        ConfigError: the data set is unknown or cannot be downloaded, or the folder cannot be used.
    """
    folder = data_dir(config)
    download = tfds.download.DownloadConfig(try_download_gcs=False)
    if config.name in SOURCES:
        with _usable(folder, config):
            # A second's work on local files: without progress bars and notices of a download.
            tfds.disable_progress_bar()
            with contextlib.redirect_stdout(io.StringIO()):
                ours = _prepared(lambda: SOURCES[config.name](data_dir=folder), download)
            tfds.enable_progress_bar()
            if not _is_whole(ours):
                raise ParseError("files are missing, or of another size")
        return ours
    result = found(config)
    if not result.is_prepared():
        find = functools.partial(tfds.builder, config.name, data_dir=folder, try_gcs=False)
        result = _download(find, download, config)
    return result


def found(config: Data) -> tfds.core.DatasetBuilder:
    """Returns the builder of a data set, which may not be prepared yet.

    Raises:
        ConfigError: the data set is unknown, or the folder cannot be used.
    """
    folder = data_dir(config)
    if config.name in SOURCES:
        return SOURCES[config.name](data_dir=folder)
    try:
        with _usable(folder, config):
            return tfds.builder(config.name, data_dir=folder, try_gcs=False)
    except ConfigError:
        raise
    except (tfds.core.registered.DatasetNotFoundError, ValueError):
        known = [*SOURCES, *tfds.list_builders(with_community_datasets=False)]
        hint = suggest(config.name, known, "`tf-graft list`")
        message = (
            f"no data set '{for_message(config.name)}', and none is prepared in {folder} "
            f"(data.dir); {hint}"
        )
        raise config.error(("data", "name"), message) from None


def _prepared(
    find: Callable[[], tfds.core.DatasetBuilder], how: tfds.download.DownloadConfig
) -> tfds.core.DatasetBuilder:
    """Prepares a data set and returns it; another process of the run may prepare it meanwhile."""
    found = find()
    # If this cannot be made, it is an error here; tensorflow-datasets would print a warning first.
    found.data_path.parent.mkdir(parents=True, exist_ok=True)
    try:
        found.download_and_prepare(download_config=how)
    except (OSError, tf.errors.OpError):
        found = find()
        if not found.is_prepared():
            raise
    return found


@contextlib.contextmanager
def _usable(folder: str, config: Data) -> Iterator[None]:
    """Turns errors of the folder of the data sets into a ConfigError."""
    try:
        yield
    except (OSError, tf.errors.OpError) as error:
        reason = getattr(error, "strerror", None) or str(error).partition("\n")[0].rstrip(".")
        message = f"data sets cannot be kept in {folder} ({reason}); choose another data.dir."
        raise config.error(("data", "dir"), message) from None
    except ParseError as error:
        reason = str(error).partition("\n")[0].rstrip(".")
        message = (
            f"'{config.name}' in {folder} is damaged ({reason}); remove it to prepare it again."
        )
        raise config.error(("data", "dir"), message) from None


def _is_whole(found: tfds.core.DatasetBuilder) -> bool:
    """Returns whether the files of a data set of ours exist and have the size of its records."""
    splits = found.info.splits.values()
    framing = 16  # bytes of a TFRecord besides the example: its length and two checksums
    return bool(splits) and all(
        sum(os.path.getsize(path) for path in split.filepaths if os.path.isfile(path))
        == split.num_bytes + framing * split.num_examples
        for split in splits
    )


def _download(
    find: Callable[[], tfds.core.DatasetBuilder],
    how: tfds.download.DownloadConfig,
    config: Data,
) -> tfds.core.DatasetBuilder:
    """Prepares a data set; asks its host first, as tensorflow-datasets would retry for minutes."""
    try:
        for url in list(find().url_infos or ())[:1]:
            _reach(url)
        return _prepared(find, how)
    except (OSError, AssertionError, tfds.download.DownloadError) as error:
        reason = str(error).strip().partition("\n")[0].rstrip(".")
        message = (
            f"'{config.name}' is not in {data_dir(config)} (data.dir) and cannot be downloaded "
            f"({reason}); {', '.join(SOURCES)} need no network: data.name={next(iter(SOURCES))}."
        )
        raise config.error(("data", "name"), message) from None


def _reach(url: str) -> None:
    """Raises a ConnectionError if a URL's host cannot be reached; any answer will do."""
    try:
        urllib.request.urlopen(urllib.request.Request(url, method="HEAD"), timeout=PATIENCE).close()
    except urllib.error.URLError as error:
        if isinstance(error.reason, OSError) and not isinstance(error.reason, ssl.SSLError):
            host = urllib.parse.urlsplit(url).hostname
            raise ConnectionError(f"no connection to {host}") from None
    except (OSError, http.client.HTTPException):
        return
