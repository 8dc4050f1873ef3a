"""Links, pipes and devices in the folder of a run, and folders that are moved while it runs.

What a link points to is somebody else's, and stays as it is. Nobody waits for a pipe.
"""

import os
import shutil
import socket
from pathlib import Path

from support.at_once import at_once
from trust import Result, operations
from trust.stopped import SENTENCES, unlike_a_sentence

FRESH = "run.fresh=true"
FILES = (
    *("config.yaml", "config.yaml.emptying", "steps.csv", "metrics.csv", "plot.png"),
    *("summary.json", "model.keras", "graft.records", "report.html", "run.lock"),
)
FOLDERS = ("checkpoints", "tensorboard", "tensorboard/train")
STATES = ("checkpoint", "ckpt-6.index", "ckpt-6.data-00000-of-00001")
PARTS = (*FILES, "checkpoints/ckpt-8", "checkpoints/checkpoint", "part.keras")
MINE = b"all of it"
STEP = ("open", "graft.records")  # what is done at each step
NOT_YET = (".", "run.lock")  # there is no folder that could be moved, or the run is over


def attacks(runs, lives, places, chosen):
    """Yields a `Result` an attack that is `chosen()`."""
    others = runs.folder.parent / "others"
    paths = (*FILES, *FOLDERS, *(f"checkpoints/{name}" for name in STATES))
    for attack, made in {
        **{f"{path} is a {what}": (path, make) for path in paths for what, make in ODD.items()},
        **{f"{name}.part links to a folder": (f"{name}.part", _link(others)) for name in PARTS},
        **{f"{name} links to another's": (name, _link(others / name)) for name in (*FILES, *paths)},
        **{f"{name} has another name": (name, _second(others / name)) for name in FILES},
    }.items():
        for life in (lives["longer"], lives["fresh"]):
            if chosen():
                wrong = _met(runs, life, others, *made)
                yield Result(f"{attack}; {' '.join(life.overrides)}", wrong)
    for another in (False, True):
        for number, (operation, path) in places:
            if path in NOT_YET or (another and (operation, path) != STEP):
                continue
            if chosen():
                wrong = _moved(runs, lives["first"], number, others if another else None)
                then = "; another is put in its place" if another else ""
                yield Result(f"moved before {operation} {path} (number {number}){then}", wrong)
    operations.put(others, None)


def _socket(path):
    here = Path.cwd()
    os.chdir(path.parent)  # the name of a socket is short
    try:
        socket.socket(socket.AF_UNIX).bind(path.name)
    finally:
        os.chdir(here)


ODD = {
    "named pipe": os.mkfifo,
    "socket": _socket,
    "device": lambda path: path.symlink_to("/dev/zero"),
    "full device": lambda path: path.symlink_to("/dev/full"),
    "broken link": lambda path: path.symlink_to("nowhere"),
    "link to itself": lambda path: path.symlink_to(path.name),
}


def _link(target):
    return lambda path: path.symlink_to(target)


def _second(target):
    return lambda path: os.link(target, path)


def _met(runs, life, others, name, make):
    """What is wrong after a command that meets something odd in its folder."""
    operations.put(runs.folder, life.found)
    theirs = _theirs(runs, others)
    path = runs.folder / name
    _cleared(path)
    path.parent.mkdir(exist_ok=True)
    make(path)
    before = _listed(runs.folder)
    try:
        with at_once():
            runs(life.overrides)
    except SENTENCES as error:
        changed = "/" not in name and _listed(runs.folder) != before
        wrong = "refused, and the folder changed" if changed else unlike_a_sentence(error)
    except BaseException as error:
        wrong = f"{type(error).__name__}: {error}"
    else:
        left = operations.content(others)
        # A state that is read through a link to a folder is the run's, and is kept up to date.
        used = {key for key in left.keys() | theirs.keys() if key.startswith(f"{name}/")}
        wrong = None if used else _ended(runs, life)
        theirs = {key: value for key, value in theirs.items() if key not in used or "mine" in key}
        left = {key: value for key, value in left.items() if key not in used or "mine" in key}
        return wrong or (None if left == theirs else f"of others' {sorted(left)} is left")
    finally:
        _cleared(path)
    return wrong or (None if operations.content(others) == theirs else "others' files changed")


def _theirs(runs, others):
    """Gives others a folder that looks like the run's, and something more in each folder."""
    _cleared(others)
    shutil.copytree(runs.folder, others)
    for folder in (others, others / "checkpoints", others / "tensorboard"):
        folder.mkdir(exist_ok=True)
        (folder / "mine.txt").write_bytes(MINE)
    for name in FILES:
        if not (others / name).exists():
            (others / name).write_bytes(MINE)
    return operations.content(others)


def _ended(runs, life):
    """What is wrong with the numbers that a run has ended with."""
    names = ("steps.csv", "metrics.csv")
    found = {name: (runs.folder / name).read_bytes() for name in names}
    return None if found == {name: life.end[name] for name in names} else "ends with other numbers"


def _listed(folder):
    return {path: (path.lstat().st_mode, path.lstat().st_size) for path in folder.rglob("*")}


def _cleared(path):
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _moved(runs, life, number, another):
    """What is wrong with a command whose folder is moved before an operation, and the next one."""
    elsewhere = runs.folder.with_name("elsewhere")
    made = []

    def move(*operation):
        made.append(operation)
        if len(made) == number + 1:
            runs.folder.rename(elsewhere)
            if another is not None:
                shutil.copytree(another, runs.folder)

    operations.put(runs.folder, life.found)
    theirs = None if another is None else _theirs_after(runs, life, another)
    try:
        with operations.watched(runs.folder, move):
            runs(life.overrides)
    except SENTENCES as error:
        wrong = unlike_a_sentence(error)
    except BaseException as error:
        wrong = f"{type(error).__name__}: {error}"
    else:
        wrong = "it says that it is done"
    there = operations.content(runs.folder) if runs.folder.exists() else None
    if there != theirs and there != {"checkpoints": None}:  # in which TensorFlow was to write
        wrong = wrong or f"where it was there is {sorted(there or ())}"
    _cleared(runs.folder)
    elsewhere.rename(runs.folder)
    return wrong or runs.wrong(operations.content(runs.folder), life.overrides, life.end)


def _theirs_after(runs, life, another):
    """Makes another run's folder, with the same files."""
    _cleared(another)
    another.mkdir()
    operations.put(another, {**life.end, "mine.txt": MINE})
    return operations.content(another)
