"""Trial: pruned passes over source images, each judged by a head that has not seen it, and what they decide."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from keepad.arrays import Array
from keepad.head import PrototypeHead
from keepad.network import KeepAD, Sight
from keepad.presets import Calibration, OperatingPoint
from keepad.scoring import gate_of, image_score
from keepad.tokens import Tokens
from keepad.training.calibration import CENTRES, WEIGHTS, best_f1_threshold, mean_auroc
from keepad.training.dataset import Source

_CLEARLY = 0.01  # of AUROC


@dataclass(frozen=True)
class Trial:
    """What one operating point did to some source images.

    Attributes:
        base: (n, 2) CLS and patch evidence over the base layers.
        mid: (n, 2) the same over the mid layers.
        maps: (n, N) patch maps.
        retained: (n,) share of the defect tokens that survive; NaN without a known defect.
        keep: (n,) share of all tokens that survive.
        keep_shallow: (n,) the same after the shallow router.
    """

    base: Array
    mid: Array
    maps: Array
    retained: Array
    keep: Array
    keep_shallow: Array

    def scores(self, calibration: Calibration) -> Array:
        """(n,) gated image scores."""
        weights = np.array([1 - calibration.patch_weight, calibration.patch_weight])
        base, mid = torch.from_numpy(self.base @ weights), torch.from_numpy(self.mid @ weights)
        return torch.lerp(base, mid, gate_of(base, calibration)).numpy()


@dataclass(frozen=True)
class Survived:
    """What held-out source images say about routers.

    Attributes:
        image_auroc: Mean over classes, then suites; None where no class has both labels.
        patch_auroc: The same for patches; None where no defect is known.
        dtr: Share of the defect tokens that survive, mean over anomalous images.
        missed: Anomalous images of which no defect token survives.
        anomalous: Anomalous images with known defects.
        keep: Share of all tokens that survive, mean over images.
    """

    image_auroc: float | None
    patch_auroc: float | None
    dtr: float
    missed: int
    anomalous: int
    keep: float

    def __str__(self) -> str:
        def percent(value: float | None) -> str:
            return "unknown" if value is None else f"{100 * value:.1f}"

        return (
            f"held-out source I-AUROC {percent(self.image_auroc)}, patch AUROC {percent(self.patch_auroc)}, "
            f"DTR {percent(self.dtr)}, {self.missed} of {self.anomalous} defects lost, keep {percent(self.keep)}"
        )

    @property
    def quality(self) -> tuple[int, float]:
        """What epochs are compared by: fewest defects lost; of equals, the mean of DTR and both AUROCs."""
        known = [value for value in (self.dtr, self.image_auroc, self.patch_auroc) if value is not None]
        return -self.missed, sum(known) / len(known)


@torch.no_grad()
def try_out(
    model: KeepAD,
    heads: Sequence[PrototypeHead],
    source: Source,
    places: Sequence[int],
    load: Callable[[int], Tokens],
    points: Sequence[OperatingPoint],
    *,
    advance: Callable[[int], None] = lambda steps: None,
) -> dict[str, Trial]:
    """What each operating point does to the images at `places`.

    Args:
        model: The detector; its own head is put back at the end.
        heads: The head that judges each of them.
        source: The source.
        places: Which of its images.
        load: Gives the tokens of an image that enter the shallow router.
        points: The operating points.
        advance: Called with the number of images done.
    """
    own, rows = model.head, {point.name: list[tuple[Array, ...]]() for point in points}
    try:
        for place, head in zip(places, heads, strict=True):
            model.head = head
            tokens, defect = load(place), source.images[place].defect
            for point in points:
                rows[point.name].append(row_of(model, model.look(tokens, point), tokens.grid, point, defect))
            advance(1)
    finally:
        model.head = own
    return {name: Trial(*(np.stack(column) for column in zip(*found, strict=True))) for name, found in rows.items()}


def row_of(
    model: KeepAD, sight: Sight, grid: tuple[int, int], point: OperatingPoint, defect: Array | None
) -> tuple[Array, ...]:
    """One image's part of a Trial."""
    ((_, patch_map, smoothed),) = model.judge(sight.read, sight.cells, grid, point, grid, known=sight.known)
    responses = {layer: parts[0] for layer, parts in sight.read.responses.items()}
    cls = {layer: values[0] for layer, values in sight.read.cls.items()}

    def part(kind: str, weight: float) -> Tensor:
        return image_score(
            responses,
            cls,
            patch_map,
            kind=kind,
            base_layers=model.placement.base_layers,
            mid_layers=model.placement.mid_layers,
            calibration=replace(model.calibration, patch_weight=weight),
        )

    survivors = sight.survivors[0].cpu().numpy()
    retained = float("nan") if defect is None or not defect.any() else defect[survivors].sum() / defect.sum()
    cells = grid[0] * grid[1]
    return (
        np.array([float(part("base", 0.0)), float(part("base", 1.0))]),
        np.array([float(part("mid", 0.0)), float(part("mid", 1.0))]),
        smoothed.flatten().cpu().numpy().astype(np.float32),
        np.array(retained),
        np.array(len(survivors) / cells),
        np.array(len(sight.survivors_shallow[0]) / cells),
    )


