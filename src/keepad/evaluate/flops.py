"""FLOPs of an evaluation: counted for every image, and those that reducers are brought to."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from keepad.data import Sample
from keepad.detector import Detector
from keepad.errors import KeepADError
from keepad.evaluate.variants import Variant
from keepad.images import read_image, spread, to_input
from keepad.inference import Inference
from keepad.presets import OperatingPoint, resolved


def with_reducers(variants: Sequence[Variant], detector: Detector, samples: Sequence[Sample]) -> list[Variant]:
    """The variants, reducers among them with the FLOPs of their namesake on some of the images."""
    if not any(variant.point.reducer and not variant.point.reducer.ratio for variant in variants):
        return list(variants)
    from keepad.benchmark.matching import IMAGES, matched  # needs torch

    images = []
    for sample in spread(samples, IMAGES):
        with suppress(KeepADError):  # reported where it is evaluated
            images.append(to_input(read_image(sample.image), detector.image_size))
    if not images:
        raise KeepADError("no image could be read to count the FLOPs of the reducers' namesakes; check the data set.")
    networks: list[Any] = [(variant.detector or detector).network for variant in variants]
    return [
        replace(variant, point=matched(network, [variant.point], images)[0])
        for variant, network in zip(variants, networks, strict=True)
    ]


def gflops_of(inference: Inference, detector: Detector, point: OperatingPoint) -> float | None:
    """Counted GFLOPs of an image in torch, in all its views; None for an engine, and for an image in tiles."""
    network: Any = detector.network
    if not hasattr(network, "backbone") or inference.tiles is not None:
        return None
    from keepad.benchmark.flops import count_flops  # needs torch, which an engine does not

    flops = count_flops(network, inference, resolved(point, detector.calibration)).total
    return flops * detector.framing.views / 1e9
