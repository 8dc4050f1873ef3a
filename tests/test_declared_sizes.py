"""Files that declare more than they hold are refused before it is in memory."""

import json
import resource
import shutil
import zipfile

import h5py
import keras
import numpy as np
import pytest

import tf_graft
from support.file_models import compiled, fit
from support.samples import assert_same_state, state_of
from tf_graft import Adam

LENGTH, MEMORY = 10_000, 100e6  # a bomb is of 400 MB; more than this may not be used


def momentum(h5):
    """The place of a slot in a file."""
    group = h5["optimizer/vars"]
    return group, next(key for key in group if "kernel" in key and "momentum" in key)


def kernel(h5):
    """The place of a layer's weights in a file."""
    layer = next(name for name in h5["layers"] if len(h5["layers"][name]["vars"]))
    return h5[f"layers/{layer}/vars"], "0"


def who(h5):
    """The place in a file of what the optimizer says of itself."""
    return h5["optimizer/vars"], "optimizer"


def declare(place, shape, dtype="f4", says=False):
    """Has an entry of a file declare something large, of which the file holds nothing."""

    def change(h5):
        group, key = place(h5)
        if says:
            said = json.loads(bytes(np.asarray(group["optimizer"])))
            said["shapes"][key.replace("|", "/")] = list(shape)
            del said["checksums"], group["optimizer"]
            group["optimizer"] = np.frombuffer(json.dumps(said).encode(), np.uint8)
        del group[key]
        group.create_dataset(key, shape, dtype, chunks=True, compression="gzip")

    return change


SQUARE = (LENGTH, LENGTH)
BOMBS = {
    "a slot": declare(momentum, SQUARE),
    "a slot, and says so": declare(momentum, SQUARE, says=True),
    "a slot of long texts": declare(momentum, (3, 4), f"S{LENGTH**2}"),
    "weights": declare(kernel, SQUARE),
    "who it is": declare(who, (4 * LENGTH**2,), "u1"),
}


def used():
    """The most memory that the process has had, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


@pytest.mark.parametrize("built", [True, False])
@pytest.mark.parametrize("bomb", BOMBS)
def test_weights_that_declare_too_much_are_not_read(bomb, built, tmp_path):
    file = tmp_path / "model.weights.h5"
    fit(compiled(Adam(0.01))).save_weights(file)
    with h5py.File(file, "a") as h5:
        BOMBS[bomb](h5)
    assert file.stat().st_size < MEMORY / 1000
    target = fit(compiled(Adam(0.01)), 1) if built else compiled(Adam(0.01))
    before, memory = state_of(target.optimizer, *target.variables), used()
    with pytest.raises(ValueError, match=r"declares 4\d\d,\d\d\d,\d\d\d bytes|1,200,000,000 bytes"):
        target.load_weights(file)
    assert used() - memory < MEMORY
    found = state_of(target.optimizer, *target.variables)
    assert_same_state({name: found[name] for name in before}, before)
    assert not any(value.any() for name, value in found.items() if name not in before)


@pytest.mark.parametrize("bomb", [name for name in BOMBS if name != "weights"])
def test_a_model_whose_optimizer_declares_too_much_is_not_read(bomb, tmp_path):
    """Keras gives the layers their weights itself, and knows nothing of the optimizer's shapes."""
    file, other = tmp_path / "model.keras", tmp_path / "other.keras"
    fit(compiled(Adam(0.01))).save(file)
    with zipfile.ZipFile(file) as archive:
        archive.extractall(tmp_path)
        names = archive.namelist()
    with h5py.File(tmp_path / "model.weights.h5", "a") as h5:
        BOMBS[bomb](h5)
    with zipfile.ZipFile(other, "w") as archive:
        for name in names:
            archive.write(tmp_path / name, name)
    memory = used()
    with pytest.raises((ValueError, tf_graft.CheckpointError)):
        keras.saving.load_model(other)
    assert used() - memory < MEMORY


def test_weights_that_are_packed_are_read(tmp_path):
    """As `h5repack` leaves them: what the file holds is less than what it declares."""
    file, packed = tmp_path / "model.weights.h5", tmp_path / "packed.weights.h5"
    source = fit(compiled(Adam(0.01)))
    source.save_weights(file)
    shutil.copy(file, packed)
    with h5py.File(packed, "a") as h5:
        for group, names in ((h5[p], list(h5[p])) for p in ("optimizer/vars", kernel(h5)[0].name)):
            for name in names:
                value = np.asarray(group[name])
                del group[name]
                how = {"chunks": True, "compression": "gzip"} if value.ndim else {}
                group.create_dataset(name, data=value, **how)
    for target in (fit(compiled(Adam(0.01)), 1), compiled(Adam(0.01))):
        target.load_weights(packed)
        target.optimizer.build(target.trainable_variables)
        for ours, theirs in zip(
            target.optimizer.variables, source.optimizer.variables, strict=True
        ):
            np.testing.assert_array_equal(ours.numpy(), theirs.numpy())
