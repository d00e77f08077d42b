"""keepad calibrate: a threshold with a promised false-alarm rate, from good images."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from keepad.cli.options import DeviceOption, EngineOption, ModelOption, WeightsOption, rate_of
from keepad.errors import KeepADError


def calibrate(
    paths: Annotated[list[Path], typer.Argument(help="Good images, or folders of them, that are no references.")],
    false_alarms: Annotated[
        str, typer.Option("--false-alarms", help="Promised share of good images called defect; 1% needs 99 images.")
    ] = "1%",
    confidence: Annotated[
        str | None,
        typer.Option("--confidence", help="Promise it at this confidence, such as 95%; on average if left out."),
    ] = None,
    review: Annotated[
        str | None,
        typer.Option("--review", help="Promised share called review or defect; five times --false-alarms if left out."),
    ] = None,
    profile: Annotated[
        Path | None, typer.Option("--profile", help="Profile that gets the calibration; a new one if left out.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Profile to write; --profile itself if left out.")
    ] = None,
    model: ModelOption = None,
    weights: WeightsOption = None,
    point: Annotated[
        str | None, typer.Option("--point", "-p", help="Operating point; the profile's own, or prune50.")
    ] = None,
    engine: EngineOption = "auto",
    device: DeviceOption = None,
) -> None:
    """Calibrate verdicts: from good images to ok, review or defect at a promised rate of false alarms.

    Can be interrupted: the same command goes on where it stopped.
    """
    from keepad.console import progress, say_on_stderr, stdout
    from keepad.files import writable_folder
    from keepad.images import find_images
    from keepad.loading import load
    from keepad.references.calibrating import Promise, ScoreLog
    from keepad.references.calibrating import calibrate as calibrate_detector

    target = out or profile
    if target is None:
        raise KeepADError("name the profile to write with --out, such as --out bolts.keepad.")
    promise = Promise(
        rate_of("--false-alarms", false_alarms),
        None if confidence is None else rate_of("--confidence", confidence),
        None if review is None else rate_of("--review", review),
    )
    images = find_images(paths)
    promise.require(len(images))  # refused now rather than after loading; copies are only found later
    writable_folder(target.parent)
    detector = load(model, point=point, engine=engine, device=device, weights=weights, profile=profile)
    log = ScoreLog(target.with_name(f"{target.name}.scores.jsonl"), detector)
    left_out: list[str] = []
    try:
        calibrated = calibrate_detector(
            detector,
            images,
            promise,
            say=say_on_stderr,
            on_error=lambda _, error: left_out.append(str(error)),
            progress=progress,
            log=log,
        )
    except KeyboardInterrupt:
        say_on_stderr(f"interrupted: {len(log.known)} scores are kept; the same command goes on.")
        raise typer.Exit(130) from None
    finally:
        for sentence in left_out:
            say_on_stderr(f"left out: {sentence}")
    calibrated.save(target)
    log.remove()
    fitted = calibrated.calibrated
    assert fitted is not None
    lines = [
        f"profile: {target}",
        f"promise: {fitted.promise}",
        f"defect from a score of {fitted.threshold:.4f}, review from {fitted.review_threshold:.4f}"
        + ("" if fitted.pixel_threshold is None else f"; pixels from {fitted.pixel_threshold:.4f}"),
    ]
    stdout.print("\n".join(lines), soft_wrap=True, highlight=False, markup=False)
    if left_out:
        raise typer.Exit(1)
