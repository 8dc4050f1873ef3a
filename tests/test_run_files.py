"""The files of a run that a later session reads: of version 0.1, damaged, or removed.

What else can happen to them is tried by the battery, in `trust/files.py`.
"""

import json
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from support import forked
from tf_graft import cli
from tf_graft.grafting import records
from tf_graft.training.log import read

pytestmark = pytest.mark.filterwarnings(
    "ignore:__array__ implementation doesn't accept a copy keyword:DeprecationWarning"
)

MESH = "mesh: {batch: 2, model: 2, shard_slots: true, layouts: {'dense.*kernel': [null, model]}}\n"
GOLDEN = Path(__file__).parent / "goldens" / "run_graft_0_2_0"  # stopped after 7 of 9 steps
WHOLE = {name: read(GOLDEN / f"whole_{name}") for name in ("steps.csv", "metrics.csv")}


@pytest.fixture
def folder(tmp_path):
    """The folder of a run that version 0.2 has begun."""
    return Path(shutil.copytree(GOLDEN, tmp_path / "run"))


def train(folder, *overrides):
    arguments = [str(folder / "config.yaml"), f"run.dir={folder}", *overrides]
    return CliRunner().invoke(cli.app, ["train", *arguments])


def report(path):
    return CliRunner().invoke(cli.app, ["report", str(path)])


@pytest.mark.slow
def test_a_run_of_0_2_0_is_reported_and_goes_on(folder):
    assert "7 records to step 7" in report(folder).output
    done = train(folder)
    assert done.exit_code == 0, done.output
    assert f"Resuming {folder} after step 7 of 9." in done.output
    for name, whole in WHOLE.items():
        found = read(folder / name)
        assert list(found) == list(whole)
        for column in whole:
            np.testing.assert_allclose(found[column], whole[column], rtol=1e-4)
        assert (folder / name).read_text().splitlines()[0].endswith(",crc32")
    path = folder / records.FILE
    assert records.read(folder).steps.tolist() == list(range(1, 10))
    path.write_bytes(path.read_bytes()[: -records.read(folder).header.row.itemsize])
    cut = report(folder)
    assert cut.exit_code == 2
    assert "whose rows are not those it was saved with; put back a copy" in cut.stderr
    assert report(path).exit_code == 0


@pytest.mark.slow
def test_a_run_of_fewer_updates_than_steps_is_reported_and_goes_on(folder):
    """As if it had been killed after step 8: the records have an update after its last state."""
    run, states = folder / "accumulated", folder / "accumulated" / "checkpoints"
    options = f"run.dir={run}", "optimizer.gradient_accumulation_steps=2"
    assert train(folder, *options, "run.epochs=2").exit_code == 0
    shutil.copytree(states, folder / "states")
    assert train(folder, *options).exit_code == 0
    whole = (run / records.FILE).read_bytes()
    shutil.rmtree(states)
    shutil.copytree(folder / "states", states)
    (run / "summary.json").unlink()
    assert "4 records to step 4" in report(run).output
    done = train(folder, *options)
    assert done.exit_code == 0, done.output
    assert f"Resuming {run} after step 6 of 9." in done.output
    assert (run / records.FILE).read_bytes() == whole


@pytest.mark.slow
def test_a_damaged_log_is_refused_and_may_be_removed(folder):
    steps = folder / "steps.csv"
    steps.write_text(steps.read_text().replace("\n2,1", "\n2,l"))
    before = steps.read_bytes()
    done = train(folder)
    assert done.exit_code == 1
    assert done.stderr.count("\n") == 1
    assert f"does not go with {steps}, whose line 3 is damaged. Put back a copy" in done.stderr
    assert steps.read_bytes() == before
    steps.unlink()
    done = train(folder)
    assert done.exit_code == 0, done.output
    assert f"{steps} is gone or empty: the rows up to step 7 are lost" in done.output
    assert read(steps)["step"].tolist() == [8, 9]
    np.testing.assert_allclose(read(steps)["loss"], WHOLE["steps.csv"]["loss"][7:], rtol=1e-4)
    assert json.loads((folder / "summary.json").read_text())["steps"] == 9


@pytest.mark.slow
def test_a_run_that_has_gone_further_is_not_cut_short(folder):
    done = train(folder, "run.epochs=2")
    assert done.exit_code == 1
    assert "ckpt-7 is beyond the end of the run, which is step 6; raise run.epochs" in done.stderr
    assert len(read(folder / "steps.csv")["step"]) == 7


@pytest.mark.rare
def test_a_run_on_a_mesh_is_saved_and_goes_on(folder):
    """In processes of their own: each needs devices of its own."""
    config = folder / "config.yaml"
    text = config.read_text().replace("adagraft", "adam").partition("  diagnostic")
    config.write_text(f"{text[0]}{text[2].partition('momentum: 0.9')[2]}{MESH}")
    for epochs, said in {1: "Training a model", 2: "after step 3 of 6"}.items():
        command = [forked.python(), "-m", "tf_graft", "train", str(config), f"run.epochs={epochs}"]
        done = subprocess.run(
            [*command, f"run.dir={folder / 'mesh'}"], capture_output=True, text=True, timeout=300
        )
        assert done.returncode == 0, done.stderr
        assert said in done.stdout
    assert read(folder / "mesh" / "steps.csv")["step"].tolist() == list(range(1, 7))
