"""keepad demo: predict images that come with the package."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from keepad.cli.options import DeviceOption, EngineOption, ModelOption, PointOption, WeightsOption


def demo(
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder for images, results and report.")] = Path(
        "keepad-demo"
    ),
    model: ModelOption = None,
    weights: WeightsOption = None,
    point: PointOption = "prune50",
    engine: EngineOption = "auto",
    device: DeviceOption = None,
) -> None:
    """Detect synthetic defects on one photographed and three rendered surfaces; only the backbone is downloaded."""
    from keepad.console import stdout
    from keepad.demo import write_demo_images
    from keepad.files import writable_folder
    from keepad.loading import load
    from keepad.output.folder import run_folder

    detector = load(model, point=point, engine=engine, device=device, weights=weights)
    paths = write_demo_images(writable_folder(out) / "images")
    summary = run_folder(detector, paths, out, title="KeepAD demo")
    stdout.print(summary.table(relative_to=out / "images", limit=len(paths)))
    stdout.print(f"results: {summary.jsonl}", soft_wrap=True, highlight=False)
    stdout.print(f"report:  {summary.report}", soft_wrap=True, highlight=False)
    if summary.interrupted:
        raise typer.Exit(130)
