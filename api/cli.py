"""The command line: ``freedraft COMMAND``. Each command is a module ``_cli_<command>``.

A command's module imports typer and rich at its top and everything heavier inside the command, so
that ``freedraft --help`` answers at once.
"""

from __future__ import annotations

from typing import Annotated

import typer

from . import __version__
from ._cli_bench import bench
from ._cli_calibrate import calibrate
from ._cli_calibrate_layer_skip import layer_skip
from ._cli_demo import demo
from ._cli_doctor import doctor
from ._cli_engine_config import vllm_config
from ._cli_generate import generate
from ._cli_pool import pool
from ._cli_replay import replay
from ._cli_schedule import schedule
from ._cli_simulate import simulate

app = typer.Typer(
    name="freedraft",
    help="Model-free speculative decoding: the same text from a language model, sooner.",
    no_args_is_help=True,
    pretty_exceptions_show_locals=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for command in (demo, generate, replay, bench, simulate, schedule, doctor):
    app.command()(command)
app.command("vllm-config")(vllm_config)
app.add_typer(pool)
calibration = typer.Typer(name="calibrate", invoke_without_command=True, callback=calibrate)
calibration.command("layer-skip")(layer_skip)
app.add_typer(calibration)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"freedraft {__version__}")
        raise typer.Exit


@app.callback()
def _global_options(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version and end."
        ),
    ] = False,
) -> None:
    pass


def main() -> None:
    """Run the command line; the console script ``freedraft``."""
    app()
