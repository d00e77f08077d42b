"""keepad data: inspect a data set before using it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.progress import track
from rich.table import Table

from keepad.console import stderr, stdout
from keepad.data import LAYOUTS, Dataset, Sample, check_headers, read_dataset
from keepad.errors import ImageError, KeepADError

app = typer.Typer(no_args_is_help=True)

_SENTENCES_SHOWN = 5


@app.callback()
def data() -> None:
    """Inspect data sets."""


@app.command()
def check(
    path: Annotated[Path, typer.Argument(help="A folder with a data set or with several, or an index file.")],
    layout: Annotated[
        str | None,
        typer.Option(help=f"How the folder is arranged, if it is not recognised: {', '.join(LAYOUTS)}."),
    ] = None,
) -> None:
    """List the classes of a data set and its problems.

    Exits with 0 without problems, 1 with problems, and 2 if the data set is not recognised.
    """
    dataset = read_dataset(path, layout)
    stdout.print(_recognised(dataset), soft_wrap=True, markup=False, highlight=False)
    stdout.print(_table(dataset))
    problems = [*dataset.problems, *_header_problems(dataset.samples)]
    for problem in problems:
        stdout.print(f"- {problem}", soft_wrap=True, markup=False, highlight=False)
    if problems:
        raise typer.Exit(1)
    stdout.print("Nothing is wrong.")


def _recognised(dataset: Dataset) -> str:
    names = dataset.layout.split(" + ")
    sets = "; ".join(LAYOUTS[name].sets for name in names)
    plural = "s" if len(names) > 1 else ""
    return f"{dataset.root}: {len(dataset.samples)} images in the layout{plural} {dataset.layout} ({sets})"


def _table(dataset: Dataset) -> Table:
    table = Table("suite", "class")
    for column in ("train good", "test good", "test defect", "masks"):
        table.add_column(column, justify="right")
    for (suite, cls), samples in dataset.by_class().items():
        test = [sample for sample in samples if sample.split == "test"]
        counts = (
            sum(sample.split == "train" and sample.label == 0 for sample in samples),
            sum(sample.label == 0 for sample in test),
            sum(sample.label == 1 for sample in test),
            sum(sample.mask is not None for sample in test),
        )
        table.add_row(suite, cls, *map(str, counts))
    return table


def _header_problems(samples: Sequence[Sample]) -> list[str]:
    """Sentences about files that cannot be opened and masks of another size, the first few of each kind."""
    if not stderr.is_terminal:
        stderr.print(f"Opening {len(samples)} images and their masks.", soft_wrap=True)
    tracked = track(samples, "Opening files", console=stderr, transient=True, disable=not stderr.is_terminal)
    faults = [fault for sample in tracked if (fault := _header_fault(sample))]
    unreadable = [str(fault) for fault in faults if isinstance(fault, ImageError)]
    mismatched = [str(fault) for fault in faults if not isinstance(fault, ImageError)]
    return [
        *_shortened(unreadable, "more files cannot be opened."),
        *_shortened(mismatched, "more masks differ in size from their image."),
    ]


def _header_fault(sample: Sample) -> KeepADError | None:
    try:
        check_headers(sample)
    except KeepADError as error:
        return error
    return None


def _shortened(sentences: Sequence[str], rest: str) -> list[str]:
    more = len(sentences) - _SENTENCES_SHOWN
    return [*sentences[:_SENTENCES_SHOWN], *([f"{more} {rest}"] if more > 0 else [])]
