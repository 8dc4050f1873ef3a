"""The command line: `tf-graft`, also `python -m tf_graft`. Commands import TensorFlow late."""

import contextlib
import enum
import io
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from tf_graft import __version__
from tf_graft.exits import NEEDS_EXTRAS, errors

try:
    import typer
    from rich.table import Column, Table

    from tf_graft.terminal import Terminal, png
except ModuleNotFoundError:
    raise SystemExit(NEEDS_EXTRAS) from None

if TYPE_CHECKING:
    from tf_graft.fit.finder import LearningRateCurve
    from tf_graft.training.schema import RunConfig

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


class Kind(enum.StrEnum):
    """The kinds of per-layer rates; see `tf_graft.report.MeasuredRates`."""

    constant = "constant"
    piecewise = "piecewise"
    power_law = "power_law"
    everywhere = "global"
    auto = "auto"


Config = Annotated[Path, typer.Argument(help="A config, such as configs/digits_adagrad.yaml.")]
Overrides = Annotated[
    list[str] | None,
    typer.Argument(metavar="[KEY=VALUE]...", help="Values to change: run.epochs=5"),
]


def main() -> None:
    """Runs the command line."""
    with contextlib.suppress(OSError):  # what has taken the place of standard output may refuse
        if isinstance(sys.stdout, io.TextIOWrapper):
            sys.stdout.reconfigure(errors="backslashreplace")  # not all encodings have all texts
    with errors():  # also for a standard output that is full once a command shows its results
        app()


def _print_version(wanted: bool) -> None:
    if wanted:
        _say(f"tf_graft {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None:
    """Trains Keras models with the optimizers of tf_graft."""


@app.command()
def train(
    config: Config,
    overrides: Overrides = None,
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="Show the config, the variables and their memory only."),
    ] = False,
) -> None:
    """Trains a model, or continues an interrupted run."""
    with errors():
        parsed = _load(config, overrides)
        from tf_graft.training import description, run

        if dry_run:
            for part in description.parts(parsed):
                _say(part)
            return
        summary = run.train(parsed, say=_say)
    numbers = {name: value for name, value in summary.items() if name.startswith("test_")}
    shown = ", ".join(f"{name.replace('_', ' ')} {value:.4g}" for name, value in numbers.items())
    _say(f"Done: {shown}. See {parsed.run.dir}/plot.png and {parsed.run.dir}/summary.json.")


@app.command()
def new(
    model: Annotated[str, typer.Argument(help="A model, such as mlp or resnet50.")],
    data: Annotated[str, typer.Argument(help="A data set, such as digits.")],
    file: Annotated[Path | None, typer.Argument(help="The file; else DATA_MODEL.yaml")] = None,
    optimizer: Annotated[str, typer.Option(help="The optimizer.")] = "adam",
) -> None:
    """Writes a config with keys, their meanings and their defaults, for you to edit."""
    path = file or Path(f"{re.sub(r'[^0-9A-Za-z]+', '_', data)}_{model.lower()}.yaml")
    with errors():
        from tf_graft.training import new_config

        new_config.write(model, data, optimizer, path)
    _say(f"Written to {path}. Train it: tf-graft train {path}")


@app.command()
def launch(
    config: Config,
    overrides: Overrides = None,
    workers: Annotated[int, typer.Option(min=1, help="How many workers.")] = 2,
    ps: Annotated[int, typer.Option(min=0, help="How many parameter servers.")] = 0,
    restarts: Annotated[
        int, typer.Option(min=0, help="How often killed processes are started again.")
    ] = 3,
) -> None:
    """Trains with several processes on this machine, for a strategy or mesh that uses several."""
    with errors():
        from tf_graft.training import config as configs
        from tf_graft.training import launch as launcher

        parsed = configs.load(config, overrides or [])
        command = launcher.command_of(config, overrides or [])
        tasks = {"worker": workers, "ps": ps}
        code = launcher.launch(parsed, command, tasks, _say, restarts)
    raise typer.Exit(code)


OPTIMIZERS = "optimizer.name; on the right, bytes of state for each row of an embedding"


@app.command("list")
def list_() -> None:
    """Shows the optimizers, schedules, data sets and models a config can name."""
    with errors():
        from tf_graft.training import start

        start.tensorflow()
        import tf_graft
        from tf_graft import listing
        from tf_graft.core.arguments import registry
        from tf_graft.training import data, models

        sizes = listing.row_bytes()

    for title, entries in {
        OPTIMIZERS: tf_graft.list_optimizers(),
        "optimizer.name, of Keras": registry.only_of_keras(),
        "optimizer.learning_rate.name": tf_graft.schedules.list_schedules(),
        "data.name": data.list_data_sets(),
        "model.name": models.list_models(),
    }.items():
        names = Column(style="bold", no_wrap=True)
        table = Table(names, "", title=title, title_justify="left", show_header=False, box=None)
        if title == OPTIMIZERS:
            table.add_column(no_wrap=True)
        for name, line in sorted(entries.items()):
            table.add_row(name, line, *([sizes.get(name, "")] if title == OPTIMIZERS else []))
        if entries:
            Terminal().print(table, "")


@app.command()
def schedule(
    config: Config,
    overrides: Overrides = None,
    output: Annotated[
        Path | None, typer.Option(callback=png, help="The PNG; else CONFIG_schedule.png")
    ] = None,
) -> None:
    """Draws the learning rate over the run of a config; shows each variable's rate and decay."""
    with errors():
        parsed = _load(config, overrides)
        from tf_graft.training import schedule_plot

        path = output or Path(f"{config.stem}_schedule.png")
        drawn = schedule_plot.draw(parsed, path)
    table = Table("step", *drawn.names, box=None)
    for step, rates in drawn.rates:
        table.add_row(f"{step:,}", *(f"{rate:.3g}" for rate in rates))
    Terminal().print(table)
    if drawn.table:
        _say(f"\n{drawn.table}\n")
    _say(f"Drawn in {path}.")


