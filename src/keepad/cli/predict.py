"""keepad predict: score images, write predictions.jsonl, overlays and a report."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from keepad.cli.options import DeviceOption, EngineOption, ModelOption, PixelRouterOption, PointOption, WeightsOption

PathsArgument = Annotated[
    list[Path], typer.Argument(help="Images, or folders of images (all folders below are searched).")
]
OutOption = Annotated[Path, typer.Option("--out", "-o", help="Folder for predictions.jsonl, overlays and report.html.")]


def predict(
    paths: PathsArgument,
    out: OutOption,
    model: ModelOption = None,
    weights: WeightsOption = None,
    point: PointOption = "prune50",
    batch: Annotated[int, typer.Option("--batch", "-b", min=1, help="Images in one forward pass.")] = 1,
    threshold: Annotated[
        float | None,
        typer.Option("--threshold", "-t", help="Call an image anomalous, and a pixel, from this value on."),
    ] = None,
    images: Annotated[
        bool, typer.Option("--images/--no-images", help="Write overlays and the report's pictures.")
    ] = True,
    pixel_router: PixelRouterOption = None,
    engine: EngineOption = None,
    device: DeviceOption = None,
) -> None:
    """Say which images are defective, and where."""
    from rich.markup import escape

    from keepad.console import stderr, stdout
    from keepad.engines.opening import open_detector
    from keepad.images import find_images
    from keepad.output.folder import run_folder
    from keepad.presets import with_pixel_router

    found = find_images(paths)
    chosen = with_pixel_router(point, pixel_router)
    detector = open_detector(model, chosen, engine=engine, device=device, weights=weights)
    if threshold is not None:
        detector.set_threshold(threshold)
    summary = run_folder(detector, found, out, batch_size=batch, pictures=images)
    stdout.print(summary.table())
    for sentence in summary.failures():
        stderr.print(f"[bold red]error:[/] {escape(sentence)}", soft_wrap=True)
    stdout.print(f"results: {summary.jsonl}", soft_wrap=True, highlight=False)
    if summary.report:
        stdout.print(f"report:  {summary.report}", soft_wrap=True, highlight=False)
    if summary.interrupted:
        stdout.print(f"interrupted: the {summary.done} images done so far are kept", highlight=False)
        raise typer.Exit(130)
    if summary.errors:
        raise typer.Exit(1)
