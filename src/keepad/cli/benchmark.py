"""keepad benchmark: time operating points against dense, interleaved in one process."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from keepad.cli.options import DeviceOption, parts_of
from keepad.errors import KeepADError


def benchmark(
    backbones: Annotated[
        str | None, typer.Option("--backbones", help="Names, separated by commas; the default backbone if left out.")
    ] = None,
    model: Annotated[
        str | None, typer.Option("--model", "-m", help="Checkpoint to time instead of the one of a backbone.")
    ] = None,
    points: Annotated[
        str, typer.Option("--points", help="Operating points, separated by commas; dense is always timed.")
    ] = "dense,prune30,prune50,prune70",
    batch: Annotated[str, typer.Option("--batch", "-b", help="Images in one forward pass, for instance 1,8.")] = "1",
    threads: Annotated[
        str | None, typer.Option("--threads", help="CPU threads, for instance 1,2; torch's choice if left out.")
    ] = None,
    dtype: Annotated[
        str, typer.Option("--dtype", help="float32, bfloat16, or both, separated by a comma.")
    ] = "float32",
    engine: Annotated[
        str,
        typer.Option(
            "--engine",
            help="What runs the network, separated by commas: torch, openvino, onnx, openvino:int8, or folders of "
            "keepad export.",
        ),
    ] = "torch",
    pixel_router: Annotated[
        str | None,
        typer.Option(
            "--pixel-router", help="on, off, or both: with it and without; as the points have it if left out."
        ),
    ] = None,
    images: Annotated[
        Path | None, typer.Option("--images", help="Folder of images to time on; the demo images if left out.")
    ] = None,
    per_repeat: Annotated[int, typer.Option("--per-repeat", help="Different images in each repeat, at most.")] = 8,
    warmup: Annotated[int, typer.Option("--warmup", help="Passes of each point before anything is timed.")] = 20,
    repeats: Annotated[int, typer.Option("--repeats", help="Timed repeats; their median counts.")] = 5,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="JSON file for the records; a Markdown table comes beside it.")
    ] = None,
    device: DeviceOption = None,
) -> None:
    """Time operating points against dense in one run, beside the FLOPs they were promised to save."""
    from keepad.backbone import DEFAULT_BACKBONE
    from keepad.benchmark.timing import Plan, Record, pictures, run, settings_of, tables, write_report
    from keepad.console import progress, stdout
    from keepad.files import writable_folder

    plan = Plan(
        backbones=tuple(parts_of(backbones or DEFAULT_BACKBONE)),
        model=model,
        points=tuple(parts_of(points)),
        batches=_numbers("--batch", batch),
        threads=None if threads is None else _numbers("--threads", threads),
        dtypes=tuple(parts_of(dtype)),
        engines=tuple(parts_of(engine)),
        pixel_router=pixel_router,
        warmup=warmup,
        repeats=repeats,
        images=per_repeat,
        device=device,
    )
    if out is not None:
        if out.suffix != ".json":
            raise KeepADError(f"--out must name a .json file, not '{out}'; the Markdown table beside it gets its name.")
        writable_folder(out.parent)  # known now rather than after minutes of timing
    shown = pictures(images, plan.images)
    settings = settings_of(plan, shown, ["keepad", *sys.argv[1:]])
    records: list[Record] = []
    interrupted = False
    with progress("benchmark", plan.passes(len(shown.images))) as advance:
        try:
            for group in run(plan, shown, advance=advance):
                records += group
                if out is not None:
                    write_report(out, records, settings)
        except KeyboardInterrupt:
            interrupted = True
    for table in tables(records):
        stdout.print(table)
    if out is not None and records:
        stdout.print(f"records: {out}", f"table:   {out.with_suffix('.md')}", sep="\n", soft_wrap=True, highlight=False)
    if interrupted:
        stdout.print(f"interrupted: the {len(records)} records done so far are kept", highlight=False)
        raise typer.Exit(130)


def _numbers(option: str, text: str) -> tuple[int, ...]:
    try:
        return tuple(int(word) for word in parts_of(text))
    except ValueError:
        raise KeepADError(f"{option} takes whole numbers separated by commas, not {text!r}.") from None
