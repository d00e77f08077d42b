"""Bank: normal tokens of one product, and how far the tokens of an image lie from them. NumPy only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
from threadpoolctl import ThreadpoolController

from keepad.arrays import Array
from keepad.routing.grid import standardise

# Weight of the zero-shot reading beside the match, for patches and for the image score. Fixed, not fitted: heads have
# seen the source's products, so any weight that the source chose would trust them too much.
ZERO_SHOT_WEIGHT = 0.2
BANK_SIZE = 4096  # survivors in the bank; what keeps matching below a tenth of a pass
TOP_FRACTION = 0.01  # share of the grid whose largest distances form the image score
_LEAST_SPREAD = 0.1  # of the level: few references know their own spread badly
_SINGLE = 1.13  # level of a normal image over that of halves of one reference, on source products
_SINGLE_TURNED = 1.05  # the same over that of one reference against its rotated copies
_PROJECTED = 128  # dimensions in which the bank is thinned
_COMPARED = 64  # references that are compared with the others
_EPS = 1e-6


@dataclass(frozen=True)
class ImageTokens:
    """What one image leaves behind as a reference.

    Attributes:
        shallow: (N, C) tokens of all cells where they enter the shallow router, as unit vectors.
        deep: (m, C) tokens of the cells that enter the deep router, as unit vectors.
        layers: (layers, n, C) features in the match layers, as unit vectors: of the survivors, then of cells as they
            are where the deep router drops nothing, if that pass was made too.
        cells: (n,) grid indices of all these.
        away: (k,) positions of the survivors among the cells that enter the deep router.
        responses: (k,) zero-shot readings of the survivors.
        score: Zero-shot score of the image.
    """

    shallow: Array
    deep: Array
    layers: Array
    cells: Array
    away: Array
    responses: Array
    score: float

    def widened(self, other: ImageTokens) -> ImageTokens:
        """The same image with the features of another pass behind its own."""
        layers = np.concatenate([self.layers, other.layers], axis=1)
        return replace(self, layers=layers, cells=np.concatenate([self.cells, other.cells]))


@dataclass(frozen=True)
class Match:
    """How the survivors of one image match the references.

    Attributes:
        distance: (k,) distance of each survivor to the nearest token of the bank, in [0, 1].
        nearest: (k,) position of that token in the bank.
        cells: (k,) grid indices of the survivors.
    """

    distance: Array
    nearest: Array
    cells: Array


@dataclass(frozen=True)
class Bank:
    """Normal tokens of a product.

    Attributes:
        shallow: (s, C) tokens that enter the shallow router, as unit vectors.
        deep: (d, C) tokens that enter the deep router, as unit vectors.
        layers: (layers, n, C) survivors in each match layer, as unit vectors.
        image: (n,) number of the reference that each survivor comes from.
        cell: (n,) its grid index there.
        level: Evidence of a normal image: largest distances at the deep router, of each reference to the others.
        spread: Deviation of the level.
    """

    shallow: Array
    deep: Array
    layers: Array
    image: Array
    cell: Array
    level: float
    spread: float

    def match(self, features: Array, deep: Array, cells: Array) -> Match:
        """The match of survivors.

        Args:
            features: (layers, k, C) their features in the match layers.
            deep: (k,) their distances at the deep router, where many more tokens of the references are known.
            cells: (k,) their grid indices.
        """
        pairs = [nearest(own, rows) for own, rows in zip(features, self.layers, strict=True)]
        return Match(matched([distance for distance, _ in pairs], deep), pairs[-1][1], cells)

    def evidence(self, distance: Array, cells: int) -> float:
        """How far the largest distances at the deep router lie above those of normal images, in deviations.

        No term is relative to the image itself, so it falls with none of the distances.
        """
        return (top_distance(distance, cells) - self.level) / self.spread


def matched(distances: Sequence[Array], deep: Array) -> Array:
    """(k,) distance of survivors to the references, in each match layer and at the deep router."""
    mean: Array = np.mean([*distances, deep], axis=0)
    return mean


def fuse(scores: Array, distance: Array) -> Array:
    """Scores by which a router that knows the references ranks tokens: its own and the match weigh the same."""
    fused: Array = standardise(scores) + standardise(distance)
    return fused


def blend(match: Array | float, zero_shot: Array | float) -> Array:
    """The reading of patches, or the score of an image, from the match and from the prototypes."""
    return np.asarray((1 - ZERO_SHOT_WEIGHT) * match + ZERO_SHOT_WEIGHT * zero_shot)


def nearest(features: Array, rows: Array) -> tuple[Array, Array]:
    """(m,) distance of unit vectors to the nearest of others, in [0, 1], and its position, (m, C), (n, C)."""
    with _one_thread().limit(limits=1):
        cosine = features @ rows.T
    position = cosine.argmax(1)
    distance = 1 - np.take_along_axis(cosine, position[:, None], 1)[:, 0]
    return np.clip(distance, 0, 1), position


def nearest_by_group(features: Array, rows: Array, group: Array) -> tuple[Array, Array]:
    """(m, groups) distances of unit vectors to the nearest of each group of others, and (m,) the nearest of all.

    Args:
        features: (m, C) unit vectors.
        rows: (n, C) unit vectors.
        group: (n,) group of each, ascending.
    """
    with _one_thread().limit(limits=1):
        cosine = features @ rows.T
    starts = np.flatnonzero(np.diff(group, prepend=-1))
    distance: Array = np.clip(1 - np.maximum.reduceat(cosine, starts, axis=1), 0, 1)
    return distance, cosine.argmax(1)


@lru_cache(maxsize=1)
def _one_thread() -> ThreadpoolController:
    """Limits NumPy's BLAS: its threads spin on after a product, and on few cores they take those of the network."""
    return ThreadpoolController().select(internal_api="openblas")


