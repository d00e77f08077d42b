"""Write the results of README.md from the transfer table of docs/pixels and from docs/benchmark.

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
MEASURES = (("image",), ("pixel",), ("survival", "dtr"), ("survival", "cmr"))


def numbers(
    pixels: dict[str, Any],
    router: dict[str, Any],
    benchmark: dict[str, Any],
    engines: dict[str, Any],
    precisions: dict[str, Any],
) -> str:
    """The table: accuracy and survival on suites the checkpoints have not seen, time and FLOPs against dense."""
    speed = {record["point"]: record for record in benchmark["records"] if record["batch"] == 1}
    wholes = [parts["all"] for parts in pixels["table"].values()]

    def mean(row: str, *names: str) -> float:
        found = []
        for rows in wholes:
            value: Any = rows[row]
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
        row = point if point == "dense" else f"{point} + pixels"
        cells = [
            f"{mean(row, 'image'):.1f}",
            f"{mean(row, 'pixel'):.1f}",
            f"{mean(row, 'survival', 'dtr'):.1f} %",
            f"{mean(row, 'survival', 'cmr'):.2f} %",
            f"{mean(row, 'keep'):.1f} %",
            *(f"{speed[point][name]:.2f}x" for name in ("flops_ratio", "ratio_to_dense")),
        ]
        lines.append(f"| {point} | {' | '.join(cells)} |")
    unseen = " and ".join(f"{direction.replace(' ', ', ')}" for direction in pixels["table"])
    told = ", ".join(f"{suite} {row['ratio']:.2f}x" for suite, row in router["suites"].items())
    told += f", mean {router['mean']:.2f}x"
    changes = [mean("prune70 + pixels", *names) - mean("prune70", *names) for names in MEASURES]
    machine = benchmark["settings"]["machine"]
    lines += [
        "",
        "- Accuracy: mean of the two transfer directions, each checkpoint on suites that it has not seen "
        f"({unseen}): `python scripts/compare_pixels.py --data ../shared/data --out docs/pixels/transfer --speed "
        "docs/pixels/speed-*.json -- m2i.safetensors i2m.safetensors`. [All numbers]"
        "(docs/pixels/transfer.md); the "
        "[routers alone](docs/routers/transfer.md), beside the published recipe and without their parts.",
        "- How much the pixels prove depends on the images. prune70 with the pixel router against prune70 without: "
        f"{told} ([measured](docs/pixels/router.md)); "
        f"I-AUROC {changes[0]:+.1f}, P-AUROC {changes[1]:+.1f}, DTR {changes[2]:+.1f}, CMR {changes[3]:+.2f}.",
        f"- Speed: `{benchmark['settings']['command']}`, one image at a time on {machine['cores']} CPU cores, dense "
        "and pruned interleaved. [All numbers](docs/benchmark/default.md).",
        *_engine_line(engines, precisions),
    ]
    return "\n".join(lines)


def _engine_line(engines: dict[str, Any], precisions: dict[str, Any]) -> list[str]:
    """How fast the fastest engine is on images of all suites, and what its precision costs in accuracy."""
    records = [record for record in engines["records"] if record["point"].startswith("prune70")]
    alone = [record for record in records if record["batch"] == 1]
    best = min(alone, key=lambda record: record["median_ms"])
    together = max(
        (record for record in records if record["engine"] == best["engine"]), key=lambda record: record["batch"]
    )
    engine, _, precision = best["engine"].partition(":")
    name = f"{engine} {precision or 'fp32'}"
    plain = [{who: next(iter(views.values())) for who, views in rows.items()} for rows in precisions.values()]
    changes = [
        " / ".join(f"{100 * (rows[name][key] - rows['torch fp32'][key]):+.1f}" for key in ("image", "pixel"))
        for rows in plain
    ]
    return [
        f"- Without torch: prune70 in {name} is {best['ratio_to_dense']:.2f} times as fast as dense in torch on images "
        f"of all suites, one at a time, and {together['ratio_to_dense']:.2f} times with {together['batch']} in a batch "
        "([all engines](docs/benchmark/engines.md)); I- / P-AUROC of the exports of both directions against torch "
        f"{' and '.join(changes)} ([precisions](docs/benchmark/precisions.md))."
    ]


def updated(readme: str, table: str) -> str:
    before, _, rest = readme.partition(START)
    _, _, after = rest.partition(END)
    return f"{before}{START}\n{table}\n{END}{after}"


def main() -> None:
    readme = ROOT / "README.md"
    benchmark = json.loads((ROOT / "docs" / "benchmark" / "default.json").read_text())
    pixels = json.loads((ROOT / "docs" / "pixels" / "transfer.json").read_text())
    router = json.loads((ROOT / "docs" / "pixels" / "router.json").read_text())
    engines = json.loads((ROOT / "docs" / "benchmark" / "engines.json").read_text())
    precisions = json.loads((ROOT / "docs" / "benchmark" / "precisions.json").read_text())
    text = updated(readme.read_text(), numbers(pixels, router, benchmark, engines, precisions))
    if "--check" in sys.argv:
        sys.exit(0 if text == readme.read_text() else "README.md is out of date: run python scripts/readme_numbers.py")
    readme.write_text(text)


if __name__ == "__main__":
    main()
