"""A report as one self-contained HTML file."""

import base64
import io
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from matplotlib.figure import Figure

from tf_graft.core.files.report_files import write_whole
from tf_graft.core.media import for_html
from tf_graft.grafting import figures, findings
from tf_graft.grafting.findings import times
from tf_graft.grafting.graft_report import GraftReport, Layer
from tf_graft.monitor.norms_file import NormsReport, number

FILE = "report.html"
MOST_PANELS = 240
STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 1080px; margin: 2em auto; padding: 0 1em }
.table { overflow-x: auto } table { border-collapse: collapse; font-size: 13px }
td, th { padding: 2px 10px 2px 0; text-align: right; border-bottom: 1px solid #ddd }
td:first-child, th:first-child, td:last-child, th:last-child { text-align: left }
td:not(:first-child) { white-space: nowrap }
tr.silent { color: #999 }
img { width: 100% }
.panels { display: grid; grid-template-columns: repeat(auto-fill, minmax(300px, 1fr)); gap: 1em }
figure { margin: 0 } figcaption { font-size: 13px; overflow-wrap: anywhere }
.bar { display: flex; height: 1.2em; margin: .5em 0 }
.key { font-size: 13px; margin: .5em 0 } .key span { margin-right: 1.5em; white-space: nowrap }
.key i { display: inline-block; width: 1em; height: .8em; margin-right: .4em }
"""


def write(parts: Sequence[str], path: Path, title: str) -> None:
    """Writes the page, whole or not at all.

    Args:
        parts: its content, as `of_graft` and `of_norms` return it.
        path: the file.
        title: the title of the window.

    Raises:
        ReportError: the file cannot be written.
    """
    device = '<meta name="viewport" content="width=device-width, initial-scale=1">'
    head = f"<meta charset=utf-8>{device}<title>{for_html(title)}</title><style>{STYLE}</style>"
    text = f"<!doctype html><html lang=en>{head}\n" + "\n".join(parts) + "</html>\n"
    write_whole(path, text)


def of_norms(report: NormsReport, title: str) -> list[str]:
    """Returns the part about the norms that a monitor measured."""
    names = ("variable", "learning rate", "weights at the end", "gradient", "step")
    rows = [(row.path, *map(number, row[1:])) for row in report.layers()]
    return [
        f"<h1>{for_html(title)}: norms of weights, gradients and steps</h1>",
        f"<p>{len(report.steps):,} records to step {report.steps[-1]:,}. Medians over the records; "
        "the layers that change fastest first.</p>",
        _image(
            figures.norms(report, 10, 4),
            "The norm of the gradient, and the ratio of step to weights, over the steps by layer",
            narrow=figures.norms(report, 4.2, 3.6),
        ),
        _rows((*names, "step / weights", "at most"), rows),
    ]


def of_graft(report: GraftReport, title: str) -> list[str]:
    """Returns the part about what a graft measured."""
    header = report.records.header
    layers = report.layers()
    of_what = f"{header.magnitude}'s length along {header.direction}'s direction"
    return [
        f"<h1>{for_html(title)}: what the graft measured</h1>",
        f"<p>{for_html(of_what)}, {len(report.records.steps):,} records to step "
        f"{report.records.steps[-1]:,}.</p>",
        *(f"<p>{for_html(text)}</p>" for text in findings.findings(report)),
        _bar(report),
        "<h2>The ratio over training</h2>",
        _image(
            report.plot(10, 5),
            "The ratio of the norms over the steps, by layer",
            narrow=report.plot(4.2, 4.6),
        ),
        "<h2>How close rates come to the graft</h2>",
        _kinds(report),
        "<h2>The layers, furthest from the common ratio first</h2>",
        _table(layers),
        "<h2>Norms and ratio of each layer</h2>",
        _panels(report, layers),
    ]


def _bar(report: GraftReport) -> str:
    """Draws the shares of variance as a bar."""
    shares = report.shares
    names = {"global": shares.shared, "per layer": shares.layer, "own course": shares.own}
    colors = dict(zip(names, figures.NAMED, strict=False))
    parts = [
        f'<span style="width:{share:.2%};background:{colors[name]}"></span>'
        for name, share in names.items()
    ]
    key = {f"{name} {share:.1%}": colors[name] for name, share in names.items()}
    return f'<div class="bar">{"".join(parts)}</div>{_key(key)}'


def _kinds(report: GraftReport) -> str:
    misses = report.misses()
    rows = [(what, f"{misses[kind]:.1%}") for kind, what in findings.KINDS.items()]
    return _rows(("rates", "miss the graft's steps by (of their length, median)"), rows)


def _table(layers: Sequence[Layer]) -> str:
    names = ("variable", "shape", "ratio", "of common", "over time", "length", "direction")
    rows = [
        (
            *(layer.path, "×".join(map(str, layer.shape)), f"{layer.ratio:.3g}"),
            "" if layer.silent else times(layer.of_common),
            "" if layer.silent else f"×÷ {layer.spread:.2f}",
            *(f"{x:.2g}" for x in (layer.magnitude, layer.direction, layer.weight)),
            layer.silent,
        )
        for layer in layers
    ]
    return _rows((*names, "weight at the end", "note"), rows, [bool(x.silent) for x in layers])


def _rows(
    names: Iterable[str], rows: Sequence[Sequence[str]], silent: Sequence[bool] | None = None
) -> str:
    head = "".join(f"<th>{for_html(name)}</th>" for name in names)
    body = "".join(
        f"<tr{' class=silent' if silent and silent[i] else ''}>"
        + "".join(f"<td>{for_html(cell)}</td>" for cell in row)
        + "</tr>"
        for i, row in enumerate(rows)
    )
    return f'<div class="table"><table><tr>{head}</tr>{body}</table></div>'


def _panels(report: GraftReport, layers: Sequence[Layer]) -> str:
    """Makes a grid with one figure for each layer, its name above it."""
    shown = [
        f"<figure><figcaption>{for_html(layer.path)}{' (silent)' if layer.silent else ''}"
        f"</figcaption>{_image(_panel(report, layer), f'Norms and ratio of {layer.path}')}"
        "</figure>"
        for layer in layers[:MOST_PANELS]
    ]
    return f'{_key(figures.CURVES)}<div class="panels">{"".join(shown)}</div>'


def _panel(report: GraftReport, layer: Layer) -> Figure:
    i, recorded = report.paths.index(layer.path), report.records
    columns = (recorded.magnitude, recorded.direction, report.ratio)
    return figures.panel(recorded.steps, [column[:, i] for column in columns])


def _key(names: Mapping[str, str]) -> str:
    """Makes a legend from names and their colors."""
    items = [
        f'<span><i style="background:{color}"></i>{for_html(name)}</span>'
        for name, color in names.items()
    ]
    return f'<p class="key">{"".join(items)}</p>'


def _image(figure: Figure, alternative: str, narrow: Figure | None = None) -> str:
    """Embeds a figure, and another one for narrow windows if it is given."""
    source = ""
    if narrow is not None:
        source = f'<source media="(max-width: 600px)" srcset="{_data(narrow)}">'
    image = f'<img alt="{for_html(alternative)}" src="{_data(figure)}">'
    return f"<picture>{source}{image}</picture>"


def _data(figure: Figure) -> str:
    content = io.BytesIO()
    figure.savefig(content, format="png", dpi=110)
    return f"data:image/png;base64,{base64.b64encode(content.getvalue()).decode()}"
