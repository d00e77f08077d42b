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
    """Largest distances of one reference to another turned by the best single angle, as a share of those upright.

    The smallest of all pairs. Copies at all angles together bring any product closer, since there are more of them; but
    only where products lie at different angles does one of these alone beat the upright image, for some of the pairs.

    Args:
        upright: Tokens of some references.
        turned: Those of their copies, one for each angle.
        cells: Cells of the grid.
    """

    def far(own: ImageTokens, other: ImageTokens) -> float:
        return top_distance(distance_to(own, [other]), cells)

    shares = [
        min(far(own, copy) for copy in copies) / max(far(own, other), 1e-6)
        for own in upright
        for other, copies in zip(upright, turned, strict=True)
        if other is not own
    ]
    return min(shares)


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
