"""The command line: `tf-graft`, also `python -m tf_graft`."""

import contextlib
import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

EXTRAS = (
    "matplotlib",
    "omegaconf",
    "pydantic",
    "rich",
    "sklearn",
    "tensorflow_datasets",
    "typer",
)
if not all(importlib.util.find_spec(name) for name in EXTRAS):
    raise SystemExit("tf-graft needs its extras: pip install 'tf_graft[train]'")

import typer
from rich.console import Console
from rich.table import Table

app = typer.Typer(
    help="Trains Keras models with the optimizers of tf_graft.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

Config = Annotated[Path, typer.Argument(help="A config, such as configs/digits_adagrad.yaml.")]
Overrides = Annotated[
    list[str] | None,
    typer.Argument(metavar="[KEY=VALUE]...", help="Values to change: run.epochs=5"),
]


def main() -> None:
    """Runs the command line."""
    app()


@app.command()
def train(config: Config, overrides: Overrides = None) -> None:
    """Trains a model, or goes on where an interrupted run was left."""
    from tf_graft.training import config as configs
    from tf_graft.training import run

    with _errors():
        parsed, source = configs.load(config, overrides or [])
        summary = run.train(parsed, source, say=_say)
    numbers = {name: value for name, value in summary.items() if name.startswith("test_")}
    shown = ", ".join(f"{name.replace('_', ' ')} {value:.4g}" for name, value in numbers.items())
    _say(f"Done: {shown}. See {parsed.run.dir}/plot.png and {parsed.run.dir}/summary.json.")


@app.command("list")
def list_() -> None:
    """Shows the optimizers, schedules, data sets and models a config can name."""
    import tf_graft
    from tf_graft.training import data, models

    for title, entries in {
        "optimizer.name": tf_graft.list_optimizers(),
        "optimizer.learning_rate.name": tf_graft.schedules.list_schedules(),
        "data.name": data.list_data_sets(),
        "model.name": models.list_models(),
    }.items():
        table = Table(title=title, title_justify="left", show_header=False, box=None)
        for name, line in sorted(entries.items()):
            table.add_row(f"[bold]{name}[/bold]", line)
        Console().print(table, "")


@app.command()
def schedule(
    config: Config,
    overrides: Overrides = None,
    output: Annotated[Path | None, typer.Option(help="The PNG; else CONFIG_schedule.png")] = None,
) -> None:
    """Draws the learning rate over the run a config describes."""
    from tf_graft.training import config as configs
    from tf_graft.training import schedule_plot

    with _errors():
        parsed, source = configs.load(config, overrides or [])
        path = output or Path(f"{config.stem}_schedule.png")
        points = schedule_plot.draw(parsed, source, path)
    table = Table("step", "learning rate", box=None)
    for step, rate in points:
        table.add_row(f"{step:,}", f"{rate:.3g}")
    Console().print(table)
    _say(f"Drawn in {path}.")


@contextlib.contextmanager
def _errors() -> Iterator[None]:
    """Turns what a user can mend into one sentence and an exit code."""
    from tf_graft.core.checks import CheckpointError
    from tf_graft.training.errors import ConfigError
    from tf_graft.training.loop import Stopped

    try:
        yield
    except ConfigError as error:
        _fail(str(error), 2)
    except CheckpointError as error:
        _fail(str(error), 1)
    except Stopped as stopped:
        name = "Ctrl-C" if stopped.signum == 2 else "SIGTERM"
        message = f"Stopped by {name} after step {stopped.step:,}, which is saved"
        _fail(f"{message}: the same command goes on from there.", 128 + stopped.signum)
    except KeyboardInterrupt:
        _fail("Interrupted.", 130)


def _say(line: str) -> None:
    Console(soft_wrap=True, highlight=False).print(line, markup=False)


def _fail(message: str, code: int) -> None:
    Console(stderr=True, soft_wrap=True, highlight=False).print(message, markup=False)
    raise typer.Exit(code)
