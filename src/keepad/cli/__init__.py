"""The command line: one file a command, each one thin - parse, call the library, print."""

from __future__ import annotations

import sys
from typing import NoReturn

import typer
from rich.markup import escape

from keepad.cli import (
    audit,
    benchmark,
    cache,
    calibrate,
    choose,
    data,
    demo,
    drift,
    evaluate,
    export,
    models,
    predict,
    reproduce,
    score,
    serve,
    teach,
    train,
    watch,
)
from keepad.console import stderr
from keepad.errors import KeepADError
from keepad.version import __version__

_TORCH = ("torch", "timm", "onnx")  # packages of the extra `torch`

app = typer.Typer(
    name="keepad",
    help="Visual anomaly detection that drops patch tokens and keeps the defect.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)
app.command("predict")(predict.predict)
app.command("audit")(audit.audit)
app.command("score")(score.score)
app.command("watch")(watch.watch)
app.command("teach")(teach.teach)
app.command("calibrate")(calibrate.calibrate)
app.command("choose")(choose.choose)
app.command("serve")(serve.serve)
app.command("demo")(demo.demo)
app.command("models")(models.models)
app.command("evaluate")(evaluate.evaluate)
app.command("benchmark")(benchmark.benchmark)
app.command("export")(export.export)
app.command("reproduce")(reproduce.reproduce)
app.command("drift")(drift.drift)
app.command("cache")(cache.cache)
app.add_typer(data.app, name="data")
app.add_typer(train.app, name="train")


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"keepad {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: bool = typer.Option(False, "--version", callback=_print_version, is_eager=True, help="Print the version."),
) -> None:
    """Options that stand before the command."""


def main() -> None:
    """Run the command line; a KeepADError is one sentence on standard error and exit code 2."""
    try:
        app()
    except KeepADError as error:
        _refuse(str(error))
    except ModuleNotFoundError as error:
        if error.name not in _TORCH:
            raise
        _refuse(f"this command needs {error.name}, which is not installed: pip install 'keepad[torch]'.")


def _refuse(sentence: str) -> NoReturn:
    stderr.print(f"[bold red]error:[/] {escape(sentence)}", soft_wrap=True)
    sys.exit(2)
