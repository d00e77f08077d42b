"""What is worth having in the routers: scores, geometry, budgets and recovery, compared on the source alone.

    python scripts/study_routers.py --data ../shared/data --out docs/routers/study.md \\
        --detectors keepad-m2i.safetensors keepad-i2m.safetensors --routers m2i.safetensors i2m.safetensors

Detectors are those of stage 1, which still hold the heads that have not seen part of their source: every product is
judged by a head trained without it. Routers are the selectors trained on the same source (four images in five of it).
Nothing here looks at a suite that the checkpoints were not trained on. Every so-manieth image of each class is used.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from keepad.backbone import Backbone, load_backbone
from keepad.checkpoint import read_checkpoint
from keepad.console import progress
from keepad.data import read_dataset
from keepad.dissimilarity import dissimilarity, dissimilarity_to_landmarks
from keepad.loading import assemble
from keepad.metrics import auroc
from keepad.network import KeepAD
from keepad.presets import POINTS, DeepBudget, OperatingPoint, ShallowBudget
from keepad.routing import ShallowSelector, keep_shallow, standardised
from keepad.tokens import Tokens
from keepad.training.dataset import Source, fill, gather
from keepad.training.feature_cache import FeatureCache
from keepad.training.recipe import ROUTER_RECIPES
from keepad.training.stage2 import fresh_selectors, held_out_heads
from keepad.training.validation import Survived, survived, try_out

GEOMETRIES = {
    "global top-k": ShallowBudget(0.30, strict=False, block=1, diversity=0),
    "2x2": ShallowBudget(0.30),
    "3x3": ShallowBudget(0.30, block=3),
    "4x4": ShallowBudget(0.30, block=4),
}
Score = Callable[[Tensor, Tensor, tuple[int, int]], Tensor]


def cues(model: KeepAD, backbone: Backbone) -> dict[str, Score]:
    """Scores of the tokens that enter the shallow router, by name."""
    torch.manual_seed(42)
    drawn = ShallowSelector(backbone.width)
    learned = model.shallow
    assert learned.unlike is not None
    visual = ShallowSelector(backbone.width)
    visual.load_state_dict({name: value for name, value in learned.state_dict().items() if name != "unlike"})

    def around(x: Tensor, grid: tuple[int, int]) -> Tensor:
        """Mean of the 3x3 cells around each token."""
        cells = F.pad(x.T.reshape(1, -1, *grid), (1, 1, 1, 1), mode="replicate")
        return F.avg_pool2d(cells, 3, 1)[0].flatten(1).T

    return {
        "q-k form, as drawn": lambda x, index, grid: drawn(x, index, grid),
        "length": lambda x, index, grid: x.norm(dim=1),
        "distance to the image mean": lambda x, index, grid: (x - x.mean(0)).norm(dim=1),
        "angle to the image mean": lambda x, index, grid: -F.cosine_similarity(x, x.mean(0)[None]),
        "contrast to 3x3 neighbours": lambda x, index, grid: (x - around(x, grid)).norm(dim=1),
        "dissimilarity to all": lambda x, index, grid: dissimilarity(x, index, grid),
        "dissimilarity to landmarks": lambda x, index, grid: dissimilarity_to_landmarks(x, index, grid),
        "angle + landmarks": lambda x, index, grid: (
            standardised(-F.cosine_similarity(x, x.mean(0)[None]))
            + standardised(dissimilarity_to_landmarks(x, index, grid))
        ),
        "trained q-k form alone": lambda x, index, grid: visual(x, index, grid),
        "trained, with landmarks (adopted)": lambda x, index, grid: learned(x, index, grid),
    }


def variants() -> Iterator[tuple[str, OperatingPoint, tuple[float, float]]]:
    """Whole passes: name, operating point, grades."""
    base, grades = POINTS["prune70"], ROUTER_RECIPES["keepad"].grades
    yield "adopted: 3x3 coverage, graded", base, grades
    yield "2x2 coverage, graded", replace(base, shallow=ShallowBudget(0.30)), grades
    yield "4x4 coverage, graded", replace(base, shallow=ShallowBudget(0.30, block=4)), grades
    yield "global top-k, graded", replace(base, shallow=GEOMETRIES["global top-k"]), grades
    yield "no diversity slots", replace(base, shallow=ShallowBudget(0.30, block=3, diversity=0)), grades
    yield "64 diversity slots", replace(base, shallow=ShallowBudget(0.30, block=3, diversity=64)), grades
    yield "copied responses", replace(base, recovery="nearest"), (0.0, 0.0)
    for pair in ((0.0, 1.0), (0.25, 0.0), (0.25, 0.5), (0.5, 1.0), (0.5, 1.5), (1.0, 1.0)):
        yield f"grades {pair[0]:g} and {pair[1]:g}", base, pair
    for kappa in (0.55, 0.6, 0.75):
        yield f"budget exponent {kappa:g}", replace(base, deep=DeepBudget(kappa=kappa)), grades
    yield "budget centre 0.6", replace(base, deep=DeepBudget(centre=0.6)), grades
    yield "single tokens in the deep router", replace(base, deep=DeepBudget(block=1)), grades
    yield "2x2 coverage, copied in the block (published)", POINTS["paper70"], (0.0, 0.0)
    yield "prune50", POINTS["prune50"], grades
    yield "prune50, 2x2 coverage", replace(POINTS["prune50"], shallow=ShallowBudget(0.50)), grades
    yield "prune30", POINTS["prune30"], grades
    yield "prune30, 2x2 coverage", replace(POINTS["prune30"], shallow=ShallowBudget(0.70)), grades
    for pair in ((0.0, 0.0), (0.0, 1.0), (0.5, 1.5)):
        yield f"prune30, grades {pair[0]:g} and {pair[1]:g}", POINTS["prune30"], pair


class Study:
    """Source images of one direction, and what variants do to them.

    Args:
        data: Folder with all suites.
        detector: Checkpoint of stage 1.
        routers: Checkpoint of stage 2.
        every: One image in so many is used.
    """

    def __init__(self, data: Path, detector: Path, routers: Path, every: int) -> None:
        self.backbone, _, digest = load_backbone()
        self._cache = FeatureCache(self.backbone, digest)
        info, tensors = read_checkpoint(detector)
        routed, selectors = read_checkpoint(routers)
        self.model = assemble(self.backbone, routed, selectors, source=routers.name)
        self.suites = [one["suite"] for one in info.provenance["data"]]
        samples = read_dataset(data).select(suites=self.suites, split="test").samples
        grid = self.backbone.grid_of(*info.image_size)
        self._samples = samples
        self.source: Source = gather(samples[::every], views=0, size=info.image_size, grid=grid)
        fill(self.source, self._cache, (info.placement.shallow - 1,))
        self.heads = held_out_heads(tensors, info, self.source, print)

    def load(self, place: int) -> Tokens:
        rows = self._cache.load_all(self.source.images[place].key, self.model.placement.shallow - 1)
        return self.backbone.tokens_of(rows.float()[None], self.source.grid)

    @torch.no_grad()
    def scores(self) -> dict[str, dict[str, tuple[float, float, int]]]:
        """Cue -> geometry -> AUROC within images, DTR and defects lost after the shallow router."""
        places = [p for p, entry in enumerate(self.source.images) if entry.defect is not None and entry.defect.any()]
        named = cues(self.model, self.backbone)
        rows: dict[str, dict[str, list[tuple[float, float]]]] = {}
        with progress(f"scores: {' '.join(self.suites)}", len(places)) as advance:
            for place in places:
                tokens, defect = self.load(place), self.source.images[place].defect
                assert defect is not None
                for name, cue in named.items():
                    values = cue(tokens.patches(), tokens.index, tokens.grid)
                    ranked = auroc(values.numpy(), defect) or 0.5
                    for geometry, budget in GEOMETRIES.items():
                        kept = keep_shallow(values, tokens.index, tokens.grid, budget).numpy()
                        left = float(defect[kept].sum() / defect.sum())
                        rows.setdefault(name, {}).setdefault(geometry, []).append((ranked, left))
                advance(1)

        def found(values: Sequence[tuple[float, float]]) -> tuple[float, float, int]:
            table = np.array(values)
            return float(table[:, 0].mean()), float(table[:, 1].mean()), int((table[:, 1] == 0).sum())

        return {name: {g: found(values) for g, values in by.items()} for name, by in rows.items()}

    def passes(self) -> dict[str, Survived]:
        """Variant -> what it does, judged by heads that have not seen the product; dense first."""
        places, found = list(range(len(self.source.images))), {}
        every = [("dense", POINTS["dense"], (0.0, 0.0)), *variants()]
        for name, point, grades in every:
            self.model.calibration = replace(self.model.calibration, grades=grades)
            with progress(f"{name}: {' '.join(self.suites)}", len(places)) as advance:
                trial = try_out(self.model, self.heads, self.source, places, self.load, [point], advance=advance)
            found[name] = survived(trial[point.name], self.source, places, self.model.calibration)
        fresh_selectors(self.model, ROUTER_RECIPES["keepad"], self._samples, seed=42)
        self.model.calibration = replace(self.model.calibration, grades=ROUTER_RECIPES["keepad"].grades)
        for name in ("prune30", "prune70"):
            trial = try_out(self.model, self.heads, self.source, places, self.load, [POINTS[name]])
            found[f"{name}, selectors before training"] = survived(
                trial[name], self.source, places, self.model.calibration
            )
        return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--detectors", nargs="+", type=Path, required=True)
    parser.add_argument("--routers", nargs="+", type=Path, required=True)
    parser.add_argument(
        "--every", nargs="+", type=int, default=[5, 10], help="one source image in so many, by direction"
    )
    args = parser.parse_args()
    lines = [
        "# What was tried in the routers",
        "",
        "Made by `python scripts/study_routers.py --data DATA --out docs/routers/study.md --detectors "
        f"{' '.join(p.name for p in args.detectors)} --routers {' '.join(p.name for p in args.routers)}`.",
        "Source images only: nothing here has seen a target. One image in "
        f"{' and '.join(str(every) for every in args.every)} of each source.",
        "",
    ]
    for detector, routers, every in zip(args.detectors, args.routers, args.every, strict=False):
        study = Study(args.data, detector, routers, every)
        scores, passes = study.scores(), study.passes()
        lines += [f"## Source {' '.join(study.suites)}, {len(study.source.images)} images", "", *_scores(scores), ""]
        lines += [*_passes(passes), ""]
        args.out.parent.mkdir(parents=True, exist_ok=True)
        args.out.write_text("\n".join(lines), encoding="utf-8")


def _scores(found: dict[str, dict[str, tuple[float, float, int]]]) -> list[str]:
    lines = [
        "Scores of the shallow router at 30 %: AUROC of defect tokens within their image, then DTR after the router",
        "and defects lost, by the geometry of coverage.",
        "",
        f"| score | AUROC | {' | '.join(GEOMETRIES)} |",
        f"|---|---|{'---|' * len(GEOMETRIES)}",
    ]
    for name, by in found.items():
        ranked = 100 * next(iter(by.values()))[0]
        cells = [f"{100 * dtr:.1f} ({lost})" for _, dtr, lost in by.values()]
        lines.append(f"| {name} | {ranked:.1f} | {' | '.join(cells)} |")
    return lines


def _passes(found: dict[str, Survived]) -> list[str]:
    dense = found["dense"]
    lines = [
        "Whole passes at the budget of prune70 unless the row says otherwise, with the trained selectors; every",
        "product is judged by a head that has not seen it. Changes are against dense.",
        "",
        "| variant | I-AUROC | patch AUROC | DTR | defects lost | keep |",
        "|---|---|---|---|---|---|",
    ]
    for name, one in found.items():
        cells = []
        for key in ("image_auroc", "patch_auroc"):
            value, base = getattr(one, key), getattr(dense, key)
            cells.append(f"{100 * value:.1f}" + (f" ({100 * (value - base):+.1f})" if one is not dense else ""))
        lost = f"{one.missed} of {one.anomalous}"
        lines.append(f"| {name} | {' | '.join(cells)} | {100 * one.dtr:.1f} | {lost} | {100 * one.keep:.1f} |")
    return lines


if __name__ == "__main__":
    main()
