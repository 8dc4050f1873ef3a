"""A run's folder from the terminal: one process at a time, full disks, and Ctrl-C at any moment."""

import contextlib
import os
import re
import resource
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from support import forked
from tf_graft.core.files import whole_files
from tf_graft.training.lock import InUse, locked

CONFIG = str(Path(__file__).parents[1] / "configs" / "digits_adagrad.yaml")
WAIT = 300.0  # seconds, at most
COMMAND = (sys.executable, "-m", "tf_graft")


@pytest.fixture
def start(monkeypatch):
    """Starts a command; none is left behind."""
    monkeypatch.delenv("TF_CPP_MIN_LOG_LEVEL", raising=False)  # which has TensorFlow talk
    given = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with contextlib.ExitStack() as stack:

        def begin(*arguments, command=COMMAND, **more):
            process = subprocess.Popen([*command, *arguments], **given, **more)
            stack.enter_context(process)
            stack.callback(process.kill)
            return process

        yield begin


def wait_for(process, happened):
    """Returns when it has; the process must not end before."""
    until = time.monotonic() + WAIT
    while not happened():
        assert process.poll() is None, process.communicate()[1]
        assert time.monotonic() < until
        time.sleep(0.002)


def test_what_takes_a_files_place_is_whole(tmp_path):
    """Several files at once, the last of them after all others; none where it fails."""
    path = tmp_path / "ckpt-1.index"
    path.write_text("old")
    (tmp_path / "ckpt-1.index.part").mkdir()
    (tmp_path / "ckpt-1.index.part" / "ckpt-1.index of a kill").touch()

    def fail():
        with whole_files.whole(path) as part:
            part.write_text("half")
            raise OSError(28, "no room")

    with pytest.raises(OSError, match=r"^\[Errno 28\] no room: '.*ckpt-1\.index'$"):
        fail()
    assert {each.name: each.read_text() for each in tmp_path.iterdir()} == {path.name: "old"}
    with whole_files.whole(path) as part:
        part.write_text("new")
        part.with_name("ckpt-1.data").write_text("its data")
        assert path.read_text() == "old"
    texts = {each.name: each.read_text() for each in tmp_path.iterdir()}
    assert texts == {"ckpt-1.index": "new", "ckpt-1.data": "its data"}


@pytest.mark.parametrize("name", ["curve.png.part", "curve.png.part/thesis.txt"])
def test_a_part_of_another_program_is_kept(name, tmp_path):
    other = tmp_path / name
    other.parent.mkdir(exist_ok=True)
    other.write_text("mine")
    with pytest.raises(OSError, match=r"another program is in its place: '.*curve\.png\.part'"):
        whole_files.write(tmp_path / "curve.png", "new")
    assert other.read_text() == "mine"
    assert not (tmp_path / "curve.png").exists()


def test_a_lock_is_held_once_and_a_file_that_a_kill_left_is_none(tmp_path):
    path = tmp_path / "run.lock"
    path.write_text("process 1 on gone, since 1970\n" * 9)
    with locked(path) as holds:
        assert holds
        who = re.escape(f"process {os.getpid()} on ")
        assert re.fullmatch(rf"{who}\S+, since [-\d]+ [:\d]+\n", path.read_text())
        with pytest.raises(InUse, match=who), locked(path):
            pass
        assert path.exists()
    assert not path.exists()


def test_of_many_that_want_a_lock_one_at_a_time_has_it(tmp_path):
    """Its file is removed and made anew all the time, and never two are held."""
    path, inside, most = tmp_path / "run.lock", [], []

    def want():
        for _ in range(200):
            with contextlib.suppress(InUse), locked(path):
                inside.append(1)
                time.sleep(0)  # others may go on
                most.append(len(inside))
                inside.pop()

    threads = [threading.Thread(target=want) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert max(most) == 1


@pytest.mark.slow
def test_another_process_is_named_and_a_killed_one_leaves_no_lock(start, tmp_path):
    arguments = ["train", CONFIG, f"run.dir={tmp_path / 'a'}", "run.tensorboard=false"]
    first = start(*arguments, "run.epochs=5000")
    wait_for(first, (tmp_path / "a" / "steps.csv").exists)
    first.send_signal(signal.SIGSTOP)  # it holds the lock, and takes no processor from the second
    second = start(*arguments, "run.epochs=5000", "run.fresh=true")
    _, said = second.communicate(timeout=WAIT)
    assert second.returncode == 2
    assert f"{tmp_path / 'a'} is in use by process {first.pid} on " in said
    assert said.count("\n") == 1
    first.kill()
    first.communicate()
    assert (tmp_path / "a" / "run.lock").exists()
    other = (forked.python(), "-m", "tf_graft")
    third = start(*arguments, "run.epochs=1", "run.fresh=true", command=other)
    _, said = third.communicate(timeout=WAIT)
    assert third.returncode == 0, said
    assert not (tmp_path / "a" / "run.lock").exists()


@pytest.mark.rare
def test_a_full_disk_is_a_sentence(start, tmp_path):
    """Files of more than so many bytes stand for it: the weights' is the first."""
    arguments = ["train", CONFIG, f"run.dir={tmp_path / 'a'}", "run.epochs=2"]
    limit = (20_000, resource.RLIM_INFINITY)
    full = start(*arguments, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, limit))
    _, said = full.communicate(timeout=WAIT)
    assert full.returncode == 1
    assert re.fullmatch(
        rf"{tmp_path}/a/\S+: file too large; nothing that was saved is lost: after that is fixed, "
        r"the same command continues\.\n",
        said,
    )


@pytest.mark.slow
@pytest.mark.parametrize("loaded", ["_pydantic_core", "libtensorflow_framework"])
def test_an_interrupt_while_a_command_starts_is_a_sentence(loaded, start, tmp_path):
    """Within the imports of others, a KeyboardInterrupt would be lost or another error."""
    arguments = ["train", CONFIG, f"run.dir={tmp_path / 'a'}", "run.epochs=100"]
    # Where pytest is a background job of a shell, it would be ignored.
    process = start(*arguments, preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL))
    maps = Path(f"/proc/{process.pid}/maps")
    wait_for(process, lambda: loaded in maps.read_text())
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=WAIT)
    assert process.returncode == 130
    assert said == "Interrupted.\n"
    assert not (tmp_path / "a").exists()


@pytest.mark.rare
def test_a_folder_that_is_renamed_while_a_run_writes_to_it_is_a_sentence(start, tmp_path):
    folder, moved = tmp_path / "a", tmp_path / "b"
    arguments = ["train", CONFIG, f"run.dir={folder}", "run.tensorboard=false"]
    process = start(*arguments, "run.epochs=2000", "run.checkpoint_every=5")
    wait_for(process, (folder / "steps.csv").exists)
    folder.rename(moved)
    _, said = process.communicate(timeout=WAIT)
    assert process.returncode == 1
    assert re.fullmatch(
        rf"{folder}\S*: [^\n]+; nothing that was saved is lost: after that is fixed, the same "
        r"command continues\.\n",
        said,
    )
    assert not folder.exists()
    assert (moved / "config.yaml").exists()
