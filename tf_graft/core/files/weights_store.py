"""Writes an optimizer's state into a Keras weights store, and finds it there again."""

import functools
import json
import zlib
from collections.abc import Mapping

import numpy as np

from tf_graft.core.files.checked_state import IDENTITY, Found, Value, numpy
from tf_graft.core.files.identity import Identity, Named, damaged
from tf_graft.core.types import Config, Entry, Store

MAX_SAID = 2**26  # bytes of a state's description; enough for a million variables


def save(identity: Identity, named: Named, store: Store) -> None:
    """Writes each variable under its path and role, and the identity of the optimizer."""
    values = numpy(named)
    sums = {name: _checksum(value) for name, value in values.items()}
    said = json.dumps({**identity.description(named), "checksums": sums})
    store[IDENTITY] = np.frombuffer(said.encode(), np.uint8)
    for name, value in values.items():
        store[_key(name)] = value


def found(identity: Identity, saved: Mapping[str, Value]) -> Found:
    """Returns the state in a store that `save` wrote; entries of a file are read when used.

    Raises:
        CheckpointError: the state is another optimizer's, or was altered; reading a value can raise
            this, too.
    """
    owner, said = identity.owner, _said(identity, saved[IDENTITY])
    keys = {name: _key(name) for name in said["shapes"]}
    sums = said.get("checksums")  # a file that is made by hand has none

    def read(name: str) -> np.ndarray:
        value = np.asarray(saved[keys[name]])
        if sums is not None and sums.get(name) != _checksum(value):
            raise damaged(owner, f"'{keys[name]}' is not as it was saved")
        return value

    for name, key in keys.items():
        if key not in saved or list(saved[key].shape) != said["shapes"][name]:
            raise damaged(owner, f"'{key}' is missing or of another shape")
        if isinstance(saved[key], np.ndarray):
            read(name)
    for key in set(saved) - {IDENTITY, *keys.values()}:
        raise damaged(owner, f"'{key}' is no part of it")

    def entry(name: str) -> Entry:
        once = functools.cache(functools.partial(read, name))
        return Entry(once, saved[keys[name]].shape, saved[keys[name]].dtype)

    def values(_: Named, names: Mapping[str, str]) -> dict[str, Value]:
        return {n: entry(as_saved) for n, as_saved in names.items() if as_saved in keys}

    return Found(said["shapes"], values, saved)


def _said(identity: Identity, saved: Value) -> Config:
    """Returns a store's description of the state in it."""
    if len(saved.shape) != 1 or saved.dtype != np.uint8 or saved.shape[0] > MAX_SAID:
        raise damaged(identity.owner, f"'{IDENTITY}' is no text")
    return identity.described(bytes(np.asarray(saved)))


def _key(name: str) -> str:
    """Returns the key of a name in a store: a slash would begin a group in an HDF5 file."""
    return name.replace("%", "%25").replace("|", "%7C").replace("/", "|")


def _checksum(value: np.ndarray) -> int:
    return zlib.crc32(np.ascontiguousarray(value).tobytes())