def survived(trial: Trial, source: Source, places: Sequence[int], calibration: Calibration) -> Survived:
    """Numbers of a trial."""
    labels = np.array([source.images[place].label for place in places])
    classes = [source.classes[place] for place in places]
    known, truth = _known(source, places)
    counted = trial.retained[~np.isnan(trial.retained)]
    return Survived(
        image_auroc=mean_auroc(trial.scores(calibration), labels, classes),
        patch_auroc=mean_auroc(trial.maps[known], truth, [classes[row] for row in known]) if known else None,
        dtr=float(counted.mean()) if len(counted) else float("nan"),
        missed=int((counted == 0).sum()),
        anomalous=len(counted),
        keep=float(trial.keep.mean()),
    )


def calibrate_pruned(
    trials: Sequence[Trial], source: Source, places: Sequence[int], start: Calibration, *, usual: int
) -> Calibration:
    """Lambda and gate that rank images best over all operating points together, and thresholds for the usual one.

    The dense detector's lambda stays unless another ranks clearly better: a handful of products says little about less
    than a point, and dense passes use it too.

    Args:
        trials: One for each operating point.
        source: The source.
        places: Which of its images were tried.
        start: What is not chosen here.
        usual: Which trial sets the thresholds.
    """
    labels = np.array([source.images[place].label for place in places])
    classes = [source.classes[place] for place in places]
    labelled = len(set(labels.tolist())) == 2
    candidates = []
    for weight in WEIGHTS if labelled else (1.0,):
        base = np.concatenate([trial.base @ np.array([1 - weight, weight]) for trial in trials])
        mean, spread = float(base.mean()), float(base.std()) or 1.0
        candidates += [
            replace(start, patch_weight=weight, base_mean=mean, base_std=spread, gate_centre=centre)
            for centre in (CENTRES if labelled else (0.0,))
        ]

    ranked = [
        float(np.mean([mean_auroc(trial.scores(one), labels, classes) or 0.0 for trial in trials]))
        for one in candidates
    ]
    same = [number for number, one in enumerate(candidates) if one.patch_weight == start.patch_weight]
    place = int(np.argmax(ranked))
    if same and ranked[place] - max(ranked[number] for number in same) <= _CLEARLY:
        place = max(same, key=lambda number: ranked[number])
    best = candidates[place]
    known, truth = _known(source, places)
    return replace(
        best,
        image_threshold=best_f1_threshold(trials[usual].scores(best), labels) if labelled else None,
        pixel_threshold=best_f1_threshold(trials[usual].maps[known].ravel(), truth.ravel()) if known else None,
    )


def _known(source: Source, places: Sequence[int]) -> tuple[list[int], Array]:
    """Rows whose defects are known, and (rows, N) which patches those touch."""
    found = [(row, source.images[place].defect) for row, place in enumerate(places)]
    known = [(row, defect) for row, defect in found if defect is not None]
    return [row for row, _ in known], np.stack([defect for _, defect in known]) if known else np.empty((0, 0), bool)
