"""What the pixel router may take for uniform: forms, tolerances and blocks, compared on the source alone.

    python scripts/study_pixels.py --data ../shared/data --out docs/pixels/study.md \\
        --detectors keepad-m2i.safetensors keepad-i2m.safetensors --routers m2i.safetensors i2m.safetensors

As in `study_routers.py`, every product is judged by a head that has not seen it, and one image in so many of each
source is used. A form names blocks and grey levels: where all pixels of a block lie within so many, one patch stands
for all. Where the form says half or nine tenths, it stands for those that are within so many of it, if they are so much
of the block. `deviation` is the softer one: in every channel, the standard deviation of each patch of a block and the
spread of their means. What is finished is kept and not computed again.
"""

from __future__ import annotations

import argparse
import hashlib
import json
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from study_routers import Study

from keepad.backbone.weights import cache_folder
from keepad.console import progress
from keepad.files import replacing
from keepad.images import read_image, to_input
from keepad.presets import POINTS, PixelBudget
from keepad.routing.pixel import PixelRouting, extremes, route_pixels
from keepad.training.validation import Trial, row_of, survived

ADOPTED = "8x8: 24, 4x4: 24, 2x2: 20"
Form = Callable[[np.ndarray, tuple[int, int]], PixelRouting]


def by_deviation(pixels: np.ndarray, patch: tuple[int, int], tolerance: float) -> PixelRouting:
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
    high, low = (values.reshape(-1, 3) for values in extremes(pixels, patch))
    return proven(owner.reshape(-1), high, low)


def cornered(pixels: np.ndarray, patch: tuple[int, int]) -> PixelRouting:
    """What the adopted form drops, but the upper left one of those that are alike stays."""
    found = route_pixels(pixels, patch, PixelBudget())
    first = np.arange(len(found.owner))
    np.minimum.at(first, found.owner, np.arange(len(found.owner)))
    owner = first[found.owner]
    return PixelRouting(np.unique(owner), owner, found.bound)


def by_most(
    pixels: np.ndarray, patch: tuple[int, int], blocks: tuple[tuple[int, float], ...], most: float
) -> PixelRouting:
    """One patch stands for those of its block that are within so many grey levels of it, if they are most of it."""
    high, low = extremes(pixels, patch)
    cell = np.arange(high.shape[0] * high.shape[1]).reshape(high.shape[:2])
    owner = cell.copy()
    for side, tolerance in blocks:
        for row in range(0, cell.shape[0], side):
            for column in range(0, cell.shape[1], side):
                block = (slice(row, row + side), slice(column, column + side))
                free = (owner[block] == cell[block]).reshape(-1)
                top, bottom = high[block].reshape(-1, 3), low[block].reshape(-1, 3)
                apart = np.maximum(top[:, None], top[None]) - np.minimum(bottom[:, None], bottom[None])
                alike = (apart.max(-1) <= tolerance) & free & free[:, None]
                best = int(alike.sum(1).argmax())
                if alike[best].sum() >= max(2, most * len(free)):
                    values = owner[block].reshape(-1)
                    values[alike[best]] = cell[block].reshape(-1)[best]
                    owner[block] = values.reshape(owner[block].shape)
    return proven(owner.reshape(-1), high.reshape(-1, 3), low.reshape(-1, 3))


def proven(owner: np.ndarray, high: np.ndarray, low: np.ndarray) -> PixelRouting:
    """What was decided, with its bounds."""
    bound = np.maximum(high - low[owner], high[owner] - low).max(1)
    stays = owner == np.arange(len(owner))
    return PixelRouting(np.flatnonzero(stays), owner, np.where(stays, 0, bound))


def forms() -> dict[str, Form | None]:
    """Name -> what thins an image."""

    def thinning(budget: PixelBudget) -> Form:
        return lambda pixels, patch: route_pixels(pixels, patch, budget)

    found: dict[str, Form | None] = {"without": None, ADOPTED: thinning(PixelBudget())}
    found["4x4: 24, 2x2: 16"] = thinning(PixelBudget(((4, 24), (2, 16))))
    for tolerance in (16, 24, 32):
        found[f"4x4 and 2x2: {tolerance}"] = thinning(PixelBudget(((4, tolerance), (2, tolerance))))
    found["4x4: 24, 2x2: 20"] = thinning(PixelBudget(((4, 24), (2, 20))))
    for most, told in ((0.5, "half"), (0.9, "nine tenths")):
        found[f"4x4: 24, 2x2: 12, {told} of a block"] = partial(by_most, blocks=((4, 24), (2, 12)), most=most)
    found[f"{ADOPTED}, upper left stays"] = cornered
    found["4x4 and 2x2: 8 + noise"] = thinning(PixelBudget(((4, 8), (2, 8)), noise=1.0))
    found["deviation 8, 2x2"] = lambda pixels, patch: by_deviation(pixels, patch, 8)
    return found


