"""Views of an image, mirrored or turned, whose maps and scores are averaged."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

import numpy as np

from keepad.arrays import Array
from keepad.inference import Inference, References
from keepad.presets import OperatingPoint
from keepad.steps import Scope, Stages

# Axes that each view reverses: as it is, mirrored, upside down, turned around.
FLIPS: tuple[tuple[int, ...], ...] = ((), (1,), (0,), (0, 1))


class Infer(Protocol):
    """`infer` of a network."""

    def __call__(
        self,
        pixels: Array,
        points: Sequence[OperatingPoint],
        stages: Stages,
        references: References,
        *,
        scope: Scope,
    ) -> dict[str, list[Inference]]: ...


def in_views(infer: Infer, count: int) -> Infer:
    """`infer` that averages maps and scores over the first `count` views; survivors are those of the upright image."""

    def infer_views(
        pixels: Array, points: Sequence[OperatingPoint], stages: Stages, references: References, *, scope: Scope
    ) -> dict[str, list[Inference]]:
        results: list[dict[str, list[Inference]]] = []
        for flip in FLIPS[:count]:
            grid = _grid_of(results) if results else (0, 0)  # the first view is not flipped
            turned = np.ascontiguousarray(np.flip(pixels, tuple(axis + 1 for axis in flip)))
            results.append(infer(turned, points, stages, references, scope=flipped(scope, flip, grid)))
        return {
            name: [averaged(own) for own in zip(*(seen[name] for seen in results), strict=True)] for name in results[0]
        }

    return infer_views


def _grid_of(results: Sequence[dict[str, list[Inference]]]) -> tuple[int, int]:
    """Rows and columns of the first view."""
    (first, *_), *_ = results[0].values()
    rows, columns = first.patch_map.shape
    return rows, columns


def flipped(scope: Scope, flip: tuple[int, ...], grid: tuple[int, int]) -> Scope:
    """The scope of flipped images; their corners stay, for neighbours are flipped alike."""
    if scope.inside is None or not flip:
        return scope
    inside = [None if own is None else np.flip(own.reshape(grid), flip).reshape(-1) for own in scope.inside]
    return replace(scope, inside=inside)


def averaged(views: Sequence[Inference]) -> Inference:
    """The upright inference with the mean of the views' maps and scores."""
    patch_map = np.mean([np.flip(own.patch_map, flip) for own, flip in zip(views, FLIPS, strict=False)], axis=0)
    anomaly_map = np.mean([np.flip(own.anomaly_map, flip) for own, flip in zip(views, FLIPS, strict=False)], axis=0)
    score = float(np.mean([own.score for own in views]))
    return replace(views[0], score=score, patch_map=patch_map, anomaly_map=anomaly_map)
