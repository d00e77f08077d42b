"""Matching of reducers: the share of tokens at which a reducer costs the FLOPs of its namesake on some images."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from keepad.arrays import Array
from keepad.benchmark.flops import count_flops
from keepad.engines.network import EngineNetwork
from keepad.errors import KeepADError
from keepad.network import Network
from keepad.presets import OperatingPoint, operating_point

TOLERANCE = 0.01  # of the FLOPs
IMAGES = 16  # that set the FLOPs of a namesake where an evaluation has more
_SAMPLED = 4  # images that set those of a reducer whose count of tokens depends on the image
_STEPS = 14  # halvings of the interval; its length is then below a token of the grid


def matched(
    network: Network | EngineNetwork,
    points: Sequence[OperatingPoint],
    images: Sequence[Array],
    targets: Mapping[str, float] | None = None,
) -> list[OperatingPoint]:
    """The points, reducers among them with a share of tokens that costs what their namesake does.

    Args:
        network: The detector's network.
        points: Operating points.
        images: (H, W, 3) uint8 at input size.
        targets: Mean FLOPs of namesakes, where they are known already.

    Raises:
        KeepADError: The network runs on an engine, or no share reaches the FLOPs within `TOLERANCE`.
    """
    found, known = [], dict(targets or {})
    for point in points:
        if point.reducer is None or point.reducer.ratio:
            found.append(point)
            continue
        if isinstance(network, EngineNetwork):
            raise KeepADError(f"{point.name} changes what happens inside blocks, so it runs in torch: --engine torch.")
        namesake = point.reducer.namesake
        if namesake not in known:
            known[namesake] = mean_flops(network, operating_point(namesake), images)
        found.append(_matched(network, point, images, known[namesake]))
    return found


def mean_flops(network: Network, point: OperatingPoint, images: Sequence[Array]) -> float:
    """Counted FLOPs of a pass, mean over the images."""
    inferences = (network.infer(image[None], [point])[point.name][0] for image in images)
    return float(np.mean([count_flops(network, inference, point).total for inference in inferences]))


def _matched(network: Network, point: OperatingPoint, images: Sequence[Array], target: float) -> OperatingPoint:
    assert point.reducer is not None
    # Only samples of a distribution differ in number from image to image.
    few = images[:: max(1, len(images) // _SAMPLED)][:_SAMPLED] if point.reducer.method == "ats" else images[:1]
    low, high, best = 0.0, 1.0, (float("inf"), point)
    for _ in range(_STEPS):
        ratio = (low + high) / 2
        attempt = replace(point, reducer=replace(point.reducer, ratio=ratio))
        flops = mean_flops(network, attempt, few)
        best = min(best, (abs(flops / target - 1), attempt), key=lambda pair: pair[0])
        low, high = (ratio, high) if flops < target else (low, ratio)
        if best[0] < TOLERANCE / 5:
            break
    if best[0] > TOLERANCE:
        raise KeepADError(
            f"{point.name} cannot be brought to the FLOPs of {point.reducer.namesake} within {TOLERANCE:.0%} (nearest: "
            f"{best[0]:.1%} away); leave it out."
        )
    return best[1]
