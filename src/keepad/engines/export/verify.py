"""verify(): how far an exported network is from the one that it was made from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from keepad.engines.network import EngineNetwork
from keepad.errors import KeepADError
from keepad.images import read_image, to_input
from keepad.network import Network
from keepad.presets import OperatingPoint
from keepad.sources import ImageSource

# Largest difference of a score, largest mean difference of a map, smallest share of common survivors.
TOLERANCES = {"fp32": (1e-3, 1e-3, 0.99), "bf16": (0.05, 0.02, 0.80), "int8": (0.10, 0.04, 0.60)}


@dataclass(frozen=True)
class Difference:
    """How far an exported network is from torch at one operating point.

    Attributes:
        point: Name of the operating point.
        score: Largest difference of an image score.
        map: Largest difference of a map, mean over its pixels.
        survivors: Smallest share of common survivors (intersection over union).
    """

    point: str
    score: float
    map: float
    survivors: float


def verify(
    network: Network, exported: EngineNetwork, images: Sequence[ImageSource], points: Sequence[OperatingPoint]
) -> list[Difference]:
    """Differences between both on the images, one for each operating point.

    Raises:
        KeepADError: A difference is larger than the precision allows.
    """
    worst = {point.name: [0.0, 0.0, 1.0] for point in points}
    for image in images:
        pixels = to_input(read_image(image), network.image_size)[None]
        expected, actual = network.infer(pixels, points), exported.infer(pixels, points)
        for name, row in worst.items():
            a, b = expected[name][0], actual[name][0]
            row[0] = max(row[0], abs(a.score - b.score))
            row[1] = max(row[1], float(np.abs(a.anomaly_map - b.anomaly_map).mean()))
            common = len(np.intersect1d(a.survivors, b.survivors))
            row[2] = min(row[2], common / (len(a.survivors) + len(b.survivors) - common))
    differences = [Difference(name, *row) for name, row in worst.items()]
    score, pixels_off, alive = TOLERANCES[exported.info.precision]
    for one in differences:
        if one.score > score or one.map > pixels_off or one.survivors < alive:
            raise KeepADError(
                f"the exported network differs from torch at {one.point}: scores by {one.score:.4f} (at most {score} "
                f"is allowed), maps by {one.map:.4f} ({pixels_off}), common survivors {one.survivors:.0%} "
                f"({alive:.0%}); use a higher precision."
            )
    return differences
