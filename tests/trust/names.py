"""Hostile names and patterns: what shows them shows them as they are, what matches them ends soon.

Names are put together of what a terminal, rich, matplotlib, HTML and Markdown take for commands, at
random. They are those of variables and optimizers in a graft's records, and of a run's folder.
"""

import html.parser
import random
import tempfile
import time
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf
from typer.testing import CliRunner

import tf_graft
from tf_graft import cli
from tf_graft.core.media import for_html, for_terminal
from tf_graft.grafting import page, records
from tf_graft.training import plots
from trust import Result

FRAGMENTS = (
    *("$", r"\frac", r"\$", "^{", "_", "$x$", r"\unknown{", "[/red]", "[bold]", "[", "]"),
    *("[link=x]", ":smile:", "\\", "\x1b[31m", "\x1b]0;t\x07", "\x9b2J", "\x1bP", "\r", "\b"),
    *("\0", "\u202e", "\u2028", "\ud800", "<script>", "</td>", "<!--", "-->", "&lt;", "'", '"'),
    *("|", "`", "\n", "\t", "%s", "{0}", "a/kernel", "dense", "é", "x" * 300, " "),
)
DRAWS = 60
LETTERS = "a" * 120 + "!"
SLOW = (
    *("(a+)+$", "(a*)*$", "(a|a)*$", "(a|aa)+$", "(.*)*x", "(.*.*.*.*.*.*)x", "(a?){90}b"),
    *("(a+a+)+b", "((a{1,60}){1,60}){1,60}b", "^(([a-z])+.)+[A-Z]", "(?=(a+)+$)b", "(a+?)+?b"),
    *("(?:a|a?)+b", "(a|b|ab)*c", r"(\w+\s?)*$", "a*a*a*a*a*a*a*a*b", "(((a)*)*)*b"),
    *("(?!(a|a)*$)x", "(a{0,9}){99}b", r"(a+)+\1b"),
)
SECONDS = 10.0


def _decayed(pattern, variables):
    options = {"weight_decay": 0.1, "exclude_from_weight_decay": [pattern]}
    tf_graft.SGD(0.1, **options).build(variables)


def _wrapped(pattern, variables):
    optimizer = tf_graft.wrap(keras.optimizers.Nadam())
    optimizer.exclude_from_weight_decay(var_names=[pattern])
    optimizer.weight_decay = 0.1
    optimizer.build(variables)


def _frozen(pattern, variables):
    trained = [*variables, tf.Variable([1.0], name="w")]
    tf_graft.optimize_loss(
        lambda: tf.reduce_sum(trained[0]),
        trained,
        "SGD",
        learning_rate_decay_fn=0.1,
        freeze_variables_regex=pattern,
    )


def _laid_out(pattern, variables):
    mesh = tf_graft.dtensor.create_mesh({"x": -1})
    tf_graft.dtensor.LayoutMap(mesh, {pattern: [None]}).pattern_for(LETTERS)


USES = {
    "SGD's decay": _decayed,
    "LARC": lambda p, v: tf_graft.LARC("sgd", exclude_from_layer_adaptation=[p]).build(v),
    "LAMB": lambda p, v: tf_graft.LAMB(0.1, exclude_from_layer_adaptation=[p]).build(v),
    "wrap": _wrapped,
    "freeze_variables_regex": _frozen,
    "LayoutMap": _laid_out,
}


def attacks(every):
    """A name or a pattern each."""
    drawn = random.Random(5)
    for number in range(DRAWS):
        name = "".join(drawn.choices(FRAGMENTS, k=drawn.randint(1, 5)))
        if number % every == 0:
            yield Result(f"a report on {name[:60]!r}", _wrongly_reported(name))
            yield Result(f"a plot of {name[:60]!r}", _failure(lambda n=name: _drawn(n)))
            yield Result(f"a message about {name[:60]!r}", _wrong_message(name))
    pairs = [(pattern, use) for pattern in SLOW for use in USES]
    for number, (pattern, use) in enumerate(pairs):
        if number % every == 0:
            yield Result(f"{use}, {pattern}", _too_slow(pattern, USES[use]))


def _too_slow(pattern, use):
    began = time.process_time()
    try:
        use(pattern, [tf.Variable([1.0], name=LETTERS)])
    except ValueError as error:
        if "takes longer than" not in str(error):
            return f"refused: {error}"
    except Exception as error:
        return f"{type(error).__name__}: {str(error)[:150]}"
    seconds = time.process_time() - began
    return None if seconds < SECONDS else f"took {seconds:.0f} s"


def _wrongly_reported(name):
    with tempfile.TemporaryDirectory() as home:
        folder = Path(home) / ("".join(name.split("\0"))[:60].replace("/", "-") or "x")
        try:
            folder.mkdir()
        except (OSError, UnicodeError):
            folder = Path(home)
        _write_records(folder / records.FILE, name)
        done = CliRunner().invoke(cli.app, ["report", str(folder)])
        if done.exit_code:
            return f"code {done.exit_code}: {done.exception!r} {done.output[:150]!r}"
        if escapes := _unprintable(done.stdout):
            return f"{escapes!r} in the terminal"
        if "".join(for_terminal(name).split()) not in "".join(done.stdout.split()):
            return "the terminal shows another name"
        text = (folder / page.FILE).read_text("utf-8")
        if escapes := _unprintable(text):
            return f"{escapes!r} in the page"
        tags = Tags()
        tags.feed(text)
        return f"tags {tags.odd} in the page" if tags.odd or for_html(name) not in text else None


def _write_records(path, name):
    names = [name, "other"]
    header = records.Header(names, [[2], [2]], name, "SGD", False, 8, 8)
    file = records.RecordFile(path, header, 0)
    for step in range(1, 4):
        file.append(step, 0.1, np.random.default_rng(step).uniform(1, 2, (2, 3)))
    file.sync()


def _drawn(name):
    with tempfile.TemporaryDirectory() as home:
        plots.draw_schedule({name: np.ones(2)}, np.arange(2), name, Path(home) / "plot.png")


def _failure(call):
    try:
        call()
    except Exception as error:
        return f"{type(error).__name__}: {str(error)[:150]}"
    return None


def _wrong_message(name):
    done = CliRunner().invoke(cli.app, ["train", f"{name}.yaml", name])
    if done.exit_code not in (1, 2) or not isinstance(done.exception, SystemExit):
        return f"code {done.exit_code}: {done.exception!r}"
    escapes = _unprintable(done.output)
    return f"{escapes!r} in {done.output[:150]!r}" if escapes else None


def _unprintable(text):
    return sorted({c for c in text if not c.isprintable() and c != "\n"})


class Tags(html.parser.HTMLParser):
    """The tags of a page that are none of a report's."""

    def __init__(self):
        super().__init__()
        self.odd = []

    def handle_starttag(self, tag, attributes):
        if tag in ("script", "object", "iframe") or any(n.startswith("on") for n, _ in attributes):
            self.odd.append(tag)
