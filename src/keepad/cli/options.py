"""Options that several commands share, so that they are called and explained alike."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

ModelOption = Annotated[
    str | None,
    typer.Option("--model", "-m", help="Checkpoint, or a folder of keepad export; the bundled default if left out."),
]
WeightsOption = Annotated[
    Path | None, typer.Option("--weights", help="Backbone weights to use instead of the cached or downloaded ones.")
]
PointOption = Annotated[str, typer.Option("--point", "-p", help="Operating point: dense, prune30, prune50 or prune70.")]
EngineOption = Annotated[
    str | None, typer.Option("--engine", help="What runs the network: torch, openvino or onnx; torch if left out.")
]
PixelRouterOption = Annotated[
    str | None,
    typer.Option("--pixel-router", help="on or off: drop what the pixels prove redundant; as the point has it."),
]
DeviceOption = Annotated[
    str | None, typer.Option("--device", help="For instance cpu or cuda:0; chosen by itself if left out.")
]


def parts_of(text: str) -> list[str]:
    """The distinct parts of a list with commas, in their order."""
    return list(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
