"""Calibration: logit scales, lambda, gate and thresholds, fitted on source images held out from the head."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from keepad.arrays import Array
from keepad.logit_scale import LogitScale
from keepad.metrics import auroc
from keepad.presets import Calibration, Placement
from keepad.recovery import smooth
from keepad.scoring import gate, top_count
from keepad.training.dataset import Annotations
from keepad.training.recipe import DetectorRecipe
from keepad.training.results import Validation

_WEIGHTS = (1.0, 0.75, 0.5, 0.25, 0.0)  # candidates of lambda
_CENTRES = (0.0, -1.0, 1.0, -2.0, 2.0, -4.0, 4.0)  # candidates of theta; at +-4 the gate is open or shut


@dataclass(frozen=True)
class HeldOutLogits:
    """Unscaled logits of n source images, each from a head that was not trained on it.

    Attributes:
        patch: (n, layers, N) cosine gaps of the patches.
        cls: (n, layers) cosine gaps of the CLS tokens.
        dissimilarity: (n, layers, N) dissimilarity of the patches, or None if unused.
        entry: (n, N) dissimilarity of the patches after a block that may precede the deep router, by block.
        truth: Ground truth of the images.
        layers: Head layers.
        grid: Rows and columns of the patches.
    """

    patch: Tensor
    cls: Tensor
    dissimilarity: Tensor | None
    entry: Mapping[int, Tensor]
    truth: Annotations
    layers: tuple[int, ...]
    grid: tuple[int, int]

    def select(self, placement: Placement) -> HeldOutLogits:
        """The logits that a placement uses."""
        layers, before = placement.head_layers, placement.deep - 1
        chosen = [self.layers.index(layer) for layer in layers]
        return replace(
            self,
            patch=self.patch[:, chosen],
            cls=self.cls[:, chosen],
            dissimilarity=None if self.dissimilarity is None else self.dissimilarity[:, chosen],
            entry={before: self.entry[before]} if before in self.entry else {},
            layers=layers,
        )

    @property
    def entering(self) -> Tensor | None:
        """(n, N) dissimilarity where the deep router acts, once a placement is selected; None if unused."""
        return next(iter(self.entry.values()), None)


@dataclass(frozen=True)
class ScoredImages:
    """CLS and patch scores of n images before they are blended, their maps and ground truth.

    Attributes:
        base: (n, 2) CLS and patch score over the base layers.
        mid: (n, 2) the same over the mid layers.
        maps: (n, N) patch maps.
        truth: Ground truth of the images.
    """

    base: Array
    mid: Array
    maps: Array
    truth: Annotations

    def scores(self, calibration: Calibration) -> Array:
        """(n,) gated image scores."""
        weights = np.array([1 - calibration.patch_weight, calibration.patch_weight])
        base, mid = self.base @ weights, self.mid @ weights
        scores: Array = base + gate(base, calibration) * (mid - base)
        return scores

    def image_auroc(self, calibration: Calibration) -> float | None:
        """Mean over classes, then suites."""
        return _mean_auroc(self.scores(calibration), self.truth.labels, self.truth.classes)

    def patch_auroc(self) -> float | None:
        """The same for patches, over the images whose defects are known."""
        known, defects = self.truth.masked()
        return _mean_auroc(self.maps[known], defects, [self.truth.classes[i] for i in known])

    def validation(self, calibration: Calibration) -> Validation:
        """Both AUROCs."""
        return Validation(self.image_auroc(calibration), self.patch_auroc())


@dataclass(frozen=True)
class FittedHead:
    """What held-out images determine of a head: logit scales and calibration, and its validation with them."""

    scales: tuple[LogitScale, ...]
    calibration: Calibration
    validation: Validation


def fit_head(held_out: HeldOutLogits, recipe: DetectorRecipe, placement: Placement) -> FittedHead:
    """Scales and calibration of the head layers of `placement` by a recipe, and what they reach on held-out images."""
    held_out = held_out.select(placement)
    scales = (LogitScale(),) * len(placement.head_layers)
    if recipe.level:
        scales = fit_scales(held_out, recipe.dissimilarity, recipe.entry, recipe.centre)
    start = Calibration(smoothing=recipe.smoothing, top_fraction=recipe.top_fraction, top_of=recipe.top_of)
    scored = score_held_out(held_out, scales, placement, start)
    calibration = calibrate([scored], start, weight=recipe.patch_weight)
    return FittedHead(scales, calibration, scored.validation(calibration))


def fit_scales(
    held_out: HeldOutLogits, dissimilarity: float, entry: float = 0.0, centre: float = 0.0
) -> tuple[LogitScale, ...]:
    """Logit scales that give every layer, and dissimilarity beside the prototypes, the same spread over the source.

    The standardised logit is halved before the sigmoid, which keeps responses of defects apart near 1.

    Args:
        held_out: Logits of the source images.
        dissimilarity: Weight of a layer's own dissimilarity, in units of spread.
        entry: Weight of the dissimilarity at the entry of the deep router, in units of spread.
        centre: Logit above the source mean that maps to a response of 0.5, in units of spread.
    """
    entry_weight = entry_bias = 0.0
    if held_out.entering is not None and entry:
        mean, spread = _moments(held_out.entering)
        entry_weight, entry_bias = entry / spread, -entry / spread * mean
    scales = []
    for i in range(len(held_out.layers)):
        mean, spread = _moments(held_out.patch[:, i])
        cls_mean, cls_spread = _moments(held_out.cls[:, i])
        bias, weight = entry_bias - mean / spread - centre, 0.0
        if held_out.dissimilarity is not None and dissimilarity:
            own_mean, own_spread = _moments(held_out.dissimilarity[:, i])
            weight = dissimilarity / own_spread
            bias -= weight * own_mean
        scale = LogitScale(
            patch_scale=0.5 / spread,
            patch_bias=0.5 * bias,
            dissimilarity=0.5 * weight,
            entry=0.5 * entry_weight,
            cls_scale=0.5 / cls_spread,
            cls_bias=-0.5 * cls_mean / cls_spread,
        )
        scales.append(scale)
    return tuple(scales)


def score_held_out(
    held_out: HeldOutLogits, scales: Sequence[LogitScale], placement: Placement, calibration: Calibration
) -> ScoredImages:
    """Scores and maps of the dense detector, as `keepad.scoring` computes them, for all images at once.

    Args:
        held_out: Logits of the images.
        scales: Logit scale of every layer.
        placement: Base and mid layers.
        calibration: Token fraction and smoothing.
    """
    patch, cls = _responses(held_out, scales)
    cells = held_out.grid[0] * held_out.grid[1]
    count = top_count(cells, cells, calibration)

    def parts(layers: tuple[int, ...]) -> Array:
        chosen = [held_out.layers.index(layer) for layer in layers]
        top = patch[:, chosen].mean(1).topk(count, dim=1).values.mean(1)
        return torch.stack([cls[:, chosen].mean(1), top], dim=1).double().numpy()

    maps = smooth(patch.mean(1).view(-1, *held_out.grid).numpy(), calibration.smoothing).reshape(-1, cells)
    return ScoredImages(parts(placement.base_layers), parts(placement.mid_layers), maps, held_out.truth)


def calibrate(
    points: Sequence[ScoredImages], start: Calibration, *, usual: int = 0, weight: float | None = None
) -> Calibration:
    """Lambda and gate with the best image AUROC, mean over operating points, and the thresholds with the best F1.

    Where base and mid layers are the same, the gate changes nothing and is not fitted.

    Args:
        points: The source images as scored at each operating point.
        start: Everything that is not fitted here.
        usual: Operating point that sets the thresholds.
        weight: Lambda, if it is not to be fitted.
    """
    truth = points[0].truth
    labelled = len(set(truth.labels.tolist())) == 2  # otherwise nothing can be ranked: patches alone form the score
    gated = any(bool((point.base != point.mid).any()) for point in points)
    candidates = []
    weights = (_WEIGHTS if weight is None else (weight,)) if labelled else (1.0,)
    for own in weights:
        base = np.concatenate([point.base @ np.array([1 - own, own]) for point in points])
        mean, spread = float(base.mean()), float(base.std()) or 1.0
        candidates += [
            replace(start, patch_weight=own, base_mean=mean, base_std=spread, gate_centre=centre)
            for centre in (_CENTRES if labelled and gated else (0.0,))
        ]
    aurocs = [float(np.mean([point.image_auroc(candidate) or 0.0 for point in points])) for candidate in candidates]
    chosen = candidates[int(np.argmax(aurocs))]
    return with_thresholds(chosen, points[usual].scores(chosen), points[usual].maps, truth)


def with_thresholds(calibration: Calibration, scores: Array, maps: Array, truth: Annotations) -> Calibration:
    """The calibration with the thresholds of the best F1.

    Args:
        calibration: Everything else.
        scores: (n,) image scores.
        maps: (n, N) patch maps.
        truth: Ground truth of the images.
    """
    known, defects = truth.masked()
    labelled = len(set(truth.labels.tolist())) == 2
    return replace(
        calibration,
        image_threshold=_best_f1_threshold(scores, truth.labels) if labelled else None,
        pixel_threshold=_best_f1_threshold(maps[known].ravel(), defects.ravel()) if known else None,
    )


def _responses(held_out: HeldOutLogits, scales: Sequence[LogitScale]) -> tuple[Tensor, Tensor]:
    """(n, layers, N) patch and (n, layers) CLS responses."""
    patch = torch.empty_like(held_out.patch, dtype=torch.float32)
    cls = torch.empty_like(held_out.cls, dtype=torch.float32)
    for i, scale in enumerate(scales):
        logit = scale.patch_scale * held_out.patch[:, i].float() + scale.patch_bias
        if held_out.dissimilarity is not None and scale.dissimilarity:
            logit += scale.dissimilarity * held_out.dissimilarity[:, i].float()
        if held_out.entering is not None and scale.entry:
            logit += scale.entry * held_out.entering.float()
        patch[:, i] = torch.sigmoid(logit)
        cls[:, i] = torch.sigmoid(scale.cls_scale * held_out.cls[:, i].float() + scale.cls_bias)
    return patch, cls


def _moments(values: Tensor) -> tuple[float, float]:
    values = values.double()
    return float(values.mean()), max(float(values.std(correction=0)), 1e-6)


def _mean_auroc(scores: Array, labels: Array, classes: Sequence[tuple[str, str]]) -> float | None:
    """AUROC of each class, mean over the classes of a suite, then over suites; None where no class has both labels."""
    suites: dict[str, list[float]] = {}
    for name in sorted(set(classes)):
        own = np.array([other == name for other in classes])
        value = auroc(scores[own].ravel(), labels[own].ravel())
        if value is not None:
            suites.setdefault(name[0], []).append(value)
    return float(np.mean([np.mean(values) for values in suites.values()])) if suites else None


def _best_f1_threshold(scores: Array, labels: Array) -> float:
    order = np.argsort(-scores, kind="stable")
    hits = np.cumsum(labels[order])
    f1 = 2 * hits / (np.arange(1, len(scores) + 1) + labels.sum())
    return float(scores[order][int(np.argmax(f1))])
