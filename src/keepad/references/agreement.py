"""How well references agree with each other: what leaving one out shows, and what rotated copies gain."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from keepad.arrays import Array
from keepad.references.bank import ImageTokens, blend, matched, nearest, top_distance


@dataclass(frozen=True)
class LeftOut:
    """A reference against the others.

    Attributes:
        score: Score of the image with the others as references.
        reading: Largest reading of its survivors.
        distance: Mean distance of its survivors to the nearest of the others.
    """

    score: float
    reading: float
    distance: float


def rotation_gain(upright: Sequence[ImageTokens], turned: Sequence[Sequence[ImageTokens]], cells: int) -> float:
    """Largest distances of references to others with rotated copies, as a share of those without; their median."""
    shares = []
    for number in range(len(upright)):
        others = [index for index in range(len(upright)) if index != number]
        without = distance_to(upright[number], [upright[index] for index in others])
        copies = distance_to(upright[number], [copy for index in others for copy in turned[index]])
        shares.append(top_distance(np.minimum(without, copies), cells) / max(top_distance(without, cells), 1e-6))
    return float(np.median(shares))


def distance_to(own: ImageTokens, others: Sequence[ImageTokens]) -> Array:
    """(k,) distances of the survivors of an image to other references, as an image to be judged has them."""
    layers = np.concatenate([other.layers for other in others], axis=1)
    deep, _ = nearest(own.deep, np.concatenate([other.deep for other in others]))
    survivors = own.layers[:, : len(own.away)]
    return matched([nearest(*pair)[0] for pair in zip(survivors, layers, strict=True)], deep[own.away])


def leave_one_out(tokens: Sequence[ImageTokens], numbers: Sequence[int], cells: int) -> list[LeftOut]:
    """Each reference as if it were an image to be judged by the others; empty for a single one."""
    upright = dict(reversed(list(zip(numbers, tokens, strict=True))))
    results = []
    for number in sorted(upright) if len(upright) > 1 else ():
        own = upright[number]
        others = [other for other, of in zip(tokens, numbers, strict=True) if of != number]
        distance = distance_to(own, others[:: max(1, len(others) // 64)])  # about as many as a bank can hold
        score = float(blend(top_distance(distance, cells), own.score))
        results.append(LeftOut(score, float(blend(distance, own.responses).max()), float(distance.mean())))
    return results


def thresholds_of(left_out: Sequence[LeftOut]) -> tuple[float | None, float | None]:
    """Score and map value that good images of this product rarely reach; None where one reference cannot tell."""
    if not left_out:
        return None, None
    scores = np.array([own.score for own in left_out])
    image = scores.mean() + 2 * max(scores.std(), 0.05 * scores.mean())
    return float(min(1.0, image)), float(np.median([own.reading for own in left_out]))
