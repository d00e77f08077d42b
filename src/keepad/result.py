"""From the raw result of an image to its Prediction."""

from __future__ import annotations

import numpy as np

from keepad.errors import ImageError
from keepad.framing import InputImage
from keepad.inference import Inference
from keepad.prediction import Certificate, Prediction
from keepad.presets import OperatingPoint
from keepad.references.profile import Profile
from keepad.tiling import TiledInference


def prediction_of(
    image: InputImage,
    result: Inference,
    point: OperatingPoint,
    timings: dict[str, float],
    thresholds: tuple[float | None, float | None],
    profile: Profile | None,
) -> Prediction:
    """The Prediction of an image.

    Args:
        image: The image as the network took it.
        result: What the network said.
        point: Operating point.
        timings: Seconds per stage.
        thresholds: Score of an image and map value of a pixel from which these are called anomalous, where known.
        profile: What was used of the product, or None.

    Raises:
        ImageError: The score is not finite.
    """
    if not np.isfinite(result.score):
        name = image.path or image.name or "the image"
        raise ImageError(f"{name} gave no finite score; the weights or the checkpoint are damaged.")
    calibrated = None if profile is None else profile.calibrated
    tiled = result if isinstance(result, TiledInference) else None
    return Prediction(
        pred_score=result.score,
        anomaly_map=result.anomaly_map,
        grid=result.patch_map.shape,
        survivors_shallow=result.survivors_shallow,
        survivors=result.survivors,
        evidence=result.evidence,
        certificate=None if result.pixel_routing is None else Certificate.of(result.pixel_routing),
        point=point.name,
        image=image.pixels[: image.content[0], : image.content[1]],
        image_size=image.size,
        path=image.path,
        image_threshold=thresholds[0],
        pixel_threshold=thresholds[1],
        timings=timings,
        match=result.match,
        profile=profile,
        p_value=None if calibrated is None else calibrated.p_value(result.score),
        verdict=None if calibrated is None else calibrated.verdict(result.score),
        inside=result.inside,
        roi=image.roi,
        fit=image.fit,
        tiles=tiled.report if tiled else None,
        extent=tiled.extent if tiled else (1.0, 1.0),
    )
