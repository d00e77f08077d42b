"""Which blocks of patches may share a token: what enters the first block, and how much of the defects does.

    python scripts/study_blocks.py --data ../shared/data --out docs/pixels/blocks.md

Only pixels and masks are looked at, so it takes seconds; `study_pixels.py` asks the network. Every suite is a source of
one of the checkpoints. `work`: of blocks before the shallow router, against that of all patches.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from compare_routers import MASKED

from keepad.backbone import DEFAULT_BACKBONE, build_backbone
from keepad.benchmark.flops import backbone_flops, shape_of
from keepad.data import Sample, load_mask, read_dataset
from keepad.images import read_image, to_input
from keepad.metrics import defect_tokens
from keepad.presets import PIXELS, PixelBudget
from keepad.routing.pixel import PixelRouting, route_pixels

FORMS = (
    PixelBudget(((2, 20),)),
    PixelBudget(((4, 24), (2, 20))),
    PixelBudget(((8, 24), (4, 24), (2, 20))),
    PixelBudget(((16, 24), (8, 24), (4, 24), (2, 20))),
    PixelBudget(((8, 32), (4, 24), (2, 20))),
    PixelBudget(((8, 24), (4, 24), (2, 24))),
)


def looked_at(samples: Sequence[Sample], size: tuple[int, int], patch: tuple[int, int]) -> list[list[list[float]]]:
    """For each form and image: patches that enter, defect tokens among them (NaN without defect), defect dropped."""
    grid, found = (size[0] // patch[0], size[1] // patch[1]), [list[list[float]]() for _ in FORMS]
    for sample in samples:
        image = to_input(read_image(sample.image), size)
        mask = load_mask(sample, size) if sample.label else np.zeros(size, dtype=bool)
        defect = np.flatnonzero(defect_tokens(mask, grid))
        for rows, form in zip(found, FORMS, strict=True):
            rows.append(_row(route_pixels(image, patch, form), defect))
    return found


def _row(thinned: PixelRouting, defect: np.ndarray) -> list[float]:
    left = np.isin(defect, thinned.index)
    return [len(thinned.index), left.mean() if len(defect) else np.nan, float(len(defect) > 0 and not left.any())]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    backbone, spec = build_backbone(DEFAULT_BACKBONE, seed=0)
    shape, cells = shape_of(backbone), (spec.image_size[0] // backbone.patch[0]) ** 2

    def work(patches: float) -> float:
        return sum(backbone_flops(shape, int(patches), [int(patches)]))

    lines = [
        "# Which blocks of patches may share a token",
        "",
        "Made by `python scripts/study_blocks.py --data ../shared/data --out docs/pixels/blocks.md`, from pixels and",
        "masks alone. `enter`: patches that enter the first block; `work`: of one such block, against all patches;",
        "`defect`: defect tokens that enter; `lost`: defects of which none does.",
    ]
    data = read_dataset(args.data)
    for suite in MASKED:
        samples = [one for group in data.select(suites=[suite], split="test").by_class().values() for one in group]
        lines += [
            "",
            f"## {suite}, {len(samples)} images",
            "",
            "| form | enter | work | defect | lost |",
            f"|{'---|' * 5}",
        ]
        for form, rows in zip(FORMS, looked_at(samples, spec.image_size, backbone.patch), strict=True):
            enter, defect, lost = np.array(rows).T
            share = np.mean([work(patches) for patches in enter]) / work(cells)
            name = ", ".join(f"{side}x{side}: {levels:g}" for side, levels in form.blocks)
            told = f"{100 * enter.mean() / cells:.1f} % | {100 * share:.1f} % | {100 * np.nanmean(defect):.2f} %"
            lines.append(f"| {name}{' (adopted)' if form == PIXELS else ''} | {told} | {int(lost.sum())} |")
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
