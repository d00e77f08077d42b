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
ProfilePointOption = Annotated[
    str | None,
    typer.Option("--point", "-p", help="dense, prune30, prune50 or prune70; the profile's own, or prune50."),
]
ProfileOption = Annotated[
    Path | None, typer.Option("--profile", help="References of the product, a file of keepad teach.")
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


def parts_of(text: str) -> list[str]:
    """The distinct parts of a list with commas, in their order."""
    return list(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))


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
