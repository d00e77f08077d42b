"""What the pixel router may take for uniform: forms, tolerances and blocks, compared on the source alone.

    python scripts/study_pixels.py --data ../shared/data --out docs/pixels/study.md \\
        --detectors keepad-m2i.safetensors keepad-i2m.safetensors --routers m2i.safetensors i2m.safetensors

As in `study_routers.py`, every product is judged by a head that has not seen it, and one image in so many of each
source is used. `bound` is the form that was built: all pixels of a block within so many grey levels. `deviation` is the
softer one: in every channel, the standard deviation of each patch and the spread of the patches' means. `not counted`
lets a stand-in count once, however many patches it stands for. `off`: root mean square by which image scores differ
from those without the pixel router, over the images of which something is dropped.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from study_routers import Study

from keepad.budgets import on_lattice
from keepad.console import progress
from keepad.images import read_image, to_input
from keepad.pixels import Thinned, extremes, thin
from keepad.presets import POINTS, PixelBudget
from keepad.training.trial import Survived, Trial, row_of, survived

Form = Callable[[np.ndarray, tuple[int, int]], Thinned]


def by_deviation(pixels: np.ndarray, patch: tuple[int, int], tolerance: float) -> Thinned:
    """Blocks of 2x2 patches, each even in itself, whose means agree; nothing is promised about single pixels."""
    height, width, _ = pixels.shape
    rows, columns = height // patch[0], width // patch[1]
    cut = pixels.astype(np.float32).reshape(rows, patch[0], columns, patch[1], 3)
    mean, spread = cut.mean((1, 3)), cut.std((1, 3))
    cell = np.arange(rows * columns).reshape(rows, columns)
    owner = cell.copy()
    for row in range(0, rows, 2):
        for column in range(0, columns, 2):
            block = (slice(row, row + 2), slice(column, column + 2))
            means = mean[block].reshape(-1, 3)
            if spread[block].max() < tolerance and (means.max(0) - means.min(0)).max() < tolerance:
                owner[block] = cell[row, column]
    owner = owner.reshape(-1)
    high, low = (values.reshape(-1, 3) for values in extremes(pixels, patch))
    bound = np.maximum(high - low[owner], high[owner] - low).max(1)
    return Thinned(np.flatnonzero(owner == cell.reshape(-1)), owner, np.where(owner == cell.reshape(-1), 0, bound))


def cornered(pixels: np.ndarray, patch: tuple[int, int]) -> Thinned:
    """What is dropped at a bound of 24, but the upper left patch of a block stays instead of the one in its middle."""
    found = thin(pixels, patch, PixelBudget(tolerance=24, blocks=(4, 2)))
    first = np.arange(len(found.owner))
    np.minimum.at(first, found.owner, np.arange(len(found.owner)))
    owner = first[found.owner]
    return Thinned(np.unique(owner), owner, found.bound)


class Uncounted(Thinned):
    """Stand-ins that count once."""

    @property
    def mass(self) -> np.ndarray:
        return np.ones(len(self.index), dtype=np.float32)

    def landmarks(self, grid: tuple[int, int]) -> np.ndarray:
        return np.flatnonzero(on_lattice(self.index, grid))


def uncounted(pixels: np.ndarray, patch: tuple[int, int]) -> Thinned:
    """What is dropped at a bound of 24, and no one stands for it."""
    found = thin(pixels, patch, PixelBudget(tolerance=24, blocks=(4, 2)))
    return Uncounted(found.index, found.owner, found.bound)


def forms() -> dict[str, Form | None]:
    """Name -> what thins an image."""

    def bound(**given: object) -> Form:
        budget = PixelBudget(**given)  # type: ignore[arg-type]
        return lambda pixels, patch: thin(pixels, patch, budget)

    found: dict[str, Form | None] = {"without": None}
    for tolerance in (8, 24):
        found[f"bound {tolerance}, 2x2"] = bound(tolerance=tolerance, blocks=(2,))
    for tolerance in (16, 24, 32):
        found[f"bound {tolerance}, 4x4 and 2x2"] = bound(tolerance=tolerance, blocks=(4, 2))
    found["bound 24, 4x4 and 2x2, not counted"] = uncounted
    found["bound 24, 4x4 and 2x2, upper left stays"] = cornered
    found["bound 8 + noise, 4x4 and 2x2"] = bound(tolerance=8, noise=1.0, blocks=(4, 2))
    found["deviation 8, 2x2"] = lambda pixels, patch: by_deviation(pixels, patch, 8)
    return found


@torch.inference_mode()
def tried(
    study: Study, name: str, form: Form | None, points: list[str]
) -> dict[str, tuple[Survived, float, float, np.ndarray]]:
    """Point -> what it does with the form, patches that enter block 1, the largest bound, and the image scores."""
    model, source = study.model, study.source
    rows: dict[str, list[tuple[np.ndarray, ...]]] = {point: [] for point in points}
    entered, bounds = [], []
    with progress(f"{name}: {' '.join(study.suites)}", len(source.images)) as advance:
        for place, entry in enumerate(source.images):
            model.head = study.heads[place]
            if form is None:
                tokens, thinned = study.load(place), None
                entered.append(1.0)
            else:
                pixels = to_input(read_image(source.samples[place].image), model.image_size)
                thinned = [form(pixels, model.backbone.patch)]
                entered.append(len(thinned[0].index) / (source.grid[0] * source.grid[1]))
                bounds.append(int(thinned[0].bound.max()))
                images = torch.from_numpy(pixels)[None].permute(0, 3, 1, 2).float() / 255
                tokens = model.prefix(images, None, thinned)
            for point in points:
                sight = model.look(tokens, POINTS[point], None, thinned)  # as it is given, not as the point would thin
                rows[point].append(row_of(model, sight, source.grid, POINTS[point], entry.defect))
            advance(1)
    places = list(range(len(source.images)))
    trials = {point: Trial(*(np.stack(part) for part in zip(*found, strict=True))) for point, found in rows.items()}
    bound = float(np.percentile(bounds, 95)) if bounds else 0.0
    whole = np.zeros(len(entered), dtype=bool) if form is None else np.array(entered) == 1
    return {
        point: (
            survived(trial, source, places, model.calibration),
            float(np.mean(entered)),
            bound,
            np.where(whole, np.nan, trial.scores(model.calibration)),
        )
        for point, trial in trials.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--detectors", nargs="+", type=Path, required=True)
    parser.add_argument("--routers", nargs="+", type=Path, required=True)
    parser.add_argument("--every", nargs="+", type=int, default=[10, 20], help="one source image in so many")
    parser.add_argument("--points", nargs="+", default=["dense", "prune70"])
    parser.add_argument("--forms", nargs="+", default=list(forms()), help="only these")
    args = parser.parse_args()
    lines = [
        "# What the pixel router may take for uniform",
        "",
        "Made by `python scripts/study_pixels.py --data DATA --out docs/pixels/study.md --detectors "
        f"{' '.join(p.name for p in args.detectors)} --routers {' '.join(p.name for p in args.routers)}`.",
        "Source images only, each product judged by a head that has not seen it. `enter`: patches that enter block 1;",
        "`differ`: grey levels by which a dropped patch may differ from its stand-in, in 95 % of the images.",
        "",
    ]
    for detector, routers, every in zip(args.detectors, args.routers, args.every, strict=False):
        study = Study(args.data, detector, routers, every)
        lines += [f"## Source {' '.join(study.suites)}, {len(study.source.images)} images", ""]
        lines += [
            "| form | point | enter | differ | I-AUROC | patch AUROC | DTR | defects lost | off |",
            f"|{'---|' * 9}",
        ]
        plain: dict[str, np.ndarray] = {}
        for name in args.forms:
            for point, (one, enter, bound, scores) in tried(study, name, forms()[name], args.points).items():
                assert one.image_auroc is not None
                assert one.patch_auroc is not None
                off = np.sqrt(np.nanmean((scores - plain[point]) ** 2)) if point in plain else np.nan
                plain.setdefault(point, scores)
                lines.append(
                    f"| {name} | {point} | {100 * enter:.1f} | {bound:.0f} | {100 * one.image_auroc:.1f} "
                    f"| {100 * one.patch_auroc:.2f} | {100 * one.dtr:.1f} | {one.missed} of {one.anomalous} "
                    f"| {'-' if np.isnan(off) else f'{off:.4f}'} |"
                )
        lines.append("")
        args.out.parent.mkdir(parents=True, exist_ok=True)
        args.out.write_text("\n".join(lines), encoding="utf-8")


if __name__ == "__main__":
    main()
