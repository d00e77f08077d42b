"""Exported detectors against torch on every suite that their checkpoint was not trained on: what a precision costs.

    keepad export --model m2i --precision int8 --calibrate ../shared/data/mvtec --out m2i-int8      # and so on
    python scripts/compare_engines.py --data ../shared/data --out docs/benchmark/precisions \\
        --engines m2i-bf16 m2i-int8 i2m-bf16 i2m-int8 --views 4

Rounding moves scores a little, at random, and with few images that alone moves an AUROC. Two things show how much:
torch itself on pixels that are one grey level off, and the same comparison on mirrored images. Finished classes are
kept and not computed again.
"""

from __future__ import annotations

import argparse
import hashlib
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from compare_routers import MASKED, summary

from keepad.backbone.weights import cache_folder
from keepad.console import progress
from keepad.data import Sample, load_mask, read_dataset
from keepad.detector import Detector
from keepad.engines import EngineDetector, load_engine
from keepad.errors import KeepADError
from keepad.images import read_image, to_input
from keepad.loading import load
from keepad.metrics import PixelMetrics, defect_tokens
from keepad.presets import POINTS, OperatingPoint

VIEWS = {  # what is done to (H, W, ...) images and masks
    "as it is": (slice(None), slice(None)),
    "mirrored": (slice(None), slice(None, None, -1)),
    "upside down": (slice(None, None, -1), slice(None)),
    "turned around": (slice(None, None, -1), slice(None, None, -1)),
}
AS_IT_IS = next(iter(VIEWS))
TORCH, OFF = "torch fp32", "torch fp32, pixels one grey level off"
BATCH = 8


@dataclass(frozen=True)
class Judged:
    """A detector and what it is given.

    Attributes:
        detector: The detector.
        told: What makes it this one, for the name of its files.
        off: Whether every pixel is moved by at most one grey level, at random.
    """

    detector: Detector
    told: Any
    off: bool = False

    def measure(self, samples: list[Sample], view: str, point: OperatingPoint, title: str) -> dict[str, Any]:
        """Rows and pixel AUROC of a class, as `compare_routers` has them."""
        grid, size = self.detector.grid, self.detector.image_size
        pixels, rows, cells, draw = PixelMetrics(), [], grid[0] * grid[1], np.random.default_rng(0)
        with progress(title, len(samples)) as advance:
            for some in _in_batches(samples):
                images = np.stack([to_input(read_image(sample.image), size)[VIEWS[view]] for sample in some])
                if self.off:
                    moved = images.astype(np.int16) + draw.integers(-1, 2, images.shape, dtype=np.int16)
                    images = moved.clip(0, 255).astype(np.uint8)
                for sample, found in zip(some, self.detector.find(images, [point])[point.name], strict=True):
                    assert found.thinned is not None
                    mask = load_mask(sample, size)[VIEWS[view]]
                    pixels.update(found.pixel_map, mask)
                    defect = np.flatnonzero(defect_tokens(mask, grid)) if sample.label else np.array([], dtype=int)
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
                advance(len(some))
        return {"pixel": pixels.compute().auroc.value, "rows": rows, "grid": grid}


def _in_batches(samples: list[Sample]) -> Iterator[list[Sample]]:
    for start in range(0, len(samples), BATCH):
        yield samples[start : start + BATCH]


class Bench:
    """Judges detectors on suites, and keeps what it has measured.

    Args:
        data: Folder with all suites.
        folder: Where measurements are kept.
        point: The operating point.
    """

    def __init__(self, data: Path, folder: Path, point: OperatingPoint) -> None:
        self._data, self._folder, self._point = data, folder, point
        folder.mkdir(parents=True, exist_ok=True)

    def judge(self, one: Judged, suites: list[str], view: str, title: str) -> dict[str, Any]:
        """Means over the suites."""
        found = {suite: self._classes(one, suite, view, title) for suite in suites}
        return summary(found, self._point.name)

    def _classes(self, one: Judged, suite: str, view: str, title: str) -> dict[str, dict[str, Any]]:
        told = json.dumps([one.told, one.off, view, asdict(self._point)], sort_keys=True)
        key, classes = hashlib.sha256(told.encode()).hexdigest()[:16], {}
        for (_, cls), samples in read_dataset(self._data).select(suites=[suite], split="test").by_class().items():
            file = self._folder / f"{key}-{suite}-{cls}.json"
            if not file.is_file():
                found = one.measure(list(samples), view, self._point, f"{title}, {view}: {suite} {cls}")
                file.write_text(json.dumps(found), encoding="utf-8")
            classes[cls] = {self._point.name: json.loads(file.read_text(encoding="utf-8"))}
        return classes


