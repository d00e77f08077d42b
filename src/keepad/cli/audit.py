"""keepad audit: rank the images of an unlabelled folder by how little they resemble the others."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from keepad.cli.options import DeviceOption, EngineOption, ModelOption, PointOption, WeightsOption


def audit(
    folder: Annotated[Path, typer.Argument(help="Folder of images of one product; all folders below are searched.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder for predictions.jsonl, overlays and report.html.")],
    model: ModelOption = None,
    weights: WeightsOption = None,
    point: PointOption = "prune50",
    overlays: Annotated[bool, typer.Option("--overlays/--no-overlays", help="Write overlays and the report.")] = True,
    engine: EngineOption = "auto",
    device: DeviceOption = None,
) -> None:
    """Rank the images of a folder by how little they resemble the others; for archives, not for a line.

    Most of the folder must be good. A score depends on the other images, so the same image may rank differently in
    another folder. Can be interrupted: the same command goes on where it stopped.
    """
    from keepad.cli.predict import print_summary
    from keepad.console import progress, say_on_stderr
    from keepad.images import find_images
    from keepad.loading import load
    from keepad.output.folder import Outputs, run_folder
    from keepad.references.audit import Auditor

    images = find_images([folder])
    detector = load(model, point=point, engine=engine, device=device, weights=weights)
    auditor = Auditor(detector, images, say_on_stderr, progress)
    say_on_stderr("an audit compares images with each other: scores are ranks within this folder, not verdicts.")
    print_summary(run_folder(auditor, images, out, outputs=Outputs(overlays=overlays), title="KeepAD audit"))
