"""Exported detectors against torch on every suite that their checkpoint was not trained on: what a precision costs.

    keepad export --model m2i --precision int8 --calibrate ../shared/data/mvtec --out m2i-int8      # and so on
    python scripts/compare_engines.py --data ../shared/data --out docs/benchmark/precisions \\
        --torch docs/pixels/transfer.json --engines m2i-bf16 m2i-int8 i2m-bf16 i2m-int8

Torch's side is what `compare_pixels.py` has written. Finished classes are kept and not computed again.
"""

from __future__ import annotations

import argparse
import hashlib
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from compare_routers import MASKED, summary

from keepad.backbone.weights import cache_folder
from keepad.console import progress
from keepad.data import Sample, load_mask, read_dataset
from keepad.engines import EngineDetector, load_engine
from keepad.images import read_image, to_input
from keepad.metrics import PixelMetrics, defect_tokens
from keepad.presets import POINTS, OperatingPoint


def measured(detector: EngineDetector, samples: list[Sample], point: OperatingPoint, title: str) -> dict[str, Any]:
    """Rows and pixel AUROC of a class, as `Bench` has them."""
    pixels, rows, cells = PixelMetrics(), [], detector.grid[0] * detector.grid[1]
    with progress(title, len(samples)) as advance:
        for sample in samples:
            image = to_input(read_image(sample.image), detector.image_size)
            mask = load_mask(sample, detector.image_size)
            (found,) = detector.find(image[None], [point])[point.name]
            assert found.thinned is not None
            pixels.update(found.pixel_map, mask)
            defect = np.flatnonzero(defect_tokens(mask, detector.grid)) if sample.label else np.array([], dtype=int)
            rows.append(
                {
                    "label": sample.label,
                    "score": found.score,
                    "defect": len(defect),
                    "left_shallow": int(np.isin(defect, found.survivors_shallow).sum()),
                    "left": int(np.isin(defect, found.survivors).sum()),
                    "keep_pixels": len(found.thinned.index) / cells,
                    "keep_shallow": len(found.survivors_shallow) / cells,
                    "keep": len(found.survivors) / cells,
                }
            )
            advance(1)
    return {"pixel": pixels.compute().auroc.value, "rows": rows, "grid": detector.grid}


def classes_of(
    detector: EngineDetector, data: Path, suite: str, point: OperatingPoint, folder: Path
) -> dict[str, dict[str, Any]]:
    """Class -> point -> what was found, computed where it is not kept yet."""
    told = json.dumps([detector.info.files, asdict(point)], sort_keys=True)
    key = hashlib.sha256(told.encode()).hexdigest()[:16]
    folder.mkdir(parents=True, exist_ok=True)
    classes = {}
    for (_, cls), samples in read_dataset(data).select(suites=[suite], split="test").by_class().items():
        file = folder / f"{key}-{suite}-{cls}.json"
        if not file.is_file():
            found = measured(detector, list(samples), point, f"{detector.name}, {detector.runs_on}: {suite} {cls}")
            file.write_text(json.dumps(found), encoding="utf-8")
        classes[cls] = {point.name: json.loads(file.read_text(encoding="utf-8"))}
    return classes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True, help="results are written to OUT.json and OUT.md")
    parser.add_argument("--state", type=Path, default=cache_folder() / "routers")
    parser.add_argument("--point", default="prune70")
    parser.add_argument("--torch", type=Path, required=True, help="what compare_pixels.py has written")
    parser.add_argument("--engines", nargs="+", type=Path, required=True, help="folders of keepad export")
    args = parser.parse_args()
    point, known = POINTS[args.point], json.loads(args.torch.read_text(encoding="utf-8"))["table"]
    table: dict[str, dict[str, Any]] = {}  # direction -> who -> numbers
    for detector in map(load_engine, args.engines):
        seen = {one["suite"] for one in detector.provenance["data"]}
        unseen = [suite for suite in MASKED if suite not in seen]
        direction = " ".join(unseen)
        rows = table.setdefault(direction, {"torch fp32": known[direction]["all"][f"{point.name} + pixels"]})
        found = {suite: classes_of(detector, args.data, suite, point, args.state / "engines") for suite in unseen}
        rows[f"{detector.info.engine} {detector.info.precision}"] = summary(found, point.name)
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.with_suffix(".json").write_text(json.dumps(table, indent=1) + "\n", encoding="utf-8")
    args.out.with_suffix(".md").write_text(to_markdown(table, args.point), encoding="utf-8")


def to_markdown(table: dict[str, dict[str, Any]], point: str) -> str:
    """A table for each direction, with the change against torch."""
    lines = [
        "# What a precision costs",
        "",
        "Made by `python scripts/compare_engines.py` (its first lines show the whole command). Suites that the",
        f"checkpoint has not seen, {point} as it is shipped; in brackets the change against torch.",
    ]
    for direction, rows in table.items():
        base = rows["torch fp32"]
        lines += ["", f"## Unseen: {direction}", "", "| | I-AUROC | P-AUROC | DTR | CMR | keep |", f"|{'---|' * 6}"]
        for name, one in rows.items():
            cells = [f"{100 * one[key]:.1f} ({100 * (one[key] - base[key]):+.2f})" for key in ("image", "pixel")]
            cells += [f"{100 * one['survival']['dtr']:.1f}", f"{100 * one['survival']['cmr']:.2f}"]
            lines.append(f"| {name} | {' | '.join(cells)} | {100 * one['keep']:.1f} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
