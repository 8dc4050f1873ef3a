"""Hostile configs and overrides: each ends as one sentence with its place, and nothing is written.

Every place of every config of `config_places` is given what makes no sense there, in the file or by
an override in turn; and files are broken as YAML, and overrides as overrides.
"""

import contextlib
import itertools
import os
import re
import shutil
import tempfile
from pathlib import Path

import keras
from typer.testing import CliRunner

from tf_graft import cli
from tf_graft.training import config as configs
from tf_graft.training import configured_optimizer as optimizer
from tf_graft.training import plain_yaml
from trust import Result
from trust.config_places import RUN, bases, kinds, places, written

FILE = "c.yaml"
LONGEST = 1_000  # characters of a sentence
THIN = 5  # of 10,000 pairs of a place and a text, every fifth: each place and each text has many
TEXT = plain_yaml.written(RUN)
FILES = {
    "empty": b"",
    "blanks": b"\n \n",
    "zeros": b"\0" * 100,
    "not UTF-8": TEXT.encode().replace(b"digits", b"\xff\xfe"),
    "UTF-16": TEXT.encode("utf-16"),
    "gzip": b"\x1f\x8b\x08\x00" + bytes(range(256)),
    "too long": b"#" * 70_000,
    "deep": b"[" * 30_000,
    "deep blocks": b"- " * 5_000,
    "a list": b"- data\n",
    "a text": b"data",
    "a number": b"3",
    "nothing": b"null",
    "two documents": f"{TEXT}---\n{TEXT}".encode(),
    "YAML 1.1": f"%YAML 1.1\n---\n{TEXT}".encode(),
    "YAML 1.3": f"%YAML 1.3\n---\n{TEXT}".encode(),
    "a handle": f"%TAG ! tag:x,2000:\n---\n{TEXT}".encode(),
    "cut": TEXT[: TEXT.index("optimizer")].encode(),
}
# Added to a section, as its first line.
LINES = (
    *("unknown: 1", "class_name: Adam", "module: os", "registered_name: x", "config: {a: 1}"),
    *("<<: {a: 1}", "? [a]\n: 1", "1: 2", "true: 1", "~: 1", "\tname: x", "a b", "*a : 1", "- 1"),
    *("!!python/object/apply:os.system [ls]", "&a x: 1", "'", "name: [", "}", "@x: 1", "%x: 1"),
    *(
        "${a}: 1",
        '"\\U00110000": 1',
        '"\\UFFFFFFFF": 1',
        f"{'k' * 900}: 1",
        '"\\xzz": 1',
        "x: |9999\n a",
        "\x01: 1",
    ),
)
OVERRIDES = (
    *("run.epochs", "=3", "run.=3", ".epochs=3", "run..epochs=3", "run.epochs:3", "a b=3", "=", ""),
    *("run.epochs=", "run=", "run=3", "run=[]", "run={}", "run.epochs.x=3", "run.dir=''", "new=1"),
    *("model.units.1=3", "model.units.x=3", "model.units.-1=3", "model.units.0.x=3", "data.0=1"),
    *("model.units.0=x", "model.units.0=", "model.units=", "model.units.00000000001=3"),
    *(
        "run.epochs=1\n---\n2",
        "run.epochs=%YAML 1.1\n---\n1",
        "run.epochs=1: 2: 3",
        "run.epochs=[1",
    ),
    *("run.epochs=@", "run.epochs=`", "run.epochs=- 1", "run.epochs=\t1", "run.epochs=\x01"),
    *("data.dir=/dev/null", f"data.dir={FILE}", "data.dir=/dev/null/x", "data.dir=/proc/x"),
    *(
        "data.dir=[a]",
        "data.dir=3",
        "data.dir=\udcff",
        "data.train=train[5:2]",
        "data.train=train[",
    ),
    *("data.test=test[:0]", "data.train=train[:200%]", "data.batch_size=4096", "data.image_size=0"),
    *("model={name: transformer}", "model.name=ResNet51", "model={name: application}", "model=mlp"),
    *(
        "strategy={name: mirrored, devices: 3}",
        "strategy={name: multi_worker}",
        "strategy=mirrored",
    ),
    *(
        "mesh={batch: 3}",
        "mesh={model: 9999}",
        "mesh={batch: 2, model: 2, layouts: {'(': [batch]}}",
    ),
    *("model.units=[65536, 65536, 65536]", "model={name: cnn, filters: [65536, 65536]}"),
    *(
        "optimizer.learning_rate=---",
        "optimizer.learning_rate=--- 1",
        "optimizer.learning_rate=...",
    ),
    *("optimizer.learning_rate=1_000.5_", "run.epochs=1__0", "run.epochs=1_", "run.epochs=_1"),
    *("optimizer.learning_rate=1_.5", "optimizer.learning_rate=+-1", "run.epochs=0b1"),
    *(f"{'k' * 200_000}=1", f"run.{'k' * 200_000}=1", f"run.epochs={'k' * 200_000}"),
    *(f"optimizer{'.optimizer' * 300}=sgd", f"optimizer={'{name: larc, optimizer: ' * 300}"),
    *("mesh={batch: 2, layouts: {'(a+)+\\1': [batch]}}", 'data.name="\\UFFFFFFFF"'),
    *("\x1b]0;t\x07=1", "run.epochs=\x1b[31m", "run.[/red]=1", "run.epochs='[/red]$\\frac$'"),
    *("optimizer={}", "optimizer={name: larc}", "optimizer={name: larc, optimizer: 3}"),
    *("optimizer={name: larc, optimizer: {name: larc, optimizer: {name: larc}}}",),
    *("optimizer={name: layerwise_rates, optimizer: sgd, rates: /dev/zero}",),
    *("optimizer={name: layerwise_rates, optimizer: sgd, rates: nowhere.json}",),
    *("optimizer={name: loss_scale_optimizer, inner_optimizer: sgd}",),
    *("optimizer={name: wrapped, optimizer: {name: mixed_precision, optimizer: sgd}}",),
)


