"""The commands, put together."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from tilewright.cli import planning, running, tuning


def _version(wanted: bool) -> None:
    if wanted:
        from tilewright._version import __version__

        typer.echo(f"tilewright {__version__}")
        raise typer.Exit


app = typer.Typer(
    name="tilewright",
    help="Matrix products in Triton: proven, measured, explained. Start with: tilewright demo",
    add_completion=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback(invoke_without_command=True)
def _root(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_version, is_eager=True)
    ] = False,
) -> None:
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


for _function in (
    running.doctor,
    running.demo,
    running.verify,
    running.bench,
    tuning.tune,
    planning.plan,
    planning.explain,
    planning.inspect,
    planning.roofline,
    running.report,
):
    app.command()(_function)


def command() -> Any:
    """The command as an object that is called with arguments."""
    return typer.main.get_command(app)