@app.command()
def find(
    config: Config,
    overrides: Overrides = None,
    low: Annotated[float, typer.Option(help="The first learning rate.")] = 1e-6,
    high: Annotated[float, typer.Option(help="The last learning rate.")] = 10.0,
    steps: Annotated[int, typer.Option(min=3, help="The number of batches.")] = 200,
    output: Annotated[
        Path | None, typer.Option(callback=png, help="The PNG; else CONFIG_find.png")
    ] = None,
) -> None:
    """Suggests a learning rate for a config: trains for a while at a growing one."""
    if not 0 < low < high:
        raise typer.BadParameter(f"--low {low:g} must be above 0 and below --high {high:g}.")
    with errors():
        parsed = _load(config, overrides)
        from tf_graft.training import plots, rate_test

        path = output or Path(f"{config.stem}_find.png")
        plots.prepare(path)
        curve = rate_test.made(parsed, low, high, steps, _say)
        _say(_suggested(curve, high))  # before the file, which a full disk may refuse
        rate_test.draw(curve, parsed, path)
    _say(f"Drawn in {path}.")


def _suggested(curve: "LearningRateCurve", high: float) -> str:
    rate = curve.suggestion
    if rate is None:
        return "The loss does not fall at any of these learning rates."
    last = rate == curve.smoothed_rates[-1]
    more = f"; the loss falls fastest at the end, so try --high {10 * high:g}" if last else ""
    return f"Suggested learning rate: {rate:.2g}{more}."


@app.command()
def report(
    run: Annotated[Path, typer.Argument(help="The folder of a run, or a file of records.")],
    export: Annotated[Path | None, typer.Option(help="Write per-layer rates to this file.")] = None,
    kind: Annotated[Kind | None, typer.Option(help="Their kind; else piecewise.")] = None,
) -> None:
    """Shows what a graft or run.monitor measured; writes report.html; exports rates of a graft."""
    wanted = _wanted(kind, export)
    with errors():
        from tf_graft.training import start

        start.tensorflow()
        from tf_graft.grafting import findings, page, records, table
        from tf_graft.monitor import norms_file as norms
        from tf_graft.report import GraftReport
        from tf_graft.training import run_checkpoints as checkpoints

        monitored = norms.NormsReport.read(run) if run.is_dir() or run.suffix == ".csv" else None
        of_graft = None
        if export or monitored is None or (run / records.FILE).exists():
            checkpoints.check_records(run)
            of_graft = GraftReport.read(run)
        title, parts = run.resolve().name, list[str]()
        parts += page.of_graft(of_graft, title) if of_graft else []
        parts += page.of_norms(monitored, title) if monitored else []
        rates = of_graft.rates(wanted.value) if of_graft and export else None
        output = (run if run.is_dir() else run.parent) / page.FILE
        page.write(parts, output, title)
        if export and rates:
            rates.save(export)
    if of_graft:
        Terminal().print(table.of_layers(of_graft), "", table.of_kinds(of_graft), "", crop=False)
        for finding in findings.findings(of_graft):
            _say(finding)
    if monitored:
        Terminal().print(table.of_norms(monitored), "", crop=False)
    _say(f"Drawn in {output}." + (f" Rates ({rates.kind}) are in {export}." if rates else ""))


def _wanted(kind: Kind | None, export: Path | None) -> Kind:
    """Returns the kind of the rates to export; refuses a kind without a file to write."""
    if kind and not export:
        raise typer.BadParameter("--kind is for the rates that --export writes; give both.")
    return kind or Kind.piecewise


@app.command()
def study(
    file: Annotated[Path, typer.Argument(help="A study, such as studies/pays_short.yaml.")],
    overrides: Overrides = None,
    jobs: Annotated[int, typer.Option(min=1, help="How many runs are made at a time.")] = 1,
) -> None:
    """Compares configs: makes or continues the runs of a study, and writes table and picture."""
    with errors():
        from tf_graft.training import start

        start.tensorflow()
        from tf_graft.study import command

        code = command.run(file, overrides or [], jobs, _say, Terminal())
    raise typer.Exit(code)


@app.command()
def average(
    run: Annotated[Path, typer.Argument(help="The folder of a run.")],
    last: Annotated[int, typer.Option(min=2, help="How many of the last saved states.")] = 5,
) -> None:
    """Averages the weights in a run's last saved states; writes averaged.keras."""
    with errors():
        from tf_graft.training import start

        start.tensorflow()
        from tf_graft.training import average as averages
        from tf_graft.training.folder import RunFolder

        done = averages.average(RunFolder(str(run)), last)
    table = Table("on the test data", *(name.replace("_", " ") for name in done.after), box=None)
    table.add_row(
        f"state after step {done.steps[0]:,}", *(f"{x:.4g}" for x in done.before.values())
    )
    table.add_row(f"mean of {last} states", *(f"{x:.4g}" for x in done.after.values()))
    Terminal().print(table)
    _say(f"Written to {done.file}.")


def _load(config: Path, overrides: list[str] | None) -> "RunConfig":
    """Returns a config, and imports TensorFlow after what can be checked without it."""
    from tf_graft.training import config as configs
    from tf_graft.training import start

    parsed = configs.load(config, overrides or [])
    start.tensorflow()
    return parsed


def _say(line: str) -> None:
    Terminal(soft_wrap=True).print(line)
