"""keepad export: write a detector for OpenVINO or ONNX Runtime."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from keepad.cli.options import ModelOption, WeightsOption


def export(
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder for the exported detector.")],
    engine: Annotated[str, typer.Option("--format", "-f", help="openvino or onnx.")] = "openvino",
    precision: Annotated[str, typer.Option("--precision", help="fp32, bf16 or int8.")] = "fp32",
    model: ModelOption = None,
    weights: WeightsOption = None,
    calibrate: Annotated[
        list[Path] | None,
        typer.Option("--calibrate", help="Source images, or folders of them, that int8 chooses its scales by."),
    ] = None,
    limit: Annotated[int, typer.Option("--limit", min=1, help="At most so many of these and of --verify.")] = 64,
    verify: Annotated[
        list[Path] | None,
        typer.Option("--verify", help="Images on which scores, maps and survivors must agree with torch."),
    ] = None,
) -> None:
    """Write a detector that runs without torch, routers included, and check that it says the same."""
    from rich.table import Table

    from keepad.console import stderr, stdout
    from keepad.engines import load_engine
    from keepad.engines.export.writing import check_request, export
    from keepad.engines.export.writing import verify as compare
    from keepad.images import find_pictures, spread
    from keepad.loading import load
    from keepad.presets import POINTS

    def tell(line: str) -> None:
        stderr.print(line, soft_wrap=True, markup=False, highlight=False)

    scales = spread(find_pictures(calibrate), limit) if calibrate else []
    checked = spread(find_pictures(verify), limit) if verify else []
    check_request(engine, precision, scales)
    detector = load(model, device="cpu", weights=weights)
    folder = export(detector, out, engine=engine, precision=precision, images=scales, say=tell)
    stdout.print(f"exported: {folder}", soft_wrap=True, markup=False, highlight=False)
    if checked:
        points = [POINTS[name] for name in ("dense", "prune30", "prune50", "prune70")]
        table = Table("point", "score off by", "map off by", "common survivors", title=f"{len(checked)} images")
        for one in compare(detector, load_engine(folder), checked, points):
            table.add_row(one.point, f"{one.score:.5f}", f"{one.map:.5f}", f"{one.survivors:.1%}")
        stdout.print(table)
