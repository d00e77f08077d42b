"""keepad evaluate: measure operating points on a data set."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from keepad.cli.options import (
    DeviceOption,
    EngineOption,
    FitOption,
    ImageSizeOption,
    OverlapOption,
    PixelRouterOption,
    TilesOption,
    ViewsOption,
    WeightsOption,
    keep_points,
    parts_of,
)

if TYPE_CHECKING:
    from rich.table import Table

    from keepad.data import Dataset
    from keepad.detector import Detector
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
    model: Annotated[
        str | None,
        typer.Option(
            "--model",
            "-m",
            help="Checkpoints or folders of keepad export, separated by commas; the bundled default if left out.",
        ),
    ] = None,
    only_unseen: Annotated[
        bool, typer.Option("--unseen", help="Each model only on suites that it was not trained on.")
    ] = False,
    weights: WeightsOption = None,
    points: Annotated[
        str, typer.Option("--points", "-p", help="Operating points, separated by commas.")
    ] = "dense,prune30,prune50,prune70",
    keep: Annotated[
        str | None,
        typer.Option("--keep", help="More points, by the share of tokens that the first router keeps: 0.25,0.4."),
    ] = None,
    shots: Annotated[
        str | None,
        typer.Option("--shots", help="Numbers of good images of each class as references, such as 0,1,4,16."),
    ] = None,
    draws: Annotated[int, typer.Option("--draws", help="How often references are drawn.")] = 3,
    rotate: Annotated[
        str, typer.Option("--rotate", help="Rotated copies of references, as keepad teach takes them: auto, on, off.")
    ] = "auto",
    batch: Annotated[int, typer.Option("--batch", "-b", min=1, help="Images in one forward pass.")] = 1,
    limit: Annotated[
        int | None, typer.Option("--limit", min=1, help="At most so many images per class, for a quick estimate.")
    ] = None,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Start over instead of continuing the run in the folder.")
    ] = False,
    cases: Annotated[bool, typer.Option("--cases/--no-cases", help="Write a page of best and worst images.")] = True,
    image_size: ImageSizeOption = None,
    fit: FitOption = "squash",
    tiles: TilesOption = None,
    overlap: OverlapOption = None,
    views: ViewsOption = 1,
    pixel_router: PixelRouterOption = None,
    engine: EngineOption = "auto",
    device: DeviceOption = None,
) -> None:
    """Measure how well operating points find defects in a labelled data set.

    With several models, each has a folder of its own below --out, and summary.md holds their mean. Can be interrupted:
    the same command goes on where it stopped. Exits with 1 if some images could not be used.
    """
    from keepad.console import progress, stdout
    from keepad.data import read_dataset
    from keepad.evaluate import Options, unseen, write_summary
    from keepad.evaluate import evaluate as measure
    from keepad.evaluate.markdown import overall_rows
    from keepad.evaluate.shots import shot_variants, shots_markdown
    from keepad.evaluate.summary import COLUMNS, summary_rows
    from keepad.files import replace_text
    from keepad.loading import load
    from keepad.presets import with_pixel_router

    chosen = [with_pixel_router(point, pixel_router) for point in (*parts_of(points), *keep_points(keep))]
    dataset = read_dataset(data, layout).select(
        suites=None if suites is None else parts_of(suites),
        classes=None if classes is None else parts_of(classes),
    )
    variants = chosen if shots is None else shot_variants(chosen, _counts(shots), draws, rotate)
    options = Options(batch_size=batch, limit=limit, fresh=fresh, command=sys.argv, progress=progress)
    folders = _folders(model, out)
    results: dict[str, Results] = {}
    written: list[Path] = []
    columns: Sequence[str]
    try:
        for source, folder in folders:
            detector = load(
                source,
                engine=engine,
                device=device,
                weights=weights,
                image_size=image_size,
                fit=fit,
                tiles=tiles,
                overlap=overlap,
                views=views,
            )
            images = unseen(dataset, detector) if only_unseen else dataset
            results[folder.name] = measure(detector, images, variants, folder, options)
            written += _write_pages(detector, images, results[folder.name], cases=cases and shots is None)
        if shots is not None:
            contents = {name: result.content for name, result in results.items()}
            replace_text(out / "shots.md", shots_markdown(contents))
            stdout.print(shots_markdown(contents), markup=False, highlight=False)
            return
        if len(results) > 1:
            columns, rows = COLUMNS, summary_rows(write_summary(results, out))
            title = f"Mean over {len(results)} models, in percent"
            written += [out / "summary.md", out / "summary.json"]
        else:
            (result,) = results.values()
            columns, rows = overall_rows(result.content)
            count = len(result.averages["suites"])
            title = f"Mean over {count} suite{'' if count == 1 else 's'}, in percent"
    except KeyboardInterrupt:
        _say("interrupted: the same command goes on where it stopped.")
        raise typer.Exit(130) from None

    stdout.print(_table(title, columns, rows))
    for path in written:
        stdout.print(str(path), soft_wrap=True, markup=False, highlight=False)
    errors = [error for result in results.values() for error in result.errors]
    for error in errors:
        _say(f"left out: {error['path']}: {error['error']}")
    if errors:
        raise typer.Exit(1)


def _counts(text: str) -> list[int]:
    """Numbers in a list with commas."""
    from keepad.errors import KeepADError

    parts = parts_of(text)
    if not parts or not all(part.isdecimal() for part in parts):
        raise KeepADError(f"--shots takes whole numbers separated by commas, such as 0,1,4,16, not {text!r}.")
    return [int(part) for part in parts]


def _folders(model: str | None, out: Path) -> list[tuple[str | None, Path]]:
    """Each model with the folder of its results: `out` itself for a single model, else below it."""
    from keepad.errors import KeepADError

    sources = parts_of(model or "")
    if len(sources) < 2:
        return [(sources[0] if sources else None, out)]
    folders = {source: out / Path(source).name.removesuffix(".safetensors") for source in sources}
    if len(set(folders.values())) < len(folders):
        raise KeepADError(f"the models {', '.join(sources)} must differ in the last part of their paths; rename one.")
    return list(folders.items())


def _write_pages(detector: Detector, dataset: Dataset, results: Results, *, cases: bool) -> list[Path]:
    """Write the plots and, if it is wanted, the page of cases; the paths of all that belongs to the results."""
    from keepad.errors import KeepADError
    from keepad.evaluate import write_cases, write_plots

    written = [results.out / "results.md", results.out / "results.json"]
    try:
        written += write_plots(results)
    except KeepADError as error:
        _say(str(error))
    page = results.out / "cases.html"
    # The page shows computed images, so it only changes when some were computed.
    if cases and (results.computed or not page.exists()):
        written.append(write_cases(detector, dataset, results))
    return written


def _say(line: str) -> None:
    from keepad.console import stderr

    stderr.print(line, soft_wrap=True, markup=False, highlight=False)


def _table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    """Columns that fit a terminal."""
    from rich import box
    from rich.table import Table

    shown = [columns.index(name) for name in _SHOWN]
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD)
    for index in shown:
        table.add_column(columns[index].replace(" ", "\n"), justify="right" if index else "left", no_wrap=True)
    for row in rows:
        table.add_row(*(row[index] for index in shown))
    return table
