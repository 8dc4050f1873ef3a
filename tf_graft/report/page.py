"""A report as one HTML file that needs nothing else."""

import base64
import html
import io
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from tf_graft.report import findings
from tf_graft.report.findings import times
from tf_graft.report.graft_report import GraftReport, Layer

FILE = "report.html"
MAGNITUDE, DIRECTION, RATIO, OTHER = "#4269d0", "#e8743b", "#3ca951", "#bbbbbb"
NAMED = ("#4269d0", "#e8743b", "#3ca951", "#a463f2", "#6cc5b0")
MOST_PANELS = 240
STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 1080px; margin: 2em auto; padding: 0 1em }
table { border-collapse: collapse; font-size: 13px }
td, th { padding: 2px 10px 2px 0; text-align: right; border-bottom: 1px solid #ddd }
td:first-child, th:first-child, td:last-child, th:last-child { text-align: left }
tr.silent { color: #999 }
img { max-width: 100% }
.bar { display: flex; height: 1.6em; margin: .5em 0 } .bar span { overflow: hidden; color: #fff;
padding-left: 4px; white-space: nowrap }
"""


def write(report: GraftReport, path: Path, title: str) -> None:
    """Writes the page, whole or not at all."""
    header = report.records.header
    layers = report.layers()
    of_what = f"{header.magnitude}'s length along {header.direction}'s direction"
    parts = [
        f"<h1>{html.escape(title)}: what the graft measured</h1>",
        f"<p>{html.escape(of_what)}, {len(report.records.steps):,} records to step "
        f"{report.records.steps[-1]:,}.</p>",
        *(f"<p>{html.escape(text)}</p>" for text in findings.findings(report)),
        _bar(report),
        "<h2>The ratio over training</h2>",
        _image(_ratios(report, layers), "The ratio of the norms over the steps, by layer"),
        "<h2>How near rates come to the graft</h2>",
        _kinds(report),
        "<h2>The layers, furthest from the common ratio first</h2>",
        _table(layers),
        "<h2>Norms and ratio of each layer</h2>",
        _image(_panels(report, layers), "Norms and ratio over the steps, a panel a layer"),
    ]
    head = f"<meta charset=utf-8><title>{html.escape(title)}</title><style>{STYLE}</style>"
    part = path.with_name(f"{path.name}.part")
    part.write_text(f"<!doctype html><html lang=en>{head}\n" + "\n".join(parts) + "</html>\n")
    os.replace(part, path)


def _bar(report: GraftReport) -> str:
    """The shares of variance."""
    shares = report.shares
    names = {"global": shares.shared, "per layer": shares.layer, "own course": shares.own}
    spans = [
        f'<span style="width:{share:.2%};background:{color}">{name} {share:.1%}</span>'
        for color, (name, share) in zip(NAMED, names.items(), strict=False)
    ]
    return f'<div class="bar">{"".join(spans)}</div>'


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
    head = "".join(f"<th>{html.escape(name)}</th>" for name in names)
    body = "".join(
        f"<tr{' class=silent' if silent and silent[i] else ''}>"
        + "".join(f"<td>{html.escape(cell)}</td>" for cell in row)
        + "</tr>"
        for i, row in enumerate(rows)
    )
    return f"<table><tr>{head}</tr>{body}</table>"


def _ratios(report: GraftReport, layers: Sequence[Layer]) -> Figure:
    """All layers, the furthest ones by name, and what they have in common."""
    figure = Figure(figsize=(10, 5), layout="constrained")
    axis = figure.subplots()
    speaking = [layer.path for layer in layers if not layer.silent]
    named = dict(zip(speaking, NAMED, strict=False))
    for path in reversed(speaking):
        color, label = named.get(path, OTHER), path if path in named else None
        curve = report.ratio[:, report.paths.index(path)]
        width = 1.4 if label else 0.6
        axis.plot(report.records.steps, curve, color=color, linewidth=width, label=label)
    axis.plot(report.records.steps, report.common, "k", linewidth=2, label="common")
    axis.set(yscale="log", xlabel="step", ylabel="length of magnitude over direction")
    axis.grid(alpha=0.3)
    axis.legend(frameon=False, fontsize="small", loc="center left", bbox_to_anchor=(1, 0.5))
    return figure


def _panels(report: GraftReport, layers: Sequence[Layer]) -> Figure:
    columns, shown = 4, layers[:MOST_PANELS]
    rows = -(-len(shown) // columns)
    figure = Figure(figsize=(12, 2.1 * rows + 0.4), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False, sharex=True)
    for axis in axes.flat[len(shown) :]:
        axis.set_axis_off()
    for axis, layer in zip(axes.flat, shown, strict=False):
        i = report.paths.index(layer.path)
        for curves, color, label in (
            (report.records.magnitude, MAGNITUDE, "length"),
            (report.records.direction, DIRECTION, "direction"),
            (report.ratio, RATIO, "ratio"),
        ):
            curve = np.where(curves[:, i] > 0, curves[:, i], np.nan)
            axis.plot(report.records.steps, curve, color=color, linewidth=0.8, label=label)
        axis.set_yscale("log")
        axis.set_title(layer.path + (" (silent)" if layer.silent else ""), fontsize=8)
        axis.tick_params(labelsize=7, labelbottom=True)
    axes[0, 0].legend(frameon=False, fontsize=7)
    return figure


def _image(figure: Any, alternative: str) -> str:
    content = io.BytesIO()
    figure.savefig(content, format="png", dpi=80)
    data = base64.b64encode(content.getvalue()).decode()
    return f'<img alt="{html.escape(alternative)}" src="data:image/png;base64,{data}">'
