"""Devices that divide the work of matrices take the steps of one device, and each does less."""

import pytest
import tensorflow as tf

from programs import divided_cases
from support import column_runs
from tf_graft.core.places.shares import ALONE, Sharing


@pytest.mark.slow
@pytest.mark.parametrize("place", ["2_replicas", "mesh", "2_workers"])
def test_divided_work_equals_that_of_one_device(place):
    tasks = {"worker": 2} if place == "2_workers" else None
    lines = column_runs.lines_of(["programs.divided_cases", place], tasks, 200)
    one = tf.distribute.OneDeviceStrategy("CPU:0")
    each = {line["name"]: line for line in lines}
    own = [each.pop(name) for name in list(each) if "own_steps" in name]
    assert all(line["weights"] == own[0]["weights"] for line in own)
    made = divided_cases.optimizers()
    expected = {name: divided_cases.stepped(made[name], one) for name in each}
    for name, line in each.items():
        # eigenvectors by rotations on a mesh, and other sums of the gradients elsewhere
        column_runs.assert_equal(line["weights"], expected[name]["weights"], name, 1e-7)
    whole = expected["muon"]["multiplied"]
    assert each["undivided"]["multiplied"] == whole
    of_soap, too_small = (each[name]["multiplied"] for name in ("soap", "soap_too_small"))
    assert of_soap < expected["soap"]["multiplied"] == expected["soap_too_small"]["multiplied"]
    assert too_small == (of_soap if place == "mesh" else expected["soap_too_small"]["multiplied"])
    # two of the three matrices of one size, and the one of another, which has nothing beside it
    assert each["muon"]["multiplied"] == pytest.approx(whole * (2 * 216 + 125) / (3 * 216 + 125))


def test_a_share_is_padded_and_gathered():
    """The batches of both results are joined as the structure says, without what was added."""
    computed = []

    def whole(x):
        computed.append(x)
        return tf.concat([x, x + 1], 0)

    sharing = Sharing(2, lambda x, missing: tf.pad(x, [[0, missing], [0, 0]])[:2], whole)
    x = tf.constant([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])
    twice, first = sharing(lambda x: (2 * x, x[:, 0]), x)
    assert computed[0].shape == (2, 3)
    assert twice.numpy().tolist() == [[2, 4], [6, 8], [3, 5]]
    assert first.numpy().tolist() == [1, 3, 2]
    assert ALONE(lambda x: x, x) is x
