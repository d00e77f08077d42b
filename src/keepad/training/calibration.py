"""Calibration: readings, lambda, gate and thresholds, from what heads say about images they were not trained on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from keepad.arrays import Array
from keepad.budgets import top_count
from keepad.metrics import auroc
from keepad.presets import Calibration, Placement, Reading
from keepad.recovery import smooth
from keepad.scoring import gate_of

WEIGHTS = (1.0, 0.75, 0.5, 0.25, 0.0)
CENTRES = (0.0, -1.0, 1.0, -2.0, 2.0)


@dataclass(frozen=True)
class HeldOut:
    """Evidence about source images, each from a head that has not seen it.

    Attributes:
        patch: (n, layers, N) cosine gaps of the patches.
        cls: (n, layers) cosine gaps of the CLS tokens.
        unlike: (n, layers, N) dissimilarity of the patches, or None where it is not read.
        entry: (n, N) dissimilarity of the patches that enter the deep router, or None likewise.
        labels: (n,) 1 if anomalous.
        defects: (N,) bool for every image, or None where it is unknown.
        classes: Suite and class of every image.
        layers: Head layers.
        grid: Rows and columns of the patches.
    """

    patch: Tensor
    cls: Tensor
    unlike: Tensor | None
    entry: Tensor | None
    labels: Array
    defects: Sequence[Array | None]
    classes: Sequence[tuple[str, str]]
    layers: tuple[int, ...]
    grid: tuple[int, int]

    def known_defects(self) -> tuple[list[int], Array]:
        """Images whose defects are known, and (images, N) which patches those touch."""
        known = [(place, defect) for place, defect in enumerate(self.defects) if defect is not None]
        return [place for place, _ in known], np.stack([defect for _, defect in known])


@dataclass(frozen=True)
class Validation:
    """What held-out images say: detection and localisation on the patch grid, mean over classes, then suites.

    Attributes:
        image_auroc: None where no class has both normal and anomalous images.
        patch_auroc: None where no class has defects with masks.
    """

    image_auroc: float | None
    patch_auroc: float | None

    def __str__(self) -> str:
        def percent(value: float | None) -> str:
            return "unknown" if value is None else f"{100 * value:.1f}"

        return f"held-out source I-AUROC {percent(self.image_auroc)}, patch AUROC {percent(self.patch_auroc)}"

    @property
    def quality(self) -> float:
        """What epochs are compared by: the mean of what is known."""
        known = [value for value in (self.image_auroc, self.patch_auroc) if value is not None]
        return sum(known) / len(known)


def level_readings(held: HeldOut, unlike: float, entry: float = 0.0, centre: float = 0.0) -> tuple[Reading, ...]:
    """Readings that give every layer, and dissimilarity beside the prototypes, the same spread over the source.

    Half of the evidence enters the sigmoid, so that responses of defects stay apart near 1.

    Args:
        held: Evidence about the source images.
        unlike: Weight of a layer's own dissimilarity, in units of spread.
        entry: Weight of the dissimilarity at the entry of the deep router.
        centre: Evidence of a patch above the source's mean that becomes a response of one half, in units of spread.
    """
    entry_weight = entry_bias = 0.0
    if held.entry is not None and entry:
        entry_mean, entry_spread = _moments(held.entry)
        entry_weight = entry / entry_spread
        entry_bias = -entry_weight * entry_mean
    readings = []
    for place in range(len(held.layers)):
        mean, spread = _moments(held.patch[:, place])
        cls_mean, cls_spread = _moments(held.cls[:, place])
        bias, weight = entry_bias - mean / spread - centre, 0.0
        if held.unlike is not None and unlike:
            unlike_mean, unlike_spread = _moments(held.unlike[:, place])
            weight = unlike / unlike_spread
            bias -= weight * unlike_mean
        readings.append(
            Reading(
                patch_scale=0.5 / spread,
                patch_bias=0.5 * bias,
                unlike=0.5 * weight,
                entry=0.5 * entry_weight,
                cls_scale=0.5 / cls_spread,
                cls_bias=-0.5 * cls_mean / cls_spread,
            )
        )
    return tuple(readings)


def calibrate(
    held: HeldOut, readings: Sequence[Reading], placement: Placement, start: Calibration
) -> tuple[Calibration, Validation]:
    """The calibration that ranks held-out images best, and how well it does.

    Args:
        held: Evidence about the source images.
        readings: How evidence becomes responses.
        placement: Which layers make the scores.
        start: What is not chosen here: the token fraction, the smoothing, the width of the gate.
    """
    said = Said(held, readings, start)
    # Without both labels nothing can choose; the patches alone then make the score.
    labelled = len(set(held.labels.tolist())) == 2
    candidates = []
    for weight in WEIGHTS if labelled else (1.0,):
        base = said.blended(placement.base_layers, weight)
        mean, spread = float(base.mean()), float(base.std(correction=0)) or 1.0
        candidates += [
            replace(start, patch_weight=weight, base_mean=mean, base_std=spread, gate_centre=centre)
            for centre in (CENTRES if labelled else (0.0,))
        ]
    ranked = [mean_auroc(said.scores(placement, one), held.labels, held.classes) or 0.0 for one in candidates]
    best = candidates[int(np.argmax(ranked))]
    known, truth = held.known_defects()
    chosen = replace(
        best,
        image_threshold=best_f1_threshold(said.scores(placement, best), held.labels) if labelled else None,
        pixel_threshold=best_f1_threshold(said.maps()[known].ravel(), truth.ravel()),
    )
    return chosen, validate(held, readings, placement, chosen)


def validate(held: HeldOut, readings: Sequence[Reading], placement: Placement, calibration: Calibration) -> Validation:
    """How well images are ranked, and patches within a class."""
    said = Said(held, readings, calibration)
    known, truth = held.known_defects()
    return Validation(
        mean_auroc(said.scores(placement, calibration), held.labels, held.classes),
        mean_auroc(said.maps()[known], truth, [held.classes[place] for place in known]),
    )


class Said:
    """Responses of all images: evidence that was read.

    Args:
        held: The evidence.
        readings: How to read it, layer by layer.
        calibration: Carries the token fraction and the smoothing.
    """

    def __init__(self, held: HeldOut, readings: Sequence[Reading], calibration: Calibration) -> None:
        self._layers, self._grid, self._smoothing = held.layers, held.grid, calibration.smoothing
        self._patch, self._cls = _responses(held, readings)
        cells = held.grid[0] * held.grid[1]
        self._count = top_count(cells, cells, calibration)

    def blended(self, layers: tuple[int, ...], weight: float) -> Tensor:
        """(n,) scores over a set of layers; `keepad.scoring.blended_score` for all images at once."""
        chosen = [self._layers.index(layer) for layer in layers]
        top = self._patch[:, chosen].mean(1).topk(self._count, dim=1).values.mean(1)
        return torch.lerp(self._cls[:, chosen].mean(1), top, weight)

    def scores(self, placement: Placement, calibration: Calibration) -> Array:
        """(n,) gated image scores."""
        base = self.blended(placement.base_layers, calibration.patch_weight)
        mid = self.blended(placement.mid_layers, calibration.patch_weight)
        return torch.lerp(base, mid, gate_of(base, calibration)).numpy()

    def maps(self) -> Array:
        """(n, N) patch maps."""
        grids = self._patch.mean(1).view(-1, 1, *self._grid)
        return (smooth(grids, self._smoothing) if self._smoothing > 0 else grids).flatten(1).numpy()


def _responses(held: HeldOut, readings: Sequence[Reading]) -> tuple[Tensor, Tensor]:
    """(n, layers, N) and (n, layers) responses."""
    patch, cls = torch.empty_like(held.patch, dtype=torch.float32), torch.empty_like(held.cls, dtype=torch.float32)
    for place, reading in enumerate(readings):
        evidence = reading.patch_scale * held.patch[:, place].float() + reading.patch_bias
        if held.unlike is not None and reading.unlike:
            evidence += reading.unlike * held.unlike[:, place].float()
        if held.entry is not None and reading.entry:
            evidence += reading.entry * held.entry.float()
        patch[:, place] = torch.sigmoid(evidence)
        cls[:, place] = torch.sigmoid(reading.cls_scale * held.cls[:, place].float() + reading.cls_bias)
    return patch, cls


def _moments(values: Tensor) -> tuple[float, float]:
    values = values.double()
    return float(values.mean()), max(float(values.std(correction=0)), 1e-6)


def mean_auroc(scores: Array, labels: Array, classes: Sequence[tuple[str, str]]) -> float | None:
    """AUROC of each class, mean over the classes of a suite, then over suites; None where no class has both labels."""
    suites: dict[str, list[float]] = {}
    for name in sorted(set(classes)):
        own = np.array([other == name for other in classes])
        value = auroc(scores[own].ravel(), labels[own].ravel())
        if value is not None:
            suites.setdefault(name[0], []).append(value)
    return float(np.mean([np.mean(values) for values in suites.values()])) if suites else None


def best_f1_threshold(scores: Array, labels: Array) -> float:
    """The score from which calling things anomalous gives the best F1."""
    order = np.argsort(-scores, kind="stable")
    hits = np.cumsum(labels[order])
    f1 = 2 * hits / (np.arange(1, len(scores) + 1) + labels.sum())
    return float(scores[order][int(np.argmax(f1))])
