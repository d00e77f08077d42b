"""keepad benchmark: time operating points against dense, interleaved in one process."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from keepad.cli.options import BudgetOption, DeviceOption, ImageSizeOption, keep_points, parts_of
from keepad.errors import KeepADError


def benchmark(
    backbones: Annotated[
        str | None, typer.Option("--backbones", help="Names, separated by commas; the default backbone if left out.")
    ] = None,
    model: Annotated[
        str | None, typer.Option("--model", "-m", help="Checkpoint to time instead of those of the backbones.")
    ] = None,
    points: Annotated[
        str, typer.Option("--points", help="Operating points, separated by commas; dense is always timed.")
    ] = "dense,prune30,prune50,prune70",
    keep: Annotated[
        str | None,
        typer.Option("--keep", help="More points, by the share of tokens that the first router keeps: 0.25,0.4."),
    ] = None,
    budget_ms: BudgetOption = None,
    batch: Annotated[str, typer.Option("--batch", "-b", help="Images per forward pass, for instance 1,8.")] = "1",
    threads: Annotated[
        str | None, typer.Option("--threads", help="CPU threads, for instance 1,2; torch's choice if left out.")
    ] = None,
    dtype: Annotated[
        str, typer.Option("--dtype", help="Dtypes of torch: float32, bfloat16, or both, separated by a comma.")
    ] = "float32",
    engine: Annotated[
        str,
        typer.Option(
            "--engine", help="torch, openvino, onnx, separated by commas; a precision after a colon: openvino:int8."
        ),
    ] = "torch",
    exported: Annotated[
        str,
        typer.Option(
            "--exported", help="Folders of keepad export to time as well, separated by commas; of the same checkpoint."
        ),
    ] = "",
    pixel_router: Annotated[
        str | None,
        typer.Option(
            "--pixel-router", help="on, off, or both: with it and without; as the points have it if left out."
        ),
    ] = None,
    image_size: ImageSizeOption = None,
    images: Annotated[
        Path | None, typer.Option("--images", help="Folder of images to time on; the demo images if left out.")
    ] = None,
    per_repeat: Annotated[int, typer.Option("--per-repeat", help="Different images per repeat, at most.")] = 8,
    warmup: Annotated[int, typer.Option("--warmup", help="Passes of each variant before anything is timed.")] = 20,
    repeats: Annotated[int, typer.Option("--repeats", help="Timed repeats; their median counts.")] = 5,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="JSON file for the records; a Markdown table comes beside it.")
    ] = None,
    device: DeviceOption = None,
) -> None:
    """Time operating points against dense in one run, beside their counted FLOPs."""
    from keepad.backbone import DEFAULT_BACKBONE
    from keepad.benchmark import BenchmarkPlan, Record, settings_of, tables, time_plan, timed_images, write_report
    from keepad.console import progress, stdout
    from keepad.files import writable_folder
    from keepad.framing import size_of

    if model and backbones:
        raise KeepADError("--model names a checkpoint and with it a backbone; leave --backbones out.")
    timed = [*parts_of(points), *keep_points(keep)]
    if budget_ms is not None:
        timed = _within_budget(budget_ms, model, engine, backbones, device)
    plan = BenchmarkPlan(
        backbones=tuple(parts_of(backbones or DEFAULT_BACKBONE)),
        model=model,
        points=tuple(timed),
        batches=_numbers("--batch", batch),
        threads=None if threads is None else _numbers("--threads", threads),
        dtypes=tuple(parts_of(dtype)),
        engines=tuple(parts_of(engine)),
        exported=tuple(Path(folder) for folder in parts_of(exported)),
        pixel_router=pixel_router,
        warmup=warmup,
        repeats=repeats,
        images=per_repeat,
        device=device,
        image_size=None if image_size is None else size_of(image_size),
    )
    if out is not None:
        if out.suffix != ".json":
            raise KeepADError(f"--out must name a .json file, not '{out}'; the Markdown table beside it gets its name.")
        writable_folder(out.parent)  # refused now rather than after minutes of timing
    chosen = timed_images(images, plan.images)
    settings = settings_of(plan, chosen, ["keepad", *sys.argv[1:]])
    records: list[Record] = []
    interrupted = False
    with progress("benchmark", plan.passes(len(chosen.images))) as advance:
        try:
            for group in time_plan(plan, chosen, advance=advance):
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


def _within_budget(
    budget_ms: float, model: str | None, engine: str, backbones: str | None, device: str | None
) -> list[str]:
    """The one operating point that a budget chooses; it is timed beside dense."""
    from keepad.loading import load

    engines, names = parts_of(engine), parts_of(backbones or "")
    if len(engines) > 1 or len(names) > 1:
        raise KeepADError("a budget is for one engine and one backbone; name one of each with --budget-ms.")
    source = model or (names[0] if names else None)
    return [load(source, engine=engines[0] if engines else "auto", device=device, budget_ms=budget_ms).point.name]


def _numbers(option: str, text: str) -> tuple[int, ...]:
    try:
        return tuple(int(word) for word in parts_of(text))
    except ValueError:
        raise KeepADError(f"{option} takes whole numbers separated by commas, not {text!r}.") from None