@torch.inference_mode()
def tried(study: Study, name: str, form: Form | None, points: list[str]) -> dict[str, dict[str, Any]]:
    """Point -> what it does with the form: numbers for the table, and the scores of the images that it thins."""
    model, source = study.model, study.source
    rows: dict[str, list[tuple[np.ndarray, ...]]] = {point: [] for point in points}
    entered, bounds = [], []
    with progress(f"{name}: {' '.join(study.suites)}", len(source.images)) as advance:
        for place, entry in enumerate(source.images):
            model.head = study.heads[place]
            if form is None:
                tokens = study.load(place)
                entered.append(1.0)
            else:
                pixels = to_input(read_image(source.samples[place].image), model.image_size)
                thinned = form(pixels, model.backbone.patch)
                entered.append(len(thinned.index) / (source.grid[0] * source.grid[1]))
                bounds.append(int(thinned.bound.max()))
                images = torch.from_numpy(pixels)[None].permute(0, 3, 1, 2).float() / 255
                tokens = model.prefix(images, None, [thinned])
            for point in points:
                sight = model.look(tokens, POINTS[point])
                rows[point].append(row_of(model, sight, source.grid, POINTS[point], entry.defect))
            advance(1)
    places = list(range(len(source.images)))
    trials = {point: Trial(*(np.stack(part) for part in zip(*found, strict=True))) for point, found in rows.items()}
    return {
        point: {
            **asdict(survived(trial, source, places, model.calibration)),
            "enter": float(np.mean(entered)),
            "differ": float(np.percentile(bounds, 95)) if bounds else 0.0,
            "thinned": [form is None or share < 1 for share in entered],
            "scores": trial.scores(model.calibration).tolist(),
        }
        for point, trial in trials.items()
    }


def kept(file: Path, make: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """What the file holds; it is made first if it is not there."""
    if not file.is_file():
        file.parent.mkdir(parents=True, exist_ok=True)
        made = make()
        with replacing(file) as unfinished:
            unfinished.write_text(json.dumps(made), encoding="utf-8")
    return json.loads(file.read_text(encoding="utf-8"))


def line_of(name: str, point: str, one: dict[str, Any], plain: dict[str, Any]) -> str:
    """A row of the table; plain: the same point without the pixel router."""
    off = "-"
    if one is not plain and any(one["thinned"]):
        apart = np.array(one["scores"]) - np.array(plain["scores"])
        off = f"{np.sqrt(np.mean(apart[np.array(one['thinned'])] ** 2)):.4f}"
    return (
        f"| {name} | {point} | {100 * one['enter']:.1f} | {one['differ']:.0f} | {100 * one['image_auroc']:.1f} "
        f"| {100 * one['patch_auroc']:.2f} | {100 * one['dtr']:.1f} | {one['missed']} of {one['anomalous']} | {off} |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--detectors", nargs="+", type=Path, required=True)
    parser.add_argument("--routers", nargs="+", type=Path, required=True)
    parser.add_argument("--every", nargs="+", type=int, default=[10, 20], help="one source image in so many")
    parser.add_argument("--points", nargs="+", default=["dense", "prune70"])
    parser.add_argument("--forms", nargs="+", default=list(forms()), help="only these, `without` first")
    parser.add_argument("--state", type=Path, default=cache_folder() / "pixels")
    args = parser.parse_args()
    lines = [
        "# What the pixel router may take for uniform",
        "",
        "Made by `python scripts/study_pixels.py --data DATA --out docs/pixels/study.md --detectors "
        f"{' '.join(p.name for p in args.detectors)} --routers {' '.join(p.name for p in args.routers)}`.",
        "Source images only, each product judged by a head that has not seen it. `enter`: patches that enter block 1;",
        "`differ`: grey levels by which a dropped patch may differ from its stand-in, in 95 % of the images; `off`:",
        "root mean square by which image scores of thinned images differ from those without. DTR of dense: defect",
        "tokens that enter block 1.",
        "",
    ]
    for detector, routers, every in zip(args.detectors, args.routers, args.every, strict=False):
        study = Study(args.data, detector, routers, every)
        lines += [f"## Source {' '.join(study.suites)}, {len(study.source.images)} images", ""]
        lines += [
            "| form | point | enter | differ | I-AUROC | patch AUROC | DTR | defects lost | off |",
            f"|{'---|' * 9}",
        ]
        told = [*(hashlib.sha256(path.read_bytes()).hexdigest() for path in (detector, routers)), every, args.points]
        plain: dict[str, Any] = {}
        for name in args.forms:
            key = hashlib.sha256(json.dumps([*told, name]).encode()).hexdigest()[:16]
            found = kept(args.state / f"{key}.json", partial(tried, study, name, forms()[name], args.points))
            plain = plain or found
            lines += [line_of(name, point, one, plain[point]) for point, one in found.items()]
        lines.append("")
        args.out.parent.mkdir(parents=True, exist_ok=True)
        args.out.write_text("\n".join(lines), encoding="utf-8")


if __name__ == "__main__":
    main()
