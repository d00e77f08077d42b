"""Validation of routers: pruned passes over source images, each with a head that was not trained on it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np
import torch

from keepad.arrays import Array
from keepad.head import PrototypeHead
from keepad.images import read_image, to_input
from keepad.network import Network
from keepad.presets import Calibration, OperatingPoint, resolved
from keepad.recovery import smooth
from keepad.scoring import image_score
from keepad.tokens import Tokens
from keepad.training.calibration import ScoredImages
from keepad.training.dataset import Source
from keepad.training.results import RouterValidation
from keepad.training.student import sparse_pass

_Row: TypeAlias = tuple[Array, ...]  # base and mid scores, map, share of the defect and of all tokens that survive


@dataclass(frozen=True)
class ValidationSet:
    """Source images to validate on.

    Attributes:
        source: The source.
        heads: For every image of it, a head that was not trained on it.
        load: Tokens that enter the shallow router, of the images at some indices.
    """

    source: Source
    heads: Sequence[PrototypeHead]
    load: Callable[[Sequence[int]], Tokens]


@dataclass(frozen=True)
class ValidationRun(ScoredImages):
    """Images scored at one operating point, and the survival of their defects.

    Attributes:
        retained: (n,) share of the defect tokens that survive; NaN without a known defect.
        keep: (n,) share of all tokens that survive.
    """

    retained: Array
    keep: Array

    def validation(self, calibration: Calibration) -> RouterValidation:
        """AUROCs, survival of defects and share of tokens kept."""
        retained = self.retained[~np.isnan(self.retained)]
        return RouterValidation(
            image_auroc=self.image_auroc(calibration),
            patch_auroc=self.patch_auroc(),
            dtr=float(retained.mean()) if len(retained) else float("nan"),
            missed=int((retained == 0).sum()),
            anomalous=len(retained),
            keep=float(self.keep.mean()),
        )


@torch.no_grad()
def run_points(
    network: Network,
    data: ValidationSet,
    indices: Sequence[int],
    points: Sequence[OperatingPoint],
    *,
    advance: Callable[[int], None] = lambda steps: None,
) -> dict[str, ValidationRun]:
    """The images at `indices` at every operating point, by its name.

    Args:
        network: The network; its own head is restored at the end.
        data: The images.
        indices: Which of them.
        points: Operating points; both routers must run.
        advance: Called with the number of images done.
    """

    def rows(i: int) -> dict[str, _Row]:
        tokens, defect = data.load([i]), data.source.images[i].defect
        return {point.name: _row(network, tokens, point, defect) for point in points}

    return _run(network, data, indices, rows, advance)


@torch.no_grad()
def run_from_pixels(
    network: Network,
    data: ValidationSet,
    indices: Sequence[int],
    points: Sequence[OperatingPoint],
    *,
    advance: Callable[[int], None] = lambda steps: None,
) -> dict[str, ValidationRun]:
    """The same from the images themselves, exactly as users run them, pixel router included.

    Scores are final, so that a calibration with another lambda or gate does not change them.
    """
    smoothing = {point.name: resolved(point, network.calibration).smoothing or 0.0 for point in points}

    def rows(i: int) -> dict[str, _Row]:
        pixels = to_input(read_image(data.source.samples[i].image), network.image_size)
        found: dict[str, _Row] = {}
        for name, (result,) in network.infer(pixels[None], points).items():
            smoothed, scores = smooth(result.patch_map, smoothing[name]), np.full(2, result.score)
            survival = _survival(data.source.images[i].defect, result.survivors, smoothed.size)
            found[name] = (scores, scores, smoothed.astype(np.float32).reshape(-1), *survival)
        return found

    return _run(network, data, indices, rows, advance)


def _run(
    network: Network,
    data: ValidationSet,
    indices: Sequence[int],
    rows_of: Callable[[int], dict[str, _Row]],
    advance: Callable[[int], None],
) -> dict[str, ValidationRun]:
    """The rows of every image, each with the head that was not trained on it, stacked by operating point."""
    own, rows = network.head, dict[str, list[_Row]]()
    try:
        for i in indices:
            network.head = data.heads[i]
            for name, row in rows_of(i).items():
                rows.setdefault(name, []).append(row)
            advance(1)
    finally:
        network.head = own
    truth, runs = data.source.annotations(indices), {}
    for name, results in rows.items():
        base, mid, maps, retained, keep = (np.stack(column) for column in zip(*results, strict=True))
        runs[name] = ValidationRun(base, mid, maps, truth, retained, keep)
    return runs


def _survival(defect: Array | None, survivors: Array, cells: int) -> tuple[Array, Array]:
    """Share of the defect tokens (NaN without a known defect) and of all tokens that survive."""
    known = defect is not None and defect.any()
    retained = defect[survivors].sum() / defect.sum() if defect is not None and known else float("nan")
    return np.array(retained), np.array(len(survivors) / cells)


def _row(network: Network, tokens: Tokens, point: OperatingPoint, defect: Array | None) -> tuple[Array, ...]:
    """Base and mid scores (2,), map (N,), share of the defect and of all tokens that survive, of one image."""
    result, calibration = sparse_pass(network, tokens, point, relaxed=False), network.calibration
    patch_map = result.maps[0].view(tokens.grid).cpu().numpy()
    responses = {layer: parts[0].cpu().numpy() for layer, parts in result.responses.patch.items()}
    cls = {layer: float(values[0]) for layer, values in result.responses.cls.items()}

    def score(kind: str, weight: float) -> float:
        weighted = replace(calibration, patch_weight=weight)
        return image_score(responses, cls, patch_map, kind=kind, placement=network.placement, calibration=weighted)

    smoothed = smooth(patch_map, resolved(point, calibration).smoothing or 0.0)
    return (
        np.array([score("base", 0.0), score("base", 1.0)]),
        np.array([score("mid", 0.0), score("mid", 1.0)]),
        smoothed.astype(np.float32).reshape(-1),
        *_survival(defect, result.survivors[0], patch_map.size),
    )
