"""A run is ended at each operation on its files; the same command must go on as if undisturbed.

A kill leaves what the folder holds at that moment, so one run yields what all kills in it leave;
some real ones show that it does. Full disks, file systems that become read-only and interrupts are
real errors, raised in place of an operation; files that may not grow are the system's own.
"""

import contextlib
import itertools
import os
import re
import resource
import signal
import subprocess
import tempfile
from pathlib import Path

from support import forked
from tf_graft.training.folder_errors import FolderError
from tf_graft.training.source import ConfigError
from trust import Result, folders, links, lives, operations

# What a message tells the user to do.
ADVICE = re.compile(r"same command( without run\.fresh=true)? continues|run\.dir")
SIZES = [2**n for n in range(5, 17)]
# Where a real process is killed: (life, operation, path).
REAL = [
    ("first", "rename", "config.yaml.part/config.yaml"),
    ("first", "rename", "checkpoints/ckpt-2.part/ckpt-2.index"),
    ("fresh", "remove", "checkpoints/ckpt-6.index"),
    ("longer", "rename", "summary.json.part/summary.json"),
]


def attacks(every):
    """Yields a `Result` an attack, of one in `every`."""
    turn = itertools.count()

    def chosen():
        return next(turn) % every == 0

    with tempfile.TemporaryDirectory() as folder, lives.Runs(folder) as runs:
        known = runs.lives()
        for name, life in known.items():
            yield from _kills(runs, name, life, chosen)
        for name in ("first", "fresh"):
            places = _places(runs, known[name], name)
            for how in (_fails(operations.full), _fails(operations.read_only), _interrupt):
                yield from _errors(
                    runs, f"{name}: {how.__name__}", known[name], how, places, chosen
                )
        yield from _limits(runs, known["first"], chosen)
        yield from folders.attacks(runs, known, chosen)
        yield from links.attacks(runs, known, _places(runs, known["first"], "first"), chosen)
        for name, operation, path in REAL if every == 1 else ():
            yield _real(runs, known[name], f"{name}: SIGKILL before {operation} {path}", path)


def _kills(runs, name, life, chosen):
    """Commands that go on after a kill before each operation, or in the middle of a write."""
    met = set()
    for place, found in _left(runs, life):
        key = None if found is None else frozenset(found.items())
        if key in met:
            continue
        met.add(key)
        for overrides in life.again:
            if not chosen():
                continue
            attack = f"{name}: killed {place}; {' '.join(overrides)}"
            yield Result(attack, _after(runs, life, found, overrides))


def _after(runs, life, found, overrides):
    """What is wrong after the next command: an old run, where it is still there, is untouched."""
    if overrides != life.overrides and _config(found) == _config(life.found):
        return lives.difference({**found, "run.lock": b""}, {**life.found, "run.lock": b""})
    return runs.wrong(found, overrides, life.end)


def _config(found):
    """The config of the run in a folder: the old one's, before a fresh one begins."""
    return (found or {}).get("config.yaml")


def _left(runs, life):
    """What a kill leaves of a life, wherever it falls: (place, content of the folder)."""
    places = [("at the start", life.found)]

    def look(operation, path):
        before, now = places[-1][1] or {}, operations.content(runs.folder)
        now = {**now, "run.lock": b"process 1 on gone, since then\n"} if "run.lock" in now else now
        if operation == "checkpoint written":
            torn = operations.torn_checkpoint(before, now, path)
        else:
            torn = operations.torn(before, now)
        places.extend((f"with {what}", found) for what, found in torn)
        places.append((f"before {operation} {path}", now))

    operations.put(runs.folder, life.found)
    with operations.watched(runs.folder, look):
        runs(life.overrides)
    return places


def _errors(runs, what, life, how, places, chosen):
    """Commands that go on after one in which an operation was not possible."""
    for number, (operation, path) in places:
        if chosen():
            wrong = _disturbed(runs, life, how(runs.folder, number))
            yield Result(f"{what} from {operation} {path} on (number {number})", wrong)


