"""Write the results of README.md from the transfer tables of docs/routers and docs/pixels and from docs/benchmark.

    python scripts/readme_numbers.py

The table stands between two comment lines; nothing else of the file changes. `--check` only says whether it is right.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
START, END = "<!-- numbers: scripts/readme_numbers.py -->", "<!-- end of numbers -->"
POINTS = ("dense", "prune30", "prune50", "prune70")


def numbers(transfer: dict[str, Any], pixels: dict[str, Any], benchmark: dict[str, Any]) -> str:
    """The table: accuracy and survival on suites the checkpoints have not seen, time and FLOPs against dense."""
    speed = {record["point"]: record for record in benchmark["records"] if record["batch"] == 1}
    directions = list(transfer["table"].values())

    def mean(point: str, *names: str) -> float:
        found = []
        for rows in directions:
            value: Any = rows[f"keepad: {point}"]
            for name in names:
                value = value[name]
            found.append(value)
        return 100 * sum(found) / len(found)

    lines = [
        "| operating point | I-AUROC | P-AUROC | defect tokens kept (DTR) | defects lost whole (CMR) | tokens kept "
        "| fewer FLOPs | faster than dense |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for point in POINTS:
        cells = [
            f"{mean(point, 'image'):.1f}",
            f"{mean(point, 'pixel'):.1f}",
            f"{mean(point, 'survival', 'dtr'):.1f} %",
            f"{mean(point, 'survival', 'cmr'):.2f} %",
            f"{mean(point, 'keep'):.1f} %",
            *(f"{speed[point][name]:.2f}x" for name in ("flops_ratio", "ratio_to_dense")),
        ]
        lines.append(f"| {point} | {' | '.join(cells)} |")
    unseen = " and ".join(f"{direction.replace(' ', ', ')}" for direction in transfer["table"])
    machine = benchmark["settings"]["machine"]
    lines += [
        "",
        "- Accuracy: mean of the two transfer directions, each checkpoint on suites that it has not seen "
        f"({unseen}): `python scripts/compare_routers.py --data ../shared/data --out docs/routers/transfer --adopted "
        "m2i.safetensors i2m.safetensors`, routers alone. [All numbers](docs/routers/transfer.md).",
        pixel_router(pixels),
        f"- Speed: `{benchmark['settings']['command']}`, one image at a time on {machine['cores']} CPU cores, dense "
        "and pruned interleaved. [All numbers](docs/benchmark/default.md).",
    ]
    return "\n".join(lines)


def pixel_router(pixels: dict[str, Any]) -> str:
    """What the pixel router does to prune70: accuracy on unseen suites, and time by suite."""
    wholes = [parts["all"] for parts in pixels["table"].values()]

    def change(*names: str) -> float:
        found = []
        for rows in wholes:
            on, off = rows["prune70 + pixels"], rows["prune70"]
            for name in names:
                on, off = on[name], off[name]
            found.append(100 * (on - off))
        return sum(found) / len(found)

    gains = {
        suite: rows["prune70"]["median_ms"] / rows["prune70 + pixels"]["median_ms"]
        for suite, rows in pixels["speed"].items()
    }
    told = ", ".join(f"{suite} {gain:.2f}x" for suite, gain in gains.items())
    return (
        "- The pixel router is part of the pruned points and depends on the images. It changes prune70 by "
        f"{change('image'):+.1f} I-AUROC, {change('pixel'):+.1f} P-AUROC, {change('survival', 'dtr'):+.1f} DTR and "
        f"{change('survival', 'cmr'):+.2f} CMR, and makes it faster: {told}. [All numbers](docs/pixels/transfer.md)."
    )


def updated(readme: str, table: str) -> str:
    before, _, rest = readme.partition(START)
    _, _, after = rest.partition(END)
    return f"{before}{START}\n{table}\n{END}{after}"


def main() -> None:
    readme = ROOT / "README.md"
    transfer = json.loads((ROOT / "docs" / "routers" / "transfer.json").read_text())
    benchmark = json.loads((ROOT / "docs" / "benchmark" / "default.json").read_text())
    pixels = json.loads((ROOT / "docs" / "pixels" / "transfer.json").read_text())
    text = updated(readme.read_text(), numbers(transfer, pixels, benchmark))
    if "--check" in sys.argv:
        sys.exit(0 if text == readme.read_text() else "README.md is out of date: run python scripts/readme_numbers.py")
    readme.write_text(text)


if __name__ == "__main__":
    main()