def attacks(every):
    """A config or an override each."""
    with _workshop():
        for attack, arguments in _all(every):
            yield Result(attack, _wrong(arguments))
        yield from _controls(every)


def _all(every):
    yield from _values(every)
    yield from _files(every)
    for i, override in enumerate(OVERRIDES):
        if i % every == 0:
            yield f"override {override!r}", (TEXT.encode(), override)


def _values(every):
    """What makes no sense, in every place: by an override and in the file in turn."""
    pairs = itertools.islice(_pairs(), 0, None, THIN * every)
    for i, (name, base, key, text) in enumerate(pairs):
        place = ".".join(map(str, key))
        attack = f"{name}: {place}={text[:40]}"
        if i % 2 and re.fullmatch(r"\w+(\.\w+)*", place):
            whole = written(base, ("run", "epochs"), "1")
            yield f"{attack} by an override", (whole.encode(), f"{place}={text}")
        else:
            yield attack, (written(base, key, text).encode(),)


def _pairs():
    """Every place, and everything that makes no sense there."""
    seen = set()
    for name, base in bases():
        for key, value in places(base):
            if name == "run" or (key, str(value)) not in seen:
                seen.add((key, str(value)))
                yield from ((name, base, key, text) for text in kinds(key, value))


def _files(every):
    """Files that are no configs, or broken in a section."""
    for i, (name, content) in enumerate(FILES.items()):
        if i % every == 0:
            yield f"a file: {name}", (content,)
    for i, section in enumerate(RUN):
        for j, line in enumerate(LINES):
            if (i + j) % every == 0:
                block = f"{section}:\n"
                broken = TEXT.replace(block, block + "  " + line.replace("\n", "\n  ") + "\n", 1)
                yield f"a line in {section}: {line!r}", (broken.encode(),)


def _controls(every):
    """What the attacks are made from is accepted, or they would show nothing."""
    for at, (name, base) in enumerate(bases()):
        if at % every == 0:
            yield Result(f"{name} as it is", _refused(written(base, ("run", "epochs"), "1")))


def _refused(text):
    try:
        config = configs.parse(text)
        optimizer.build(config, 2, keras.Model)
    except ValueError as error:
        return f"refused: {error}"
    return None


@contextlib.contextmanager
def _workshop():
    """An empty folder to be in; the data set is prepared elsewhere."""
    before = os.environ.get("TFDS_DATA_DIR")
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as data:
        os.environ["TFDS_DATA_DIR"] = data
        try:
            with contextlib.chdir(folder):
                yield
        finally:
            os.environ.pop("TFDS_DATA_DIR")
            if before is not None:
                os.environ["TFDS_DATA_DIR"] = before


def _wrong(arguments):
    content, *overrides = arguments
    Path(FILE).write_bytes(content)
    done = CliRunner().invoke(cli.app, ["train", FILE, *overrides])
    written = sorted(path.name for path in Path().iterdir() if path.name != FILE)
    if done.exit_code == 0:
        _remove(written)
        return "accepted"
    if not isinstance(done.exception, SystemExit):
        _remove(written)
        return f"a traceback: {done.exception!r}"
    if written:
        _remove(written)
        return f"refused, and {', '.join(written)} written"
    sentence = done.stderr
    if not sentence.rstrip("\n").isprintable() or len(sentence) > LONGEST:
        return f"control characters, or too long: {sentence[:300]!r}"
    if done.exit_code != 2 or sentence.count("\n") != 1 or done.stdout:
        return f"code {done.exit_code}, not one sentence: {sentence[:300]!r}"
    if not sentence.startswith((FILE, "override '")) or sentence[-2] not in ".?":
        return f"no sentence with its place: {sentence[:300]!r}"
    return None


def _remove(names):
    for name in names:
        shutil.rmtree(name, ignore_errors=True)
