"""Ways in which a file is damaged: each takes its content and gives what is found in its place."""

import json

import numpy as np

from tf_graft.grafting.records import Header

GONE, FOLDER = object(), object()


def of_any_file():
    """What can happen to any file, by name."""
    ways = {
        "gone": lambda content: GONE,
        "a folder": lambda content: FOLDER,
        "emptied": lambda content: b"",
        "zeros": lambda content: bytes(len(content)),
        "noise": lambda content: np.random.default_rng(0).bytes(len(content)),
        "noise at its end": lambda content: content + np.random.default_rng(1).bytes(200),
        "text at its end": lambda content: content + b"garbage\n",
        "twice": lambda content: 2 * content,
        "not UTF-8": lambda content: b"\xff\xfe" + content,
    }
    for at in (0.0, 0.02, 0.3, 0.6, 0.9, 1.0):
        ways[f"cut at {at}"] = lambda content, at=at: content[: int(at * (len(content) - 1))]
    for i in range(10):
        ways[f"flipped at 0.{i}"] = lambda content, i=i: flipped(content, i)
    return ways


def flipped(content, tenth):
    """One bit of one byte is another."""
    at = len(content) * tenth // 10 + 3
    return content[:at] + bytes([content[at] ^ 1 << tenth % 7]) + content[at + 1 :]


def of_rows(split):
    """What can happen to a file of rows, by name; `split` makes its content a head and rows."""

    def way(change):
        def damaged(content):
            head, rows = split(content)
            return head + b"".join(change(rows))

        return damaged

    ways = {"all rows gone": way(lambda rows: [])}
    for name, at in {"the first": 0, "one": 0.5, "the last": -1}.items():
        ways |= {
            f"{name} row gone": way(lambda rows, at=at: _without(rows, _index(rows, at))),
            f"{name} row twice": way(lambda rows, at=at: _twice(rows, _index(rows, at))),
            f"{name} row altered": way(lambda rows, at=at: _altered(rows, _index(rows, at))),
            f"rows end before {name}": way(lambda rows, at=at: rows[: _index(rows, at)]),
            f"{name} row moved": way(
                lambda rows, at=at: [rows[_index(rows, at)], *_without(rows, _index(rows, at))]
            ),
        }
    return ways


def _index(rows, at):
    return at % len(rows) if isinstance(at, int) else int(at * len(rows))


def _without(rows, i):
    return rows[:i] + rows[i + 1 :]


def _twice(rows, i):
    return [*rows[: i + 1], *rows[i:]]


def _altered(rows, i):
    """Another digit, or byte, in the middle of the row."""
    row, middle = rows[i], len(rows[i]) // 2
    digits = [k for k, byte in enumerate(row) if chr(byte).isdigit()]
    text = row.endswith(b"\n")  # as a binary row may, too
    at = min(digits, key=lambda k: abs(k - middle), default=middle) if text else middle
    return [*rows[:i], row[:at] + bytes([row[at] ^ 1]) + row[at + 1 :], *rows[i + 1 :]]


def lines(content):
    """The first line, and the others."""
    head, *rows = content.splitlines(keepends=True)
    return head, rows


def records(content):
    """The first line of a file of a graft's records, and its rows."""
    head, _, rest = content.partition(b"\n")
    fields = json.loads(head)
    size = Header(**{k: v for k, v in fields.items() if k != "format"}).row.itemsize
    return head + b"\n", [rest[i : i + size] for i in range(0, len(rest), size)]