@cache
def torch_of(name: str) -> Judged:
    detector = load(name, device="cpu")
    return Judged(detector, detector.digests())


def beside(engine: EngineDetector) -> Judged:
    """The detector that an engine was exported from."""
    ours = torch_of(engine.name)
    if ours.told != engine.info.digests:
        raise KeepADError(f"the {engine.name} that is here is not the one that was exported; export it again.")
    return ours


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True, help="results are written to OUT.json and OUT.md")
    parser.add_argument("--state", type=Path, default=cache_folder() / "routers")
    parser.add_argument("--point", default="prune70")
    parser.add_argument("--views", type=int, default=1, choices=range(1, len(VIEWS) + 1), help="as they are, mirrored")
    parser.add_argument("--engines", nargs="+", type=Path, required=True, help="folders of keepad export")
    args = parser.parse_args()
    bench, table = Bench(args.data, args.state / "engines", POINTS[args.point]), dict[str, dict[str, Any]]()
    for engine in map(load_engine, args.engines):
        seen = {one["suite"] for one in engine.provenance["data"]}
        unseen = [suite for suite in MASKED if suite not in seen]
        ours = beside(engine)
        rows = table.setdefault(" ".join(unseen), {})
        theirs = f"{engine.info.engine} {engine.info.precision}"
        for name, one in {
            TORCH: ours,
            OFF: Judged(ours.detector, ours.told, off=True),
            theirs: Judged(engine, engine.info.files),
        }.items():
            if name in rows:
                continue
            views = list(VIEWS)[: 1 if one.off else args.views]
            rows[name] = {view: bench.judge(one, unseen, view, f"{engine.name}, {name}") for view in views}
            write(args.out, table, args.point)


def write(out: Path, table: dict[str, dict[str, Any]], point: str) -> None:
    out.parent.mkdir(parents=True, exist_ok=True)
    out.with_suffix(".json").write_text(json.dumps(table, indent=1) + "\n", encoding="utf-8")
    out.with_suffix(".md").write_text(to_markdown(table, point), encoding="utf-8")


def to_markdown(table: dict[str, dict[str, Any]], point: str) -> str:
    """A table for each direction, with the change against torch."""
    lines = [
        "# What a precision costs",
        "",
        "Made by `python scripts/compare_engines.py` (its first lines show the whole command). Suites that the",
        f"checkpoint has not seen, {point} as it is shipped; in brackets the change against torch. Last columns: that",
        "change on every view of the images (as they are, mirrored, upside down, turned around), and its mean.",
    ]
    for direction, rows in table.items():
        base = rows[TORCH]
        lines += ["", f"## Unseen: {direction}", ""]
        lines += ["| | I-AUROC | P-AUROC | DTR | CMR | keep | I-AUROC by view | P-AUROC by view |", f"|{'---|' * 8}"]
        for name, views in rows.items():
            one = views[AS_IT_IS]
            cells = [f"{100 * one[key]:.1f} ({_change(views, base, key)[0]:+.2f})" for key in ("image", "pixel")]
            cells += [f"{100 * one['survival']['dtr']:.1f}", f"{100 * one['survival']['cmr']:.2f}"]
            cells += [f"{100 * one['keep']:.1f}"]
            cells += [_by_view(_change(views, base, key)) if name != TORCH else "" for key in ("image", "pixel")]
            lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _change(views: dict[str, Any], base: dict[str, Any], key: str) -> list[float]:
    """Points by which each view differs from torch."""
    return [100 * (one[key] - base[view][key]) for view, one in views.items()]


def _by_view(changes: list[float]) -> str:
    if len(changes) == 1:
        return ""
    return f"{', '.join(f'{one:+.2f}' for one in changes)}: {np.mean(changes):+.2f}"


if __name__ == "__main__":
    main()
