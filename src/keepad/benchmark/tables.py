"""Records as tables: for a terminal, and as JSON with a Markdown page beside it."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from itertools import groupby
from pathlib import Path
from typing import Any

import torch
from rich.table import Table

from keepad.assembly import choose_device
from keepad.benchmark.plan import BenchmarkPlan, TimedImages
from keepad.benchmark.records import Record
from keepad.benchmark.schedule import TURN
from keepad.console import command_line
from keepad.errors import KeepADError
from keepad.files import replace_text
from keepad.latency import cpu_name
from keepad.steps import Stages

_SETTING = ("backbone", "batch", "threads", "dtype", "engine")
_TIMES = ("point", "ms", "IQR", "x dense", "x FLOPs", "realised", "peak MB", "keep")
_EXPLANATION = (
    f"medians, all variants interleaved in one process, at most {TURN} passes in a row and an untimed one before. "
    "x dense and x FLOPs: how many times faster and cheaper than dense in torch; realised: their quotient; peak MB: "
    "memory of a pass besides weights and input (torch: its tensors; engines: growth of the process); keep: patches "
    "after each router, the pixel router first where it dropped any."
)


def settings_of(plan: BenchmarkPlan, images: TimedImages, command: Sequence[str]) -> dict[str, Any]:
    """Machine, images, protocol and command of a run, as stored beside its records."""
    device = choose_device(plan.device)
    return {
        "machine": {
            "cpu": cpu_name(),
            "cores": os.cpu_count(),
            "load_average": os.getloadavg()[0] if hasattr(os, "getloadavg") else None,
            "device": torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
            "torch": torch.__version__,
            "threads": torch.get_num_threads(),
            "python": platform.python_version(),
            "system": platform.system(),
        },
        "images": {"source": images.source, "per_repeat": len(images.names), "names": list(images.names)},
        "model": plan.model,
        "warmup": plan.warmup,
        "repeats": plan.repeats,
        "command": command_line(command),
    }


def _setting_cells(record: Record) -> tuple[str, ...]:
    name = record.backbone if record.weights == "pretrained" else f"{record.backbone} ({record.weights})"
    return name, str(record.batch), str(record.threads), record.dtype, record.engine


def _time_cells(record: Record) -> tuple[str, ...]:
    pixels = [record.keep_pixels] if record.keep_pixels < 1 else []
    return (
        record.point,
        f"{record.median_ms:.1f}",
        f"{record.iqr_ms:.1f}",
        f"{record.ratio_to_dense:.2f}",
        f"{record.flops_ratio:.2f}",
        f"{record.realised:.0%}",
        "-" if record.peak_memory_mb is None else f"{record.peak_memory_mb:.0f}",
        " / ".join(f"{share:.0%}" for share in (*pixels, record.keep_shallow, record.keep)),
    )


def _stage_cells(record: Record) -> tuple[str, ...]:
    return record.point, *(f"{record.stages[stage]:.2f}" for stage in Stages.NAMES)


def tables(records: Iterable[Record]) -> list[Table]:
    """Two tables for a terminal for each setting: times against dense, and the time of each stage."""
    rendered = []
    for (name, batch, threads, dtype, engine), group in groupby(records, key=_setting_cells):
        title = f"{name}, {engine}, batch {batch}, {threads} threads, {dtype}: milliseconds per image"
        times = Table(*_TIMES, title=f"{title}, against dense in the same run", title_justify="left")
        stages = Table("point", *Stages.NAMES, title=f"{title}, by stage", title_justify="left")
        for record in group:
            times.add_row(*_time_cells(record))
            stages.add_row(*_stage_cells(record))
        for table in (times, stages):
            for column in table.columns[1:]:
                column.justify, column.no_wrap = "right", True
        rendered += [times, stages]
    return rendered


def to_markdown(records: Sequence[Record], settings: dict[str, Any]) -> str:
    """The same two tables over all settings, as a page whose first line is the command that made it."""
    machine, images = settings["machine"], settings["images"]
    device = machine["cpu"] if machine["device"] == "cpu" else machine["device"]
    paragraphs = [
        f"Made by `{settings['command']}`.",
        f"{device}, {machine['cores']} cores, torch {machine['torch']}; {settings['warmup']} warm-ups, "
        f"{settings['repeats']} repeats of {images['per_repeat']} images ({images['source']}); {_EXPLANATION}",
        _markdown_table(_TIMES, records, _time_cells),
        "Milliseconds per image by stage:",
        _markdown_table(("point", *Stages.NAMES), records, _stage_cells),
    ]
    return "\n\n".join(paragraphs) + "\n"


def _markdown_table(
    columns: Sequence[str], records: Iterable[Record], cells: Callable[[Record], tuple[str, ...]]
) -> str:
    header = (*_SETTING, *columns)
    rows = [header, ("---",) * len(header), *((*_setting_cells(record), *cells(record)) for record in records)]
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def write_report(path: str | Path, records: Sequence[Record], settings: dict[str, Any]) -> Path:
    """Path of the Markdown page, written beside the JSON file `path`; both are replaced as a whole."""
    path = Path(path)
    content = {"settings": settings, "records": [asdict(record) for record in records]}
    _write(path, json.dumps(content, indent=2) + "\n")
    page = path.with_suffix(".md")
    _write(page, to_markdown(records, settings))
    return page


def _write(path: Path, text: str) -> None:
    try:
        replace_text(path, text)
    except OSError as error:
        raise KeepADError(f"{path} could not be written: {error.strerror}; choose another path.") from error
