"""The command line: `tf-graft`, also `python -m tf_graft`."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

NEEDS_EXTRAS = "tf-graft needs its extras: pip install 'tf_graft[train]'"

try:
    import typer
    from rich.console import Console
    from rich.table import Table
except ModuleNotFoundError:
    raise SystemExit(NEEDS_EXTRAS) from None

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
    with _errors():
        from tf_graft.training import config as configs
        from tf_graft.training import run

        parsed, source = configs.load(config, overrides or [])
        summary = run.train(parsed, source, say=_say)
    numbers = {name: value for name, value in summary.items() if name.startswith("test_")}
    shown = ", ".join(f"{name.replace('_', ' ')} {value:.4g}" for name, value in numbers.items())
    _say(f"Done: {shown}. See {parsed.run.dir}/plot.png and {parsed.run.dir}/summary.json.")


@app.command("list")
def list_() -> None:
    """Shows the optimizers, schedules, data sets and models a config can name."""
    with _errors():
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
    with _errors():
        from tf_graft.training import config as configs
        from tf_graft.training import schedule_plot

        parsed, source = configs.load(config, overrides or [])
        path = output or Path(f"{config.stem}_schedule.png")
        points = schedule_plot.draw(parsed, source, path)
    table = Table("step", "learning rate", box=None)
    for step, rate in points:
        table.add_row(f"{step:,}", f"{rate:.3g}")
    Console().print(table)
    _say(f"Drawn in {path}.")


@app.command()
def bench(
    rows: Annotated[bool, typer.Option(help="Measure row-sparse gradients.")] = True,
    dense: Annotated[bool, typer.Option(help="Measure the tensors of ResNet-50.")] = True,
    table: Annotated[int, typer.Option(help="Rows of the large table.")] = 1_000_000,
) -> None:
    """Times our steps beside stock Keras' on this machine; takes about three minutes."""
    with _errors():
        from tf_graft import bench as benchmarks

    def row(first: str, *figures: float | None) -> list[str]:
        return [first, *("-" if x is None else f"{x:.2f}" for x in figures)]

    if rows:
        shown = Table(
            "optimizer",
            "10k rows, ms",
            f"{table:,} rows, ms",
            "ratio",
            "floor, ms",
            "stock Keras, ms",
            "stock / ours",
            title="4,096 ids of width 64 a step",
        )
        for r in benchmarks.row_sparse(table):
            name = r.name if r.options == "-" else f"{r.name} ({r.options})"
            gain = None if r.stock is None else r.stock / r.large
            shown.add_row(*row(name, r.small, r.large, r.large / r.small, r.floor, r.stock, gain))
        Console().print(shown)
    if dense:
        shown = Table(
            "optimizer",
            "ours, ms",
            "checked, ms",
            "check costs",
            "stock Keras, ms",
            "stock / ours",
            "floor, ms",
            "traced, s",
            "stock traced, s",
            title="ResNet-50: 214 tensors, 25.6 M weights, a step",
        )
        for d in benchmarks.dense():
            shown.add_row(
                *row(
                    d.name,
                    d.unchecked,
                    d.checked,
                    d.checked / d.unchecked,
                    d.stock,
                    d.stock / d.unchecked,
                    d.floor,
                    d.traced,
                    d.stock_traced,
                )
            )
        Console().print(shown)


@contextlib.contextmanager
def _errors() -> Iterator[None]:
    """Turns what a user can mend into one sentence and an exit code."""
    try:
        from tf_graft.core.checks import CheckpointError
        from tf_graft.training.errors import ConfigError
        from tf_graft.training.loop import Stopped
    except ModuleNotFoundError:
        raise SystemExit(NEEDS_EXTRAS) from None
    try:
        yield
    except ModuleNotFoundError as missing:
        if str(missing.name).startswith("tf_graft"):
            raise
        raise SystemExit(NEEDS_EXTRAS) from None
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
