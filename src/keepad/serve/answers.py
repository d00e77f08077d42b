"""Predictions as answers: JSON with everything, and pictures as PNG."""

from __future__ import annotations

import base64
import io
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from PIL import Image

from keepad.arrays import Array
from keepad.output.drawing import colour_map, draw_panels, make_panels
from keepad.prediction import Prediction

_GREY16 = 65_535
_HEAT_FROM = 0.12  # share of the colour scale below which the layer is clear
_EARLY, _LATE = (10, 14, 24, 214), (44, 92, 190, 150)  # red, green, blue, opacity of dropped patches


@dataclass(frozen=True)
class Wanted:
    """What a request asks for beyond the defaults.

    Attributes:
        threshold: Score, and map value, from which something is anomalous; None takes what the model knows.
        pictures: Names of pictures in the JSON.
        regions: Whether regions are listed.
        min_area: Regions of fewer pixels are left out.
    """

    threshold: float | None = None
    pictures: tuple[str, ...] = ()
    regions: bool = True
    min_area: int = 1

    def applied(self, prediction: Prediction) -> Prediction:
        """The prediction with the request's own threshold, if it has one."""
        if self.threshold is None:
            return prediction
        return with_threshold(prediction, self.threshold)


def with_threshold(prediction: Prediction, threshold: float) -> Prediction:
    """The prediction labelled by another threshold, which promises nothing: its verdict goes."""
    return replace(prediction, image_threshold=threshold, pixel_threshold=threshold, verdict=None)


def describe(prediction: Prediction, name: str, profile: str | None, wanted: Wanted) -> dict[str, Any]:
    """The result of one image, ready for JSON. Takes a moment for large images, so it runs in a thread."""
    values = prediction.to_dict()
    values.pop("path")  # of the server's disk; an upload has none
    if not wanted.regions:
        values.pop("regions", None)
    elif wanted.min_area > 1 and "regions" in values:
        kept = [region for region in values["regions"] if region["area"] >= wanted.min_area]
        values |= {"regions": kept, "regions_total": len(prediction.regions(wanted.min_area))}
    # With a threshold of the request's own there is no verdict, so what the calibration says of it does not apply.
    calibrated = None if prediction.verdict is None or prediction.profile is None else prediction.profile.calibrated
    described = {
        "name": name,
        "profile": profile,
        **values,
        "pixel_threshold": prediction.pixel_threshold,
        "review_threshold": None if calibrated is None else calibrated.review_threshold,
        "image_size": list(prediction.image_size),
        "nearest_reference": nearest_reference(prediction),
    }
    if wanted.pictures:
        described["pictures"] = {
            name: base64.b64encode(png(PICTURES[name](prediction))).decode() for name in wanted.pictures
        }
    return described


def nearest_reference(prediction: Prediction) -> dict[str, Any] | None:
    """Name and distance of the reference that the worst match resembles most, or None without references."""
    match, profile = prediction.match, prediction.profile
    if match is None or profile is None or profile.bank is None:
        return None
    worst = int(match.distance.argmax())
    number = int(profile.bank.image[match.nearest[worst]])
    return {"name": profile.images[number].name, "distance": float(match.distance[worst])}


def map_picture(prediction: Prediction) -> Image.Image:
    """The anomaly map at the network's input size: 16-bit grey, 65535 is 1."""
    values = np.rint(np.clip(prediction.anomaly_map, 0, 1) * _GREY16)
    return Image.fromarray(values.astype(np.uint16))


def heat_picture(prediction: Prediction) -> Image.Image:
    """The anomaly map in colours, clear where it is low, to be laid over the image."""
    values: Array = np.asarray(prediction.anomaly_map, np.float32)
    colours = np.rint(colour_map(values)[..., :3]).astype(np.uint8)
    share = np.clip((values - _HEAT_FROM) / (0.5 - _HEAT_FROM), 0, 1)
    opacity = np.rint(255 * share).astype(np.uint8)
    return Image.fromarray(np.concatenate([colours, opacity[..., None]], axis=2))


def survivors_picture(prediction: Prediction) -> Image.Image:
    """One pixel per patch: clear where it survived, blue where it was dropped late, dark where it was dropped early."""
    rows, columns = prediction.grid
    pixels = np.empty((rows * columns, 4), np.uint8)
    pixels[:] = _EARLY
    pixels[prediction.survivors_shallow] = _LATE
    pixels[prediction.survivors] = 0
    return Image.fromarray(pixels.reshape(rows, columns, 4))


PICTURES: Mapping[str, Callable[[Prediction], Image.Image]] = {
    "image": lambda prediction: Image.fromarray(prediction.image),  # for formats that browsers do not show
    "map": map_picture,
    "heat": heat_picture,
    "survivors": survivors_picture,
    "overlay": lambda prediction: make_panels(prediction).overlay,
    "panels": draw_panels,
}


def png(picture: Image.Image) -> bytes:
    """The picture as a PNG file."""
    stream = io.BytesIO()
    picture.save(stream, "PNG", compress_level=1)
    return stream.getvalue()
