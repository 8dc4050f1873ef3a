"""`tf-graft study`: makes the runs of a study, and shows their results."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path

from rich.console import Console
from rich.live import Live
from rich.table import Table

from tf_graft.core.files.whole_files import write
from tf_graft.study import picture, plan, table
from tf_graft.study.execution import Execution, progress
from tf_graft.study.outcomes import Outcome


def run(
    file: Path,
    overrides: Sequence[str],
    jobs: int,
    say: Callable[[str], None],
    terminal: Console,
) -> int:
    """Makes the runs of a study that are left; returns the exit code of the command.

    The study's folder gets `table.md`, `outcomes.json` and `study.png`, also after it was stopped.

    Args:
        file: the study.
        overrides: values of it to change.
        jobs: how many runs are made at a time.
        say: called with each line for the user.
        terminal: shows the runs that are being made, and the table.

    Raises:
        ConfigError: the study, or a config of it, is invalid.
    """
    made = plan.load(file, overrides)
    with Execution(made, jobs, say) as execution:
        if terminal.is_terminal:
            with Live(console=terminal, transient=True, refresh_per_second=2) as live:
                stopped = execution.run(lambda: live.update(_running(execution)))
        else:
            stopped = execution.run()
        outcomes = [execution.outcomes.of(cell) for cell in made.cells]
        for failure in execution.failures:
            say(f"\n{failure.trial.name} failed:\n{failure.said}")
    made.folder.mkdir(parents=True, exist_ok=True)
    write(made.folder / "table.md", table.markdown(outcomes))
    write(made.folder / "outcomes.json", json.dumps(_numbers(outcomes), indent=1) + "\n")
    picture.draw(made, outcomes, made.folder / "study.png")
    terminal.print(table.for_terminal(outcomes, made.study.metric))
    say(f"The table and the picture are in {made.folder}.")
    if stopped is not None:
        say("Stopped: the same command continues.")
        return 128 + stopped
    return 1 if execution.failures else 0


def _running(execution: Execution) -> Table:
    """Makes a line for each run that is being made."""
    lines = Table(box=None, show_header=False)
    for trial in execution.running:
        lines.add_row(trial.name, progress(trial))
    return lines


def _numbers(outcomes: Sequence[Outcome]) -> list[dict[str, object]]:
    return [
        {
            **each.cell._asdict(),
            "value": each.value,
            "metrics": {str(seed): metric for seed, metric in each.metrics.items()},
            "swept": dict(each.swept),
        }
        for each in outcomes
    ]
