"""The pixel router on suites that a checkpoint was not trained on: every operating point with it and without.

    keepad benchmark --images ../shared/data/mpdd --pixel-router both --out docs/pixels/speed-mpdd.json   # every suite
    python scripts/compare_pixels.py --data ../shared/data --out docs/pixels/transfer \\
        --speed docs/pixels/speed-*.json -- m2i.safetensors i2m.safetensors

Without it, passes start from cached tokens, as in `compare_routers.py`, whose state is shared; with it, from pixels,
but for images of which it drops nothing.
Finished classes are kept and not computed again, and with `--points` so is what OUT.json says of the other points.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from compare_routers import Bench, summary

from keepad.backbone.weights import cache_folder
from keepad.metrics import auroc
from keepad.presets import PIXELS, POINTS, PixelBudget

NAMES = ("dense", "prune30", "prune50", "prune70")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True, help="results are written to OUT.json and OUT.md")
    parser.add_argument("--state", type=Path, default=cache_folder() / "routers")
    parser.add_argument("--speed", nargs="*", type=Path, default=[], help="what keepad benchmark wrote, torch first")
    parser.add_argument("--points", nargs="+", choices=NAMES, default=NAMES, help="only these")
    parser.add_argument("checkpoints", nargs="+", type=Path)
    args = parser.parse_args()
    bench = Bench(args.data, args.state)
    without = [replace(POINTS[name], pixels=None) for name in args.points if name != "dense"]
    thinned = [replace(POINTS[name], name=f"{name} + pixels", pixels=PIXELS) for name in args.points]
    table: dict[str, dict[str, dict[str, Any]]] = {}  # direction -> suite, or "all" -> row -> numbers
    changes: dict[str, dict[str, dict[str, float]]] = {}  # measure -> class -> point -> change
    kept = args.out.with_suffix(".json")
    before = json.loads(kept.read_text()) if kept.is_file() else {"table": {}, "changes": {}}
    speed = speeds(args.speed)
    for path in args.checkpoints:
        found = bench.measure(path, [*without, *thinned], dense=True)
        rows = ["dense", *(point.name for point in (*without, *thinned))]
        parts = {"all": found}
        if len(found) > 1:
            parts |= {suite: {suite: classes} for suite, classes in found.items()}
        known = before["table"].get(" ".join(found), {})
        table[" ".join(found)] = {
            part: in_order({**known.get(part, {}), **{name: summary(content, name) for name in rows}})
            for part, content in parts.items()
        }
        for told, classes in changes_of(found, args.points).items():
            for cls, points in classes.items():
                earlier = before["changes"].get(told, {}).get(cls, {})
                changes.setdefault(told, {})[cls] = in_order({**earlier, **points})
    args.out.parent.mkdir(parents=True, exist_ok=True)
    content = {"table": table, "changes": changes, "speed": speed}
    kept.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    args.out.with_suffix(".md").write_text(to_markdown(table, changes, speed), encoding="utf-8")


def in_order(rows: dict[str, Any]) -> dict[str, Any]:
    """Rows as the tables show them: without the pixel router first, each time from dense to prune70."""
    names = [*NAMES, *(f"{name} + pixels" for name in NAMES)]
    return {name: rows[name] for name in names if name in rows}


def speeds(paths: Sequence[Path]) -> dict[str, dict[str, Any]]:
    """Suite -> row, with the engine before it if that is not torch -> what was timed; a file is one interleaved run."""
    found: dict[str, dict[str, Any]] = {}
    for path in paths:
        content = json.loads(path.read_text())
        rows = found.setdefault(content["settings"]["images"]["source"], {})
        for record in content["records"]:
            name = record["point"] if record["engine"] == "torch" else f"{record['engine']}: {record['point']}"
            if name not in rows:  # dense in torch is timed in every run; it belongs to the first one
                rows[name] = {
                    key: record[key] for key in ("median_ms", "flops_ratio", "ratio_to_dense", "keep_pixels", "keep")
                }
    return found


def changes_of(found: dict[str, Any], points: Sequence[str]) -> dict[str, dict[str, dict[str, float]]]:
    """Measure -> class -> point -> what the pixel router changes there."""
    measures = {"I-AUROC": image_auroc, "P-AUROC": lambda one: one["pixel"]}
    return {
        told: {
            f"{suite} {cls}": {name: measure(one[f"{name} + pixels"]) - measure(one[name]) for name in points}
            for suite, classes in found.items()
            for cls, one in classes.items()
        }
        for told, measure in measures.items()
    }


def class_lines(changes: dict[str, dict[str, dict[str, float]]]) -> list[str]:
    """How many figures lose more than a point and which, and the class that loses most on the mean of the points."""
    figures = [
        (change, f"{told} of {cls} at {name}")
        for told, classes in changes.items()
        for cls, points in classes.items()
        for name, change in points.items()
    ]
    lost = sorted(one for one in figures if one[0] < -0.01)
    lines = [f"- Of {len(figures)} figures (class, point, measure) {len(lost)} lose more than a point."]
    lines += [f"  - {where}: {100 * change:+.2f}" for change, where in lost]
    for told, classes in changes.items():
        mean = {cls: float(np.mean(list(points.values()))) for cls, points in classes.items()}
        worst = min(mean, key=lambda cls: mean[cls])
        lines.append(f"- {told}, mean of the points: {worst} loses most, {100 * mean[worst]:+.2f}.")
    return lines


def image_auroc(one: dict[str, Any]) -> float:
    """I-AUROC of a class at a point."""
    return auroc([row["score"] for row in one["rows"]], [row["label"] for row in one["rows"]])


def to_markdown(
    table: dict[str, dict[str, dict[str, Any]]],
    changes: dict[str, dict[str, dict[str, float]]],
    speed: dict[str, dict[str, Any]],
) -> str:
    """A table for each direction and suite, their mean, the classes that lose most, and the speed by suite."""
    lines = [
        "# The pixel router on unseen suites",
        "",
        "Made by `python scripts/compare_pixels.py` (its first lines show the whole command). Patches share a token",
        f"where all pixels of a block are alike: {_told(PIXELS)}.",
        "I/P-AUROC in percent, with the change against the same point without it. A defect token that is dropped",
        "before the first block counts as lost in DTR and CMR. `keep`: patches entering block 1 / at the end.",
        "",
    ]
    head = ["| | I-AUROC | P-AUROC | DTR | CMR | keep |", "|---|---|---|---|---|---|"]
    for direction, parts in table.items():
        for part, rows in parts.items():
            lines += [f"## Unseen: {direction if part == 'all' else part}", "", *head]
            lines += [_line(name, one, rows) for name, one in rows.items()]
            lines.append("")
    lines += ["## Mean of the directions", "", *head]
    whole = [parts["all"] for parts in table.values()]
    mean = {name: _mean([rows[name] for rows in whole]) for name in whole[0]}
    lines += [_line(name, one, mean) for name, one in mean.items()]
    pairs = [(mean[f"{name} + pixels"], mean[name]) for name in NAMES if f"{name} + pixels" in mean]
    change = {key: float(np.mean([on[key] - off[key] for on, off in pairs])) for key in ("image", "pixel")}
    lost = float(np.mean([on["survival"]["cmr"] - off["survival"]["cmr"] for on, off in pairs]))
    lines += ["", f"Mean change over the directions and points: I-AUROC {100 * change['image']:+.2f}, P-AUROC"]
    lines += [f"{100 * change['pixel']:+.2f}, CMR {100 * lost:+.2f}.", "", "By class:", "", *class_lines(changes)]
    lines += _speed_lines(speed)
    return "\n".join(lines) + "\n"


def _speed_lines(speed: dict[str, dict[str, Any]]) -> list[str]:
    lines: list[str] = []
    gains: dict[str, list[float]] = {}
    for suite, rows in speed.items():
        lines += [
            "",
            f"## Speed on {suite}",
            "",
            "| | ms | x dense | x FLOPs | x without | keep |",
            "|---|---|---|---|---|---|",
        ]
        for name, row in rows.items():
            base = rows.get(name.removesuffix(" + pixels"), row)
            gain = base["median_ms"] / row["median_ms"]
            kept = f"{100 * row['keep_pixels']:.1f} / {100 * row['keep']:.1f}"
            if base is not row:
                gains.setdefault(name, []).append(gain)
            lines.append(
                f"| {name} | {row['median_ms']:.0f} | {row['ratio_to_dense']:.2f} | {row['flops_ratio']:.2f} "
                f"| {'-' if base is row else f'{gain:.2f}'} | {kept} |"
            )
    if gains:
        lines += ["", "Against the same point without the pixel router, mean of the suites:", ""]
        lines += [f"- {name}: {np.mean(found):.2f}x ({len(found)} suites)" for name, found in gains.items()]
    return lines


def _told(budget: PixelBudget) -> str:
    return ", ".join(f"{side}x{side} within {levels:g} grey levels" for side, levels in budget.blocks)


def _line(name: str, one: dict[str, Any], rows: dict[str, Any]) -> str:
    base = rows[name.removesuffix(" + pixels")]
    cells = []
    for key in ("image", "pixel"):
        change = f" ({100 * (one[key] - base[key]):+.2f})" if base is not one else ""
        cells.append(f"{100 * one[key]:.1f}{change}")
    rate = one["survival"]
    cells += [f"{100 * rate['dtr']:.1f}", f"{100 * rate['cmr']:.2f}"]
    cells.append(f"{100 * one['keep_pixels']:.1f} / {100 * one['keep']:.1f}")
    return f"| {name} | {' | '.join(cells)} |"


def _mean(rows: list[dict[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {
        key: float(np.mean([row[key] for row in rows])) for key in ("image", "pixel", "keep", "keep_pixels")
    }
    return {**found, "survival": {k: float(np.mean([row["survival"][k] for row in rows])) for k in ("dtr", "cmr")}}


if __name__ == "__main__":
    main()
