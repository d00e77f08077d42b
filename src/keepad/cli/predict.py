"""keepad predict: score images, write predictions.jsonl, overlays, a report, masks and a COCO file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from keepad.cli.options import (
    BudgetOption,
    DeviceOption,
    EngineOption,
    FitOption,
    IgnoreOption,
    ImageSizeOption,
    KeepOption,
    ModelOption,
    OverlapOption,
    PixelRouterOption,
    ProfileOption,
    ProfilePointOption,
    RoiOption,
    ThresholdOption,
    TilesOption,
    ViewsOption,
    WeightsOption,
    one_point,
    rate_of,
)
from keepad.errors import KeepADError

if TYPE_CHECKING:
    from keepad.detector import Detector
    from keepad.output.folder import RunSummary
    from keepad.presets import OperatingPoint
    from keepad.references.profile import Profile

PathsArgument = Annotated[
    list[Path], typer.Argument(help="Images, or folders of images (all folders below are searched).")
]
OutOption = Annotated[Path, typer.Option("--out", "-o", help="Folder for predictions.jsonl, overlays and report.html.")]


def predict(
    paths: PathsArgument,
    out: OutOption,
    model: ModelOption = None,
    weights: WeightsOption = None,
    point: ProfilePointOption = None,
    keep: KeepOption = None,
    budget_ms: BudgetOption = None,
    profile: ProfileOption = None,
    batch: Annotated[int, typer.Option("--batch", "-b", min=1, help="Images per forward pass.")] = 1,
    threshold: ThresholdOption = None,
    fdr: Annotated[
        str | None,
        typer.Option(
            "--fdr", help="Verdicts for the whole folder: share of good images expected among its defects, such as 5%."
        ),
    ] = None,
    overlays: Annotated[bool, typer.Option("--overlays/--no-overlays", help="Write overlays and the report.")] = True,
    masks: Annotated[bool, typer.Option("--masks", help="Write a mask of each image, a PNG at its size.")] = False,
    coco: Annotated[bool, typer.Option("--coco", help="Write the regions to regions.coco.json.")] = False,
    image_size: ImageSizeOption = None,
    fit: FitOption = "squash",
    tiles: TilesOption = None,
    overlap: OverlapOption = None,
    roi: RoiOption = None,
    ignore: IgnoreOption = None,
    views: ViewsOption = 1,
    pixel_router: PixelRouterOption = None,
    engine: EngineOption = "auto",
    device: DeviceOption = None,
) -> None:
    """Score images and locate their anomalies."""
    from keepad.console import say_on_stderr
    from keepad.decisions import fewest_discoveries
    from keepad.images import find_images
    from keepad.loading import load
    from keepad.output.folder import Outputs, run_folder
    from keepad.presets import with_pixel_router
    from keepad.references.profile import read_profile

    rate = None if fdr is None else rate_of("--fdr", fdr)
    if fdr is not None and threshold is not None:
        raise KeepADError("--threshold takes the place of a calibration, which --fdr needs; give one of them.")
    images = find_images(paths)
    taught = None if profile is None else read_profile(profile)
    name, chosen = one_point(point, keep), None
    if name or budget_ms is None:
        chosen = chosen_point(name, taught, pixel_router)
    detector = load(
        model,
        point=chosen,
        engine=engine,
        device=device,
        weights=weights,
        profile=taught,
        budget_ms=budget_ms,
        image_size=image_size,
        fit=fit,
        tiles=tiles,
        overlap=overlap,
        roi=roi,
        ignore=ignore,
        views=views,
    )
    if chosen is None:
        detector.point = with_pixel_router(detector.point, pixel_router)
    if taught is not None:
        warn_of_references(taught, images)
    if threshold is not None:
        detector.set_threshold(threshold)
    summary = run_folder(detector, images, out, batch_size=batch, outputs=Outputs(overlays, masks, coco, rate))
    calibrated = None if taught is None else taught.calibrated
    nothing = not summary.interrupted and not any(row["verdict"] == "defect" for row in summary.rows)
    if rate is not None and calibrated is not None and nothing:
        say_on_stderr(
            f"no image is called defect: with {len(calibrated.scores)} calibration images, "
            f"{fewest_discoveries(calibrated, summary.done, rate)} of these {summary.done} would have to score above "
            "all of them; with more calibration images, or a higher rate, fewer."
        )
    print_summary(summary)


def load_with_profile(
    model: str | None, *, point: str | None, profile: Path | None, pixel_router: str | None, **options: Any
) -> Detector:
    """The detector of these options; the operating point is the profile's own where none is named."""
    from keepad.loading import load
    from keepad.references.profile import read_profile

    taught = None if profile is None else read_profile(profile)
    return load(model, point=chosen_point(point, taught, pixel_router), profile=taught, **options)


def chosen_point(point: str | None, profile: Profile | None, pixel_router: str | None) -> OperatingPoint:
    """The operating point of these options: the one that is named, the profile's own, or the default."""
    from keepad.loading import DEFAULT_POINT
    from keepad.presets import with_pixel_router

    default = DEFAULT_POINT if profile is None else profile.owner.point
    return with_pixel_router(point or default, pixel_router)


def print_summary(summary: RunSummary) -> None:
    """Print a run's table and files; exit with 130 if it was interrupted, with 1 if some images could not be used."""
    from rich.markup import escape

    from keepad.console import stderr, stdout

    stdout.print(summary.table())
    for fit, count in summary.fits.items():
        stdout.print(f"input:   {fit} ({count} image{'' if count == 1 else 's'})", soft_wrap=True, highlight=False)
    for sentence in summary.errors:
        stderr.print(f"[bold red]error:[/] {escape(sentence)}", soft_wrap=True)
    stdout.print(f"results: {summary.jsonl}", soft_wrap=True, highlight=False)
    if summary.report:
        stdout.print(f"report:  {summary.report}", soft_wrap=True, highlight=False)
    if summary.masks:
        stdout.print(f"masks:   {summary.masks}", soft_wrap=True, highlight=False)
    if summary.coco:
        stdout.print(f"regions: {summary.coco}", soft_wrap=True, highlight=False)
    if summary.interrupted:
        stdout.print(f"interrupted: the {summary.done} images done so far are kept", highlight=False)
        raise typer.Exit(130)
    if summary.errors:
        raise typer.Exit(1)


def warn_of_references(profile: Profile, images: Sequence[Path]) -> None:
    """Say which of the images the profile was made from; their scores and p-values say nothing about new ones."""
    from keepad.console import say_on_stderr
    from keepad.references.teaching import digest_of_file

    known = {"references of": {image.digest: image.name for image in profile.images}}
    if profile.calibrated is not None:
        known["images that calibrated"] = dict(zip(profile.calibrated.hashes, profile.calibrated.names, strict=True))
    for what, names in known.items():
        of_name = {name.partition(" (")[0] for name in names.values()}
        same = [path for path in images if path.name in of_name and digest_of_file(path) in names]
        if same:
            say_on_stderr(
                f"{len(same)} of these images are {what} the profile ({same[0].name} is one), so their scores say "
                "nothing about new images."
            )
