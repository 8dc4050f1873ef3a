"""The table of a study, for the terminal and for a document."""

import math
from collections.abc import Sequence

from rich.table import Column, Table

from tf_graft.core.media import for_markdown
from tf_graft.study.outcomes import Outcome

HEADER = ("task", "arm", "value", "runs", "mean", "±", "lowest", "highest")


def rows(outcomes: Sequence[Outcome]) -> list[list[str]]:
    """Returns the cells of the arms in their order; ± is the standard deviation over the seeds.

    An arm of which a run has diverged has no mean; its extremes are those of the other runs.
    """
    return [
        [
            *each.cell,
            each.value,
            str(len(each.metrics)),
            "diverged" if each.diverged else _shown(each.mean),
            _shown(each.deviation),
            *(_shown(of(each.finite, default=math.nan)) for of in (min, max)),
        ]
        for each in outcomes
    ]


def for_terminal(outcomes: Sequence[Outcome], metric: str) -> Table:
    """Makes the table that `tf-graft study` shows."""
    task, arm, *others = HEADER
    numbers = (Column(name, justify="right", no_wrap=True) for name in others)
    columns = [Column(task), Column(arm), *numbers]
    table = Table(*columns, title=metric, title_justify="left", box=None)
    for row in rows(outcomes):
        table.add_row(*row)
    return table


def markdown(outcomes: Sequence[Outcome]) -> str:
    """Makes the table for a document."""
    lines = [HEADER, ["---"] * 2 + ["---:"] * (len(HEADER) - 2), *rows(outcomes)]
    return "\n".join(f"| {' | '.join(map(for_markdown, line))} |" for line in lines) + "\n"


def _shown(number: float) -> str:
    return "" if math.isnan(number) else f"{number:.4g}"
