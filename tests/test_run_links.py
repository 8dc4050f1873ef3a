"""Links, FIFOs and devices in a run's folder: nothing of others is lost, and nobody waits."""

import os
import re
from pathlib import Path

import numpy as np
import pytest

import tf_graft
from support.at_once import at_once
from tf_graft.core.files import whole_files
from tf_graft.grafting import records
from tf_graft.report import MeasuredRates, ReportError
from tf_graft.training import config as configs
from tf_graft.training import log, plots, results
from tf_graft.training.folder import RunFolder
from tf_graft.training.lock import locked
from tf_graft.training.saved_state import SavedState
from tf_graft.training.source import ConfigError

CONFIG = "data: {name: digits}\nmodel: {name: mlp}\noptimizer: {name: adam}\nrun: {epochs: 2}\n"
FRESH = "run.fresh=true"
FILES = (
    *("config.yaml", "config.yaml.emptying", "run.lock", "steps.csv", "metrics.csv", "plot.png"),
    *("summary.json", "model.keras", "graft.records", "report.html"),
)


class Run:
    """A run's folder, and beside it a folder of somebody else."""

    def __init__(self, place):
        self.path, self.others = place / "run", place / "others"
        self.others.mkdir()
        (self.others / "thesis.txt").write_text("all of it")
        self.begin()

    def begin(self, *overrides):
        """What a session does with the folder before its first step, and after its last."""
        parsed = configs.parse(CONFIG, "a.yaml", [f"run.dir={self.path}", *overrides])
        folder = RunFolder(str(self.path))
        folder.check(parsed)
        with folder.opened(parsed, say=print):
            pass

    def refused(self, *overrides):
        """The sentence that refuses a session, which comes at once and changes nothing."""
        before = listed(self.path)
        with at_once(), pytest.raises(ConfigError) as refusal:
            self.begin(*overrides)
        assert listed(self.path) == before
        assert "\n" not in str(refusal.value)
        return str(refusal.value)

    def keeps_what_is_of_others(self):
        return [p.read_text() for p in self.others.iterdir()] == ["all of it"]


def listed(folder):
    return {path: path.lstat().st_mode for path in folder.rglob("*")}


@pytest.fixture
def run(tmp_path):
    return Run(tmp_path)


@pytest.mark.parametrize("name", ["checkpoints", "tensorboard"])
def test_a_link_to_a_folder_is_used_and_never_emptied(name, run):
    (run.path / name).symlink_to(run.others)
    run.begin()
    said = run.refused(FRESH)
    assert f"{run.path / name} is a link to {run.others}, which no run empties; empty that" in said
    (run.path / "config.yaml").rename(run.path / "config.yaml.emptying")  # a fresh one was killed
    assert "is a link to" in run.refused()
    assert run.keeps_what_is_of_others()
    (run.others / "thesis.txt").unlink()
    run.begin()
    run.begin(FRESH)
    assert (run.path / name).is_symlink()
    assert run.others.exists()


@pytest.mark.parametrize("overrides", [(), (FRESH,)])
@pytest.mark.parametrize("name", [f"{name}.part" for name in FILES if name != "run.lock"])
def test_a_link_where_a_file_is_written_is_removed_itself(name, overrides, run):
    (run.path / name).symlink_to(run.others)
    run.begin(*overrides)
    assert run.keeps_what_is_of_others()


def test_a_link_within_what_is_emptied_is_removed_itself(run):
    (run.path / "tensorboard").mkdir()
    (run.path / "tensorboard" / "train").symlink_to(run.others)
    run.begin(FRESH)
    assert run.keeps_what_is_of_others()
    assert not (run.path / "tensorboard").exists()


@pytest.mark.parametrize("make", [os.symlink, os.link])
def test_a_lock_that_is_a_link_is_refused(make, run):
    thesis = run.others / "thesis.txt"
    make(thesis, run.path / "run.lock")
    assert "run.dir" in run.refused()
    with pytest.raises(OSError, match="in its place"), locked(run.path / "run.lock"):
        pass
    assert run.keeps_what_is_of_others()


@pytest.mark.parametrize("name", [*FILES, "checkpoints", "tensorboard", "tensorboard/test"])
def test_what_is_neither_file_nor_folder_is_refused_at_once(name, run):
    path = run.path / name
    path.unlink(missing_ok=True)
    path.parent.mkdir(exist_ok=True)
    for make, what in (
        (os.mkfifo, "named pipe"),
        (lambda p: os.symlink("/dev/full", p), "link" if name == "run.lock" else "device"),
        (lambda p: os.symlink("nowhere", p), "link"),
    ):
        make(path)
        for overrides in ((), (FRESH,)):
            said = run.refused(*overrides)
            assert f"{path} is a {what}" in said
            assert "which no run makes; move it away, or choose another run.dir." in said
        path.unlink()


READERS = {
    "steps.csv": lambda path: pytest.fail(log.rows(path).damage),
    "summary.json": results.read,
    "graft.records": records.read,
    "rates.json": MeasuredRates.load,
    "run.lock": lambda path: locked(path).__enter__(),
    "plot.png": lambda path: whole_files.write(path, "new"),
    "ckpt-5.index": lambda path: SavedState(path.with_suffix("")),
    "ckpt-5.data-00000-of-00001": lambda path: SavedState(path.with_suffix("")),
}


@pytest.mark.parametrize("name", READERS)
@pytest.mark.parametrize("make", [os.mkfifo, lambda path: os.symlink("/dev/zero", path)])
def test_nobody_waits_for_a_fifo_or_reads_a_device(make, name, tmp_path):
    path = tmp_path / name
    make(path)
    if name == "plot.png" and path.is_symlink():
        pytest.skip("the link is replaced")
    errors = OSError, ReportError, tf_graft.CheckpointError, pytest.fail.Exception
    with at_once(), pytest.raises(errors, match=r"\ba (named pipe|device|link)"):
        READERS[name](path)
    assert not path.is_file()


def test_a_file_takes_the_place_of_a_link(tmp_path):
    """Also of one to a device, into which root would write."""
    mine = tmp_path / "mine"
    mine.write_text("mine")
    for target in (mine, tmp_path / "nowhere", Path("/dev/null")):
        path = tmp_path / "rate.png"
        path.unlink(missing_ok=True)
        path.symlink_to(target)
        plots.draw_schedule({"all": np.ones(2)}, np.arange(2), "a schedule", path)
        assert not path.is_symlink()
        assert path.read_bytes().startswith(b"\x89PNG")
    assert mine.read_text() == "mine"
    assert not (tmp_path / "nowhere").exists()


def test_a_folder_that_is_moved_is_not_written_to(run):
    """Nor is the one that is now where it was."""
    parsed = configs.parse(CONFIG, "a.yaml", [f"run.dir={run.path}"])
    moved = run.path.with_name("moved")

    def move(another):
        folder = RunFolder(str(run.path))
        with folder.opened(parsed, say=print):
            steps = log.Log(folder.steps, ["step"], 0)
            run.path.rename(moved)
            if another:
                run.path.mkdir()
                (run.path / "steps.csv").write_text("another's")
            for use in (steps.sync, folder.check_place):
                with pytest.raises(OSError, match="it was moved or removed while it was in use"):
                    use()
            steps.close()

    for another in (False, True):
        said = rf"{run.path}: it was moved .* use; nothing that was saved is lost: after that is"
        with pytest.raises(OSError, match=said):
            move(another)
        assert (moved / "config.yaml").exists()
        if not another:
            assert not run.path.exists()
            moved.rename(run.path)
    assert re.findall("another", (run.path / "steps.csv").read_text())
