"""keepad evaluate: measure operating points on a data set."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from keepad.cli.options import DeviceOption, EngineOption, ModelOption, PixelRouterOption, WeightsOption, parts_of

if TYPE_CHECKING:
    from rich.table import Table

    from keepad.evaluate import Results

_SHOWN = ("point", "I-AUROC (Δ)", "P-AUROC (Δ)", "PRO", "DTR final", "CMR final", "keep final")


def evaluate(
    data: Annotated[
        Path, typer.Option("--data", "-d", help="A folder with a data set or with several, or an index file.")
    ],
    out: Annotated[
        Path, typer.Option("--out", "-o", help="Folder for results, plots and the state of an unfinished run.")
    ],
    suites: Annotated[str | None, typer.Option("--suites", help="Only these suites, separated by commas.")] = None,
    classes: Annotated[str | None, typer.Option("--classes", help="Only these classes, separated by commas.")] = None,
    layout: Annotated[
        str | None, typer.Option("--layout", help="How the folder is arranged, if it is not recognised.")
    ] = None,
    model: ModelOption = None,
    weights: WeightsOption = None,
    points: Annotated[
        str, typer.Option("--points", "-p", help="Operating points, separated by commas.")
    ] = "dense,prune30,prune50,prune70",
    batch: Annotated[int, typer.Option("--batch", "-b", min=1, help="Images in one forward pass.")] = 1,
    limit: Annotated[
        int | None, typer.Option("--limit", min=1, help="At most so many images a class, for a quick look.")
    ] = None,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Start over instead of going on with what is in the folder.")
    ] = False,
    cases: Annotated[bool, typer.Option("--cases/--no-cases", help="Write a page of best and worst images.")] = True,
    pixel_router: PixelRouterOption = None,
    engine: EngineOption = None,
    device: DeviceOption = None,
) -> None:
    """Measure how well operating points find defects in a labelled data set.

    Can be interrupted: the same command goes on where it stopped. Exits with 1 if some images could not be used.
    """
    from keepad.console import progress, stderr, stdout
    from keepad.data import read_dataset
    from keepad.engines.opening import open_detector
    from keepad.errors import KeepADError
    from keepad.evaluate import evaluate, write_cases, write_plots
    from keepad.presets import with_pixel_router

    def tell(line: str) -> None:
        stderr.print(line, soft_wrap=True, markup=False, highlight=False)

    chosen = [with_pixel_router(point, pixel_router) for point in parts_of(points)]
    dataset = read_dataset(data, layout).select(
        suites=None if suites is None else parts_of(suites),
        classes=None if classes is None else parts_of(classes),
    )
    detector = open_detector(model, engine=engine, device=device, weights=weights)
    try:
        results = evaluate(
            detector,
            dataset,
            chosen,
            out,
            batch_size=batch,
            limit=limit,
            fresh=fresh,
            command=sys.argv,
            progress=progress,
        )
        try:
            written = write_plots(results)
        except KeepADError as error:
            written = []
            tell(str(error))
        page = out / "cases.html"
        # The page shows what was computed, so it only changes when something was.
        if cases and (results.computed or not page.exists()):
            written.append(write_cases(detector, dataset, results))
    except KeyboardInterrupt:
        tell("interrupted: the same command goes on where it stopped.")
        raise typer.Exit(130) from None

    stdout.print(_table(results))
    for path in (out / "results.md", out / "results.json", *written):
        stdout.print(str(path), soft_wrap=True, markup=False, highlight=False)
    for failed in results.errors:
        tell(f"left out: {failed['path']}: {failed['error']}")
    if results.errors:
        raise typer.Exit(1)


def _table(results: Results) -> Table:
    """The mean over all suites, as it stands in results.md, with the columns that fit a terminal."""
    from rich import box
    from rich.table import Table

    from keepad.evaluate.markdown import overall_rows

    columns, rows = overall_rows(results.content)
    shown = [columns.index(name) for name in _SHOWN]
    suites = len(results.averages["suites"])
    title = f"Mean over {suites} suite{'' if suites == 1 else 's'}, in percent"
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD)
    for number in shown:
        table.add_column(columns[number].replace(" ", "\n"), justify="right" if number else "left", no_wrap=True)
    for row in rows:
        table.add_row(*(row[number] for number in shown))
    return table
