"""The pixel router on suites that a checkpoint was not trained on: every operating point with it and without.

    python scripts/compare_pixels.py --data ../shared/data --out docs/pixels/transfer m2i.safetensors i2m.safetensors

Without it, passes start from cached tokens, as in `compare_routers.py`, whose state is shared; with it, from pixels.
Finished classes are kept and not computed again.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from compare_routers import Bench, summary

from keepad.backbone.weights import cache_folder
from keepad.presets import PIXELS, POINTS

NAMES = ("dense", "prune30", "prune50", "prune70")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True, help="results are written to OUT.json and OUT.md")
    parser.add_argument("--state", type=Path, default=cache_folder() / "routers")
    parser.add_argument("checkpoints", nargs="+", type=Path)
    args = parser.parse_args()
    bench = Bench(args.data, args.state)
    without = [replace(POINTS[name], pixels=None) for name in NAMES[1:]]
    thinned = [replace(POINTS[name], name=f"{name} + pixels", pixels=PIXELS) for name in NAMES]
    table: dict[str, dict[str, dict[str, Any]]] = {}  # direction -> suite, or "all" -> row -> numbers
    worst: dict[str, list[Any]] = {}
    for path in args.checkpoints:
        found = bench.measure(path, [*without, *thinned], dense=True)
        rows = [*NAMES, *(point.name for point in thinned)]
        parts = {"all": found, **{suite: {suite: classes} for suite, classes in found.items()}}
        table[" ".join(found)] = {
            part: {name: summary(content, name) for name in rows} for part, content in parts.items()
        }
        args.out.parent.mkdir(parents=True, exist_ok=True)
        worst |= worst_classes(found)
        content = {"table": table, "worst": worst}
        args.out.with_suffix(".json").write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
        args.out.with_suffix(".md").write_text(to_markdown(table, worst), encoding="utf-8")


def worst_classes(found: dict[str, Any]) -> dict[str, list[Any]]:
    """Point -> the class whose P-AUROC falls most with the pixel router, and by how much."""
    result = {}
    for name in NAMES:
        changes = [
            (one[f"{name} + pixels"]["pixel"] - one[name]["pixel"], f"{suite} {cls}")
            for suite, classes in found.items()
            for cls, one in classes.items()
        ]
        change, cls = min(changes)
        result[f"{name}, unseen {' '.join(found)}"] = [cls, change]
    return result


def to_markdown(table: dict[str, dict[str, dict[str, Any]]], worst: dict[str, list[Any]]) -> str:
    """A table for each direction and suite, their mean, and the classes that lose most."""
    lines = [
        "# The pixel router on unseen suites",
        "",
        "Made by `python scripts/compare_pixels.py` (its first lines show the whole command). The pixel router takes",
        f"for uniform what lies within {PIXELS.tolerance:g} grey levels, plus {PIXELS.noise:g} times the range of the",
        f"quietest patches, in blocks of {' and '.join(f'{side}x{side}' for side in PIXELS.blocks)}.",
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
    lines += ["", "Classes whose P-AUROC falls most:", ""]
    lines += [f"- {where}: {cls}, {100 * change:+.1f}" for where, (cls, change) in worst.items()]
    return "\n".join(lines) + "\n"


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
