"""keepad teach: make a profile of a product from good images, add a false alarm to it, or take that back."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from keepad.cli.options import (
    DeviceOption,
    EngineOption,
    FitOption,
    IgnoreOption,
    ImageSizeOption,
    ModelOption,
    OverlapOption,
    RoiOption,
    TilesOption,
    WeightsOption,
)

if TYPE_CHECKING:
    from keepad.references.profile import Profile


def teach(
    paths: Annotated[
        list[Path], typer.Argument(help="Good images, or folders of them; with --add and --undo, the profile.")
    ],
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Profile to write, such as bolts.keepad.")] = None,
    add: Annotated[
        list[Path] | None, typer.Option("--add", help="Normal image, such as a false alarm, to add to the profile.")
    ] = None,
    undo: Annotated[bool, typer.Option("--undo", help="Take back the image that was added last.")] = False,
    model: ModelOption = None,
    weights: WeightsOption = None,
    point: Annotated[
        str | None,
        typer.Option(
            "--point", "-p", help="Operating point that the profile is for: dense, prune30, prune50, prune70."
        ),
    ] = None,
    rotate: Annotated[
        str, typer.Option("--rotate", help="Also take copies at eight angles: on, off, or auto where that helps.")
    ] = "auto",
    size: Annotated[
        int | None, typer.Option("--size", help="Bound on the tokens of the profile; a larger one is slower.")
    ] = None,
    image_size: ImageSizeOption = None,
    fit: FitOption = "squash",
    tiles: TilesOption = None,
    overlap: OverlapOption = None,
    roi: RoiOption = None,
    ignore: IgnoreOption = None,
    engine: EngineOption = "auto",
    device: DeviceOption = None,
) -> None:
    """Teach what is normal: a few good images of a product make a profile for keepad predict."""
    from keepad.console import progress, say_on_stderr, stdout
    from keepad.errors import KeepADError
    from keepad.images import find_images
    from keepad.loading import DEFAULT_POINT, load
    from keepad.references.profile import read_profile
    from keepad.references.teaching import add as add_image
    from keepad.references.teaching import now

    if not add and not undo:
        if out is None:
            raise KeepADError("name the profile to write with --out, such as --out bolts.keepad.")
        images = find_images(paths)
        detector = load(
            model,
            point=point or DEFAULT_POINT,
            engine=engine,
            device=device,
            weights=weights,
            image_size=image_size,
            fit=fit,
            tiles=tiles,
            overlap=overlap,
            roi=roi,
            ignore=ignore,
        )
        profile = detector.teach(
            images,
            rotate=rotate,
            size=size,
            on_error=lambda _, error: say_on_stderr(f"left out: {error}"),
            progress=progress,
        )
        profile.save(out)
        _print(profile, out)
        return
    if len(paths) != 1:
        raise KeepADError("--add and --undo change one profile; name that file and nothing else.")
    profile = read_profile(paths[0])
    if profile.calibrated is not None:
        say_on_stderr("scores change with the references, so the calibration goes; run keepad calibrate again.")
    if undo:
        profile = profile.undone(now())
    if add:
        detector = load(model, engine=engine, device=device, weights=weights, profile=profile)
        for path in add:
            profile = add_image(detector, profile, path)
    profile.save(out or paths[0])
    _print(profile, out or paths[0])
    stdout.print("\n".join(f"{line['when']}  {describe(line)}" for line in profile.history), highlight=False)


def describe(line: dict[str, object]) -> str:
    """A line of a profile's history, for people."""
    if line["action"] in ("teach", "calibrate"):
        return f"{'taught' if line['action'] == 'teach' else 'calibrated'} from {line['images']} images"
    if line["action"] == "choose":
        return f"chosen: {line['point']}"
    return f"{'added' if line['action'] == 'add' else 'took back'} {line['image']}"


def _print(profile: Profile, path: Path) -> None:
    from keepad.console import stdout

    megabytes = path.stat().st_size / 1e6
    stdout.print(
        f"profile: {path} ({', '.join(profile.holds)}; {megabytes:.1f} MB)",
        soft_wrap=True,
        highlight=False,
    )
