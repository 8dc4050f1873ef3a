"""The conclusions of a report, in sentences."""

from tf_graft.grafting.graft_report import WORTHWHILE, GraftReport

KINDS = {
    "free": "one factor for all layers, chosen best at every step",
    "global": "one factor for all layers (global)",
    "constant": "one rate a layer (constant)",
    "power_law": "one factor a layer and a shared power of the step (power_law)",
    "piecewise": "one factor a layer and a shared curve (piecewise)",
}


def earned(report: GraftReport) -> bool:
    """Returns whether per-layer rates fit the graft's steps better than any single factor."""
    misses = report.misses()
    by_layer = min(misses[kind] for kind in ("constant", "power_law", "piecewise"))
    return by_layer < misses["free"] - WORTHWHILE


def verdict(report: GraftReport) -> str:
    """Says whether per-layer rates earned anything over one global factor."""
    misses = report.misses()
    kind = min(("constant", "power_law", "piecewise"), key=lambda k: misses[k])
    figures = (
        f"One factor for all layers, even chosen best at every step, misses the graft's steps by "
        f"{misses['free']:.0%} of their length; rates by layer ({kind}) miss them by "
        f"{misses[kind]:.0%}."
    )
    if earned(report):
        end = "Per-layer rates earned something: no single factor makes these steps."
    else:
        end = "Per-layer rates earned nothing over one factor: a schedule for all layers would do."
    note = "That is about steps; a run with --kind global shows whether it matters to the loss."
    return " ".join([_of_global(report), figures, end, note]).strip()


def savings(report: GraftReport) -> str:
    """Says how much state memory is saved by dropping the magnitude optimizer."""
    header = report.records.header
    saved, all_ = header.magnitude_bytes, header.magnitude_bytes + header.direction_bytes
    share = f" ({saved / all_:.0%})" if all_ else ""
    return (
        f"Without {header.magnitude}, the optimizers' state shrinks from {size(all_)} to "
        f"{size(header.direction_bytes)}: {size(saved)}{share} less."
    )


def variance(report: GraftReport) -> str:
    """Says how the variance of the ratio's logarithm is composed."""
    shares = report.shares
    if not shares.total:
        return "The ratio is the same for all layers at all times."
    return (
        f"Of the variance of the ratio's logarithm, {shares.shared:.1%} is global (one course for "
        f"all layers), {shares.layer:.1%} per layer (constant differences), {shares.own:.1%} each "
        f"layer's own course over time."
    )


def silent(report: GraftReport) -> str:
    """Names the variables whose ratio says nothing; empty if there are none."""
    if not report.silent:
        return ""
    count = len(report.silent)
    names = ", ".join(f"{path} ({why})" for path, why in report.silent.items())
    return (
        f"The ratio says nothing of {count} of {len(report.paths)} variables; exported rates keep "
        f"them within the range of the other layers: {names}."
    )


def findings(report: GraftReport) -> list[str]:
    """Returns all the conclusions that apply."""
    return [x for x in (verdict(report), variance(report), silent(report), savings(report)) if x]


def size(count: int) -> str:
    """Formats a number of bytes in a readable unit."""
    value, unit = float(count), "bytes"
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if value < 1024 or unit == "GiB":
            break
        value /= 1024
    return f"{value:.0f} {unit}" if unit == "bytes" else f"{value:.1f} {unit}"


def times(factor: float) -> str:
    """Formats a factor as `× 3.20` or `÷ 4.00`."""
    return f"× {factor:.2f}" if factor >= 1 else f"÷ {1 / factor:.2f}"


def _of_global(report: GraftReport) -> str:
    if not report.records.header.use_global_norm:
        return ""
    return "The graft took one norm over all variables; this report compares steps layer by layer."
