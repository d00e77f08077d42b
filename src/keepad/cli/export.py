"""keepad export: write a detector for OpenVINO or ONNX Runtime."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from keepad.cli.options import ImageSizeOption, ModelOption, WeightsOption


def export(
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder for the exported detector.")],
    engine: Annotated[
        str, typer.Option("--engine", help="openvino or onnx, with a precision after a colon: openvino:int8.")
    ] = "openvino",
    model: ModelOption = None,
    weights: WeightsOption = None,
    image_size: ImageSizeOption = None,
    calibrate: Annotated[
        list[Path] | None, typer.Option("--calibrate", help="Source images, or folders of them, that calibrate int8.")
    ] = None,
    limit: Annotated[int, typer.Option("--limit", min=1, help="Use at most so many of these and of --verify.")] = 64,
    verify: Annotated[
        list[Path] | None,
        typer.Option("--verify", help="Images on which scores, maps and survivors must agree with torch."),
    ] = None,
) -> None:
    """Write a folder that runs without torch, routers included; --verify compares it with torch."""
    from rich.table import Table

    from keepad.console import stderr, stdout
    from keepad.engines import export as exports
    from keepad.engines import open_network
    from keepad.framing import size_of
    from keepad.images import find_pictures, spread
    from keepad.loading import load_network, parse_engine
    from keepad.presets import POINTS

    def say(line: str) -> None:
        stderr.print(line, soft_wrap=True, markup=False, highlight=False)

    kind, precision = parse_engine(engine)
    calibration = spread(find_pictures(calibrate), limit) if calibrate else []
    compared = spread(find_pictures(verify), limit) if verify else []

    exports.check_request(kind, precision, calibration)
    size = None if image_size is None else size_of(image_size)
    network = load_network(model, device="cpu", weights=weights, image_size=size, say=say)
    folder = exports.export(network, out, engine=kind, precision=precision, images=calibration, say=say)
    stdout.print(f"exported: {folder}", soft_wrap=True, markup=False, highlight=False)
    if compared:
        points = [POINTS[name] for name in ("dense", "prune30", "prune50", "prune70")]
        table = Table("point", "score off by", "map off by", "common survivors", title=f"{len(compared)} images")
        for row in exports.verify(network, open_network(folder), compared, points):
            table.add_row(row.point, f"{row.score:.5f}", f"{row.map:.5f}", f"{row.survivors:.1%}")
        stdout.print(table)