def top_distance(distance: Array, cells: int) -> float:
    """Mean of the largest distances, as many as one percent of the grid."""
    count = min(len(distance), max(1, round(TOP_FRACTION * cells)))
    return float(np.partition(distance, -count)[-count:].mean())


def thin(features: Array, count: int) -> tuple[Array, float]:
    """Positions of `count` unit vectors that cover the others best (greedy k-centre), and the others' mean distance.

    The search runs on a fixed random projection, which keeps distances well enough to choose by.
    """
    if len(features) <= count:
        return np.arange(len(features)), 0.0
    generator = np.random.default_rng(0)
    narrow = features
    if features.shape[1] > _PROJECTED:
        narrow = unit(features @ generator.standard_normal((features.shape[1], _PROJECTED), dtype=np.float32))
    ordinary = int((narrow @ narrow.mean(0)).argmax())
    kept, cosine = [ordinary], narrow @ narrow[ordinary]
    while len(kept) < count:
        kept.append(int(cosine.argmin()))
        np.maximum(cosine, narrow @ narrow[kept[-1]], out=cosine)
    positions = np.sort(np.array(kept))
    dropped = np.setdiff1d(np.arange(len(features)), positions)
    sample = features[dropped[:: max(1, len(dropped) // 2048)]]
    return positions, float(nearest(sample, features[positions])[0].mean())


def joint(layers: Array) -> Array:
    """(n, layers * C) unit vectors whose cosine is the mean of the layers' cosines, from (layers, n, C)."""
    joined: Array = np.concatenate(list(layers), axis=1) / np.float32(np.sqrt(len(layers)))
    return joined


def make_bank(images: Sequence[ImageTokens], numbers: Sequence[int], cells: int, size: int) -> tuple[Bank, float]:
    """The bank of some good images, thinned, and the mean distance of the dropped survivors to it.

    Args:
        images: Tokens of the good images, and of their rotated copies.
        numbers: Number of the image that each belongs to; the upright copy comes first.
        cells: Cells of the grid.
        size: Bound on the survivors in the bank, and on four times the tokens of each router.
    """
    layers = np.concatenate([own.layers for own in images], axis=1)
    image = np.repeat(np.asarray(numbers), [len(own.cells) for own in images])
    cell = np.concatenate([own.cells for own in images])
    kept, loss = thin(joint(layers), size)
    shallow = np.concatenate([own.shallow for own in images])
    deep = np.concatenate([own.deep for own in images])
    of_deep = np.repeat(np.asarray(numbers), [len(own.deep) for own in images])
    few = thin(deep, size // 4)[0]
    level, spread = normal_level(images, numbers, cells, deep[few], of_deep[few])
    rows = shallow[thin(shallow, size // 4)[0]], deep[few], layers[:, kept]
    return Bank(*rows, image[kept], cell[kept], level, spread), loss


def normal_level(
    images: Sequence[ImageTokens], numbers: Sequence[int], cells: int, rows: Array, of_rows: Array
) -> tuple[float, float]:
    """Mean and deviation of the largest distances at the deep router: each reference against the bank of the others.

    A single reference is compared with its rotated copies, or without these split, every other cell against the rest.
    Its level is raised then, for an image resembles itself more than others do.

    Args:
        images: Tokens of the good images, and of their rotated copies.
        numbers: Number of the image that each belongs to; the upright copy comes first.
        cells: Cells of the grid.
        rows: (d, C) tokens of the bank at the deep router.
        of_rows: (d,) number of the image that each comes from.
    """
    upright = dict(reversed(list(zip(numbers, (own.deep for own in images), strict=True))))
    if len(upright) == 1 and len(images) > 1:
        copies = np.concatenate([own.deep for own in images[1:]])
        tops = [top_distance(nearest(images[0].deep, copies)[0], cells)]
        level = _SINGLE_TURNED * tops[0]
    elif len(upright) == 1:
        (own,) = upright.values()
        tops = [top_distance(nearest(own[start::2], own[1 - start :: 2])[0], cells) for start in (0, 1)]
        level = _SINGLE * float(np.mean(tops))
    else:
        some = [number for number in list(upright)[-_COMPARED:] if (of_rows != number).any()]
        tops = [top_distance(nearest(upright[number], rows[of_rows != number])[0], cells) for number in some]
        level = float(np.mean(tops))
    return level, max(float(np.std(tops)), _LEAST_SPREAD * level, _EPS)


def spread_rows(rows: Array, count: int) -> Array:
    """At most `count` rows, evenly spread."""
    positions: Array = np.linspace(0, len(rows) - 1, min(len(rows), max(1, count))).round().astype(np.int64)
    return rows[positions]


def unit(vectors: Array) -> Array:
    """(..., C) vectors at length one."""
    length: Array = np.maximum(np.linalg.norm(vectors, axis=-1, keepdims=True), _EPS)
    return vectors / length
