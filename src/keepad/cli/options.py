"""Options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from keepad.errors import KeepADError

ModelOption = Annotated[
    str | None,
    typer.Option("--model", "-m", help="Checkpoint, or a folder of keepad export; the bundled default if left out."),
]
WeightsOption = Annotated[
    Path | None, typer.Option("--weights", help="File of backbone weights instead of the cached or downloaded ones.")
]
PointOption = Annotated[str, typer.Option("--point", "-p", help="Operating point: dense, prune30, prune50 or prune70.")]
KeepOption = Annotated[
    str | None,
    typer.Option(
        "--keep", help="Operating point by the share of tokens that the first router keeps, such as 0.25; prune70: 0.3."
    ),
]
BudgetOption = Annotated[
    float | None,
    typer.Option(
        "--budget-ms", help="Milliseconds per image: the most accurate point that keeps them here (95th percentile)."
    ),
]
ProfilePointOption = Annotated[
    str | None,
    typer.Option("--point", "-p", help="dense, prune30, prune50 or prune70; the profile's own, or prune50."),
]
ProfileOption = Annotated[
    Path | None,
    typer.Option("--profile", help="What is known of the product, a file of keepad teach, calibrate or choose."),
]
ThresholdOption = Annotated[
    float | None,
    typer.Option("--threshold", "-t", help="Lowest score of an anomalous image, and lowest map value of a pixel."),
]
EngineOption = Annotated[
    str,
    typer.Option(
        "--engine",
        help="auto, torch, openvino or onnx, with a precision after a colon if not fp32, as in openvino:bf16.",
    ),
]
PixelRouterOption = Annotated[
    str | None,
    typer.Option("--pixel-router", help="on or off; as the operating point has it if left out."),
]
DeviceOption = Annotated[
    str | None, typer.Option("--device", help="cpu or cuda:0, for instance; a GPU if there is one, else the CPU.")
]


ImageSizeOption = Annotated[
    str | None,
    typer.Option("--image-size", help="Input of the network, HxW in whole patches; the checkpoint's own if left out."),
]
FitOption = Annotated[
    str,
    typer.Option(
        "--fit",
        help="Images of another shape than the input: squash, pad, native (their own size), or auto by aspect ratio.",
    ),
]
TilesOption = Annotated[
    str | None,
    typer.Option("--tiles", help="Cut large images into tiles: auto, or pixels of the image along a tile's side."),
]
OverlapOption = Annotated[
    int | None,
    typer.Option("--overlap", help="Pixels that neighbouring tiles share; two patches if left out."),
]
RoiOption = Annotated[
    Path | None, typer.Option("--roi", help="Where to look: a mask at the size of the images, or polygons as JSON.")
]
IgnoreOption = Annotated[Path | None, typer.Option("--ignore", help="Where not to look, in the same forms.")]
ViewsOption = Annotated[
    int, typer.Option("--views", help="Views that are averaged: 1, 2 (mirrored too) or 4 (turned too).")
]


def parts_of(text: str) -> list[str]:
    """The distinct parts of a list with commas, in their order."""
    return list(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))


def keep_points(text: str | None) -> list[str]:
    """Names of the operating points that a list such as 0.25,0.4 means; none for None."""
    from keepad.presets import keep_point

    names = []
    for part in parts_of(text or ""):
        try:
            share = float(part)
        except ValueError:
            raise KeepADError(f"--keep takes shares such as 0.25, not {part!r}.") from None
        names.append(keep_point(share).name)
    return names


def one_point(point: str | None, keep: str | None) -> str | None:
    """The operating point that --point or --keep names, or None."""
    names = [*([] if point is None else [point]), *keep_points(keep)]
    if len(names) > 1:
        raise KeepADError(f"{' and '.join(names)} are several operating points; give one --point or one --keep.")
    return names[0] if names else None


def rate_of(option: str, text: str) -> float:
    """The rate that was typed as 1% or 0.01."""
    number, percent, rest = text.partition("%")
    try:
        rate = float(number) / (100 if percent else 1)
    except ValueError:
        rate = 0.0
    if rest.strip() or not 0 < rate < 1:
        raise KeepADError(f"{option} takes a rate above 0 and below 100%, as in 1% or 0.01, not {text!r}.")
    return rate
