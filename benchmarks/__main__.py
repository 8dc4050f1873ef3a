"""`python -m benchmarks`: measures on this machine. TensorFlow is imported late."""

from pathlib import Path
from typing import Annotated

import typer

from benchmarks.areas import AREAS
from tf_graft.exits import errors
from tf_graft.terminal import png

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


def _known(areas: list[str] | None) -> list[str] | None:
    """Refuses an area that there is not."""
    for area in areas or ():
        if area not in AREAS:
            raise typer.BadParameter(f"there is no area '{area}', there are {', '.join(AREAS)}.")
    return areas


@app.command()
def main(
    areas: Annotated[
        list[str] | None,
        typer.Argument(callback=_known, help=f"Of {', '.join(AREAS)}; else all."),
    ] = None,
    only: Annotated[
        list[str] | None, typer.Option(help="Cases whose name contains this; may be repeated.")
    ] = None,
    full: Annotated[bool, typer.Option("--full", help="Every case of the areas.")] = False,
    quick: Annotated[bool, typer.Option("--quick", help="Fewer turns.")] = False,
    first_calls: Annotated[
        int | None,
        typer.Option(min=1, help="First calls of each candidate; else up to 3, for some seconds."),
    ] = None,
    peers: Annotated[
        bool,
        typer.Option(
            "--peers",
            help="Measure torch, FBGEMM and optax too, which may be installed for another Python: "
            "PEERS_PYTHON=/its/bin/python in the environment.",
        ),
    ] = False,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print Markdown.")] = False,
    output: Annotated[Path | None, typer.Option(help="Write every figure to this JSON.")] = None,
    plot: Annotated[
        Path | None, typer.Option(callback=png, help="Draw the steps in this PNG.")
    ] = None,
) -> None:
    """Compares times with stock Keras' on this machine; all of it takes 10 to 20 minutes."""
    with errors():
        from tf_graft.training import start

        start.tensorflow()
        from benchmarks import cases, command, turns

        choice = cases.Choice(tuple(only or ()), full, peers)
        wanted = areas or [*AREAS]
        done, code = command.measured(wanted, choice, turns.pace(quick, first_calls), output)
        if not done and not code:
            raise typer.BadParameter(
                f"no case of {', '.join(wanted)} has one of {only} in its name."
            )
        command.show(done, markdown, plot)
    raise typer.Exit(code)


if __name__ == "__main__":
    app()
