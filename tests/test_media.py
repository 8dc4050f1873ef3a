"""Names from files and of users are shown as they are in every medium: none is markup there."""

import contextlib
import html.parser
import re
from types import SimpleNamespace

import matplotlib.pyplot as plt
import numpy as np
import pytest
from matplotlib.figure import Figure
from typer.testing import CliRunner

from benchmarks import chart, results, sheets
from tf_graft import cli
from tf_graft.core import media
from tf_graft.grafting import page, records, table
from tf_graft.report import GraftReport
from tf_graft.terminal import Terminal
from tf_graft.training import plots
from tf_graft.training.log import Log

ESCAPES = "\x1b[31m\x1b]0;owned\x07\x9b2J\x08\r\u202e\udcff"
NAMES = {
    "mathematics": r"$\frac$ and $x",
    "a closing tag": "[/red] [bold] :smile:",
    "escape sequences": ESCAPES,
    "HTML": "</td><script>alert('&amp;')</script>",
    "underlined": "_hidden_/kernel",
    "Markdown": "a|b\\|c `d`\n| e",
    "long": "a" * 9_000,
}
CONTROLS = re.compile(r"[^\n -~\u00a0-\u1fff\u2010-\u2027\u2030-\u2059\u2070-\ud7ff\ue000-\uffff]")


def file_of_records(path, names):
    """A graft's records of variables, and of optimizers, of these names."""
    header = records.Header(list(names), [[2]] * len(names), names[0], names[-1], False, 8, 8)
    file = records.RecordFile(path, header, 0)
    for step in range(1, 5):
        norms = np.exp(np.random.default_rng(step).normal(size=(len(names), 3)))
        file.append(step, 0.1, norms)
    file.sync()
    return path


@pytest.mark.slow
@pytest.mark.parametrize("kind", NAMES)
def test_a_report_shows_names_as_they_are(tmp_path, kind):
    folder = tmp_path / f"{NAMES[kind][:60]}[red]$\\frac$".replace("/", "-")
    folder.mkdir()
    file_of_records(folder / records.FILE, [NAMES[kind], "other"])
    done = CliRunner().invoke(cli.app, ["report", str(folder)])
    assert done.exit_code == 0, done.output
    assert not CONTROLS.search(done.stdout)
    shown = "".join(media.for_terminal(NAMES[kind]).split())[:40]
    assert shown in "".join(done.stdout.split())
    text = (folder / page.FILE).read_text()
    assert not CONTROLS.search(text.replace("\t", ""))
    found = Tags()
    found.feed(text)
    assert "script" not in found.tags
    assert media.for_terminal(NAMES[kind])[:40] in found.text
    assert media.for_terminal(folder.name) in found.text


class Tags(html.parser.HTMLParser):
    """The tags of a page, and its text."""

    def __init__(self):
        super().__init__()
        self.tags, self.text = set(), ""

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)

    def handle_data(self, data):
        self.text += data


@pytest.mark.slow
@pytest.mark.parametrize("kind", NAMES)
def test_figures_show_names_as_they_are(tmp_path, kind):
    name = NAMES[kind]
    of_run = GraftReport(records.read(file_of_records(tmp_path / "r", [name, "other"])))
    figure = of_run.plot(10, 5)
    figure.savefig(tmp_path / "ratios.png")
    [legend] = figure.legends
    assert media.for_figure(name) in [text.get_text() for text in legend.get_texts()]
    plots.draw_schedule({name: np.ones(3)}, np.arange(3), name, tmp_path / "schedule.png")
    run = SimpleNamespace(**{n: tmp_path / n for n in ("steps", "metrics", "plot.png")})
    run.plot = tmp_path / "plot.png"
    for path, columns, rows in (
        (run.steps, ("step", "loss", "learning_rate"), [(1, 1.0, 1.0), (2, 1.0, 1.0)]),
        (run.metrics, ("epoch", "step", "train_loss", "test_loss"), [(1, 2, 1.0, 1.0)]),
    ):
        with contextlib.closing(Log(path, columns, 0)) as log:
            for row in rows:
                log.add(dict(zip(columns, row, strict=True)))
    plots.draw_run(run, name)
    measured = results.Measured("dense", name, {"stock": [1.0], "tf_graft": [1.0]}, {}, [], {})
    chart.draw([measured], name, tmp_path / "chart.png")


def test_matplotlib_draws_dollars_as_they_are():
    figure = Figure()
    for text in (r"$\frac$", r"\$", r"a\$b$", "$$$"):
        drawn = figure.text(0, 0, media.for_figure(text))
        assert drawn._preprocess_math(drawn.get_text()) == (text, False)
    plt.close("all")


@pytest.mark.parametrize("kind", NAMES)
def test_a_table_in_markdown_has_its_cells(kind):
    sheet = sheets.Sheet(NAMES[kind], ["b"], [[NAMES[kind], "1"]], [])
    lines = sheets.markdown(sheet).split("\n")
    assert len(lines) == 3
    for line in lines:
        assert len(re.findall(r"(?<!\\)(?:\\\\)*\|", line)) == 3
        assert "<" not in line


def test_errors_have_no_escape_sequences(tmp_path):
    path = f"{tmp_path}/{ESCAPES[:-1]}.yaml"
    done = CliRunner().invoke(cli.app, ["train", path])
    assert done.exit_code == 2
    assert not CONTROLS.search(done.stderr)
    assert r"\x1b[31m" in done.stderr


def test_the_terminal_takes_no_text_for_markup(capsys):
    Terminal(soft_wrap=True).print("[/red] :smile: \x1b[31m")
    assert capsys.readouterr().out == "[/red] :smile: \\x1b[31m\n"


@pytest.mark.parametrize(("width", "beside"), [(100, True), (50, False), (20, False)])
def test_a_table_breaks_no_name(width, beside, capsys):
    name = "transformer/layer_1/attention/query/kernel"
    rows = table.NamedRows(("variable", "ratio", "weight"), "Norms", "Medians.")
    rows.add(name, "0.25", "12")
    rows.add("\x1b[31m", "0.5", "3", style="bright_black")
    Terminal(width=width).print(rows, crop=False)
    lines = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    assert (name in lines) is not beside
    (at,) = (i for i, line in enumerate(lines) if name in line)
    assert lines[at + (not beside)].split()[-2:] == ["0.25", "12"]
    assert r"\x1b[31m" in "".join(lines)