def _places(runs, life, name):
    """The first and the last of each kind of operation of a life: (number, operation)."""
    made = _made(runs, life)
    if name != "first":  # what the others do before they are as the first
        made = made[: made.index(("mkdir", "config.yaml.part")) + 1]
    kinds = {}
    for number, (operation, path) in enumerate(made):
        kinds.setdefault((operation, re.sub(r"ckpt-\d+", "ckpt", path)), []).append(number)
    numbers = sorted({each for found in kinds.values() for each in (found[0], found[-1])})
    return [(number, made[number]) for number in numbers]


def _made(runs, life):
    """The operations of a life: (operation, path)."""
    made = []
    operations.put(runs.folder, life.found)
    with operations.watched(runs.folder, lambda *operation: made.append(operation)):
        runs(life.overrides)
    return made


def _fails(fail):
    def how(folder, number):
        turn = itertools.count()
        return lambda *operation: fail(folder, *operation) if next(turn) >= number else None

    how.__name__ = fail.__name__
    return how


def _interrupt(folder, number):
    turn = itertools.count()

    def interrupt(*_):
        if next(turn) == number:
            raise KeyboardInterrupt

    return interrupt


def _disturbed(runs, life, called):
    """What is wrong after a command in whose course `called` may raise, and the next one."""
    operations.put(runs.folder, life.found)
    with operations.watched(runs.folder, called):
        wrong = _ends_in_a_sentence(runs, life)
    if wrong:
        return wrong
    left = operations.content(runs.folder) if runs.folder.exists() else None
    return next(filter(None, (_after(runs, life, left, each) for each in life.again)), None)


def _ends_in_a_sentence(runs, life):
    try:
        runs(life.overrides)
    except (FolderError, ConfigError) as error:
        if "\n" in str(error) or not ADVICE.search(str(error)):
            return f"{type(error).__name__} says: {error}"
    except KeyboardInterrupt:
        return None
    except BaseException as error:
        return f"{type(error).__name__}: {error}"
    return None


def _limits(runs, life, chosen):
    """No file may grow beyond so many bytes."""
    for size in SIZES:
        if chosen():
            operations.put(runs.folder, life.found)
            with _limited(size):
                wrong = _ends_in_a_sentence(runs, life)
            left = operations.content(runs.folder) if runs.folder.exists() else None
            wrong = wrong or runs.wrong(left, life.overrides, life.end)
            yield Result(f"no file above {size} bytes", wrong)


@contextlib.contextmanager
def _limited(size):
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def _real(runs, life, attack, path):
    """A process of its own is killed; what it leaves is what the others are given."""
    operations.put(runs.folder, life.found)
    tests = Path(__file__).parents[1]
    given = repr(["tf-graft", "train", *runs.arguments(life.overrides)])
    program = (
        f"import sys; sys.path[:0] = {[str(tests), str(tests.parent)]!r}; sys.argv = {given}\n"
        f"from trust import kills; kills.die({str(runs.folder)!r}, {path!r})"
    )
    done = subprocess.run([forked.python(), "-c", program], capture_output=True, timeout=300)
    if done.returncode != -signal.SIGKILL:
        return Result(attack, f"it ended with {done.returncode}: {done.stderr[-500:]}")
    left = operations.content(runs.folder)
    expected = dict(_left(runs, life))[attack.partition("SIGKILL ")[2]]
    if left.keys() != expected.keys():
        return Result(attack, f"it left {sorted(left)}")
    return Result(attack, runs.wrong(left, life.again[0], life.end))


def die(folder, path):
    """Runs the command line until an operation on a file, which is not made."""

    def kill(operation, found):
        if found == path and operation in ("rename", "remove"):
            os.kill(os.getpid(), signal.SIGKILL)

    from tf_graft.cli import main

    with operations.watched(folder, kill):
        main()
