"""How time and memory grow with image side, batch and threads: `python benchmarks/cost_growth.py --out growth`.

Dense and pruned passes are interleaved in every setting, as in `keepad benchmark`, with the bundled default on the demo
images. One quantity grows at a time, the others stay at 518 pixels, batch 1 and all threads. Writes OUT.json, OUT.md
and OUT.png; an interrupted run continues with the settings that are missing in OUT.json.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch

from keepad.benchmark import Runner, TimedImages, measure, timed_images
from keepad.console import command_line, progress
from keepad.engines.sessions import available_threads
from keepad.loading import load_network
from keepad.network import Network
from keepad.presets import operating_point

SIDES = (308, 392, 518, 700, 854, 1036)
BATCHES = (1, 2, 4, 8, 16)
POINTS = ("dense", "prune30", "prune70")


def settings(threads: int) -> list[dict[str, int]]:
    """Side, batch and threads of every setting, without duplicates."""
    usual = {"side": 518, "batch": 1, "threads": threads}
    grown = [{**usual, "side": side} for side in SIDES]
    grown += [{**usual, "batch": batch} for batch in BATCHES]
    grown += [{**usual, "threads": count} for count in range(1, threads + 1)]
    return list({json.dumps(setting): setting for setting in grown}.values())


def measured(
    network: Network, images: TimedImages, setting: dict[str, int], warmup: int, repeats: int
) -> list[dict[str, Any]]:
    """Rows of a setting, one per operating point."""
    network.image_size = (setting["side"], setting["side"])
    torch.set_num_threads(setting["threads"])
    runners = [Runner(network, operating_point(name)) for name in POINTS]
    batches = images.batches(network.image_size, setting["batch"])
    return [
        {
            **setting,
            "point": timing.runner.point.name,
            "ms": float(np.median(timing.per_repeat)),
            "flops": timing.flops,
            "peak_memory_mb": timing.peak_memory_mb,
            "keep": timing.keep,
        }
        for timing in measure(runners, batches, network, warmup=warmup, repeats=repeats)
    ]


def to_markdown(rows: list[dict[str, Any]], command: str) -> str:
    """A table of all rows; ratios are to dense in the same setting."""
    lines = [
        f"Made by `{command}`.",
        "",
        "Milliseconds per image (medians), peak memory of a pass besides weights and input.",
        "",
        "| side | batch | threads | point | ms | x dense | GFLOP | peak MB | keep |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        setting = {key: row[key] for key in ("side", "batch", "threads")}
        dense = next(other for other in rows if other["point"] == "dense" and setting.items() <= other.items())
        memory = "-" if row["peak_memory_mb"] is None else f"{row['peak_memory_mb']:.0f}"
        lines.append(
            f"| {row['side']} | {row['batch']} | {row['threads']} | {row['point']} | {row['ms']:.0f} "
            f"| {dense['ms'] / row['ms']:.2f} | {row['flops'] / 1e9:.1f} | {memory} | {row['keep']:.0%} |"
        )
    return "\n".join(lines) + "\n"


def draw(rows: list[dict[str, Any]], path: Path, threads: int) -> None:
    """Time above, memory below, against each of the three quantities."""
    from matplotlib.figure import Figure

    usual = {"side": 518, "batch": 1, "threads": threads}
    figure = Figure(figsize=(11, 6), layout="constrained")
    axes = figure.subplots(2, 3, sharex="col")
    names = {"side": "image side in pixels", "batch": "images per batch", "threads": "threads"}
    for column, (key, name) in enumerate(names.items()):
        fixed = {other: value for other, value in usual.items() if other != key}
        column_rows = [row for row in rows if fixed.items() <= row.items()]
        for point in POINTS:
            line = sorted((row for row in column_rows if row["point"] == point), key=lambda row: row[key])
            axes[0][column].plot([row[key] for row in line], [row["ms"] for row in line], "o-", label=point)
            memory = [(row[key], row["peak_memory_mb"]) for row in line if row["peak_memory_mb"] is not None]
            axes[1][column].plot(*zip(*memory, strict=True), "o-", label=point)
        for row in range(2):
            axes[row][column].set_ylim(bottom=0)
            axes[row][column].grid(alpha=0.3)
        axes[1][column].set_xlabel(name)
    axes[0][0].set_ylabel("ms per image")
    axes[1][0].set_ylabel("peak MB of a pass")
    axes[0][0].legend()
    figure.savefig(path, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--images", type=int, default=2, help="different images per repeat; a batch repeats them")
    parser.add_argument("--warmup", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=3)
    args = parser.parse_args()
    network, images, threads = load_network(None, device="cpu"), timed_images(None, args.images), available_threads()
    kept = args.out.with_suffix(".json")
    rows = json.loads(kept.read_text())["rows"] if kept.is_file() else []
    command = command_line(["python", *sys.argv])
    with progress("growth", len(settings(threads))) as advance:
        for setting in settings(threads):
            if not any(setting.items() <= row.items() for row in rows):
                rows += measured(network, images, setting, args.warmup, args.repeats)
                kept.parent.mkdir(parents=True, exist_ok=True)
                kept.write_text(json.dumps({"command": command, "rows": rows}, indent=1) + "\n", encoding="utf-8")
            advance()
    args.out.with_suffix(".md").write_text(to_markdown(rows, command), encoding="utf-8")
    draw(rows, args.out.with_suffix(".png"), threads)


if __name__ == "__main__":
    main()
