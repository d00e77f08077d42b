"""Prediction: what one image gets, under the names that users of anomaly detection know."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from keepad.arrays import Array
from keepad.routing.pixel import PixelRouting


@dataclass(frozen=True)
class Certificate:
    """Proof that nothing was hidden in the patches that were never looked at, because a neighbour has the same pixels.

    Attributes:
        dropped: (d,) grid indices of those patches, ascending.
        kept: (d,) the patch that stood for each of them.
        bound: (d,) grey levels (of 255) by which any pixel of one may differ, in any channel, from any of the other.
    """

    dropped: Array
    kept: Array
    bound: Array

    @staticmethod
    def of(thinned: PixelRouting) -> Certificate:
        """The certificate of what the pixel router decided."""
        dropped = np.flatnonzero(thinned.owner != np.arange(len(thinned.owner)))
        return Certificate(dropped, thinned.owner[dropped], thinned.bound[dropped])


@dataclass(frozen=True)
class Prediction:
    """The result for one image.

    Attributes:
        pred_score: How anomalous the image is, in [0, 1]; from this image alone.
        anomaly_map: (H, W) float32 in [0, 1] at the network's input size.
        grid: Rows and columns of the patch grid.
        survivors_shallow: Grid indices (row * columns + column, ascending) alive after the shallow router.
        survivors: Grid indices alive after the deep router; the physical survivors.
        evidence: E(I) of the deep router, or None where it did not run.
        certificate: What was never looked at and why, or None where the pixel router did not run.
        image_threshold: Score from which `pred_label` is True, or None if unknown.
        pixel_threshold: Map value from which `pred_mask` is True, or None if unknown.
        timings: Seconds by stage, shared evenly among the images of a batch.
        point: Name of the operating point.
        path: Where the image came from, if it came from a file.
        image: What the network saw before normalisation, (H, W, 3) uint8.
        image_size: Width and height of the image as it was given, upright.
    """

    pred_score: float
    anomaly_map: Array
    grid: tuple[int, int]
    survivors_shallow: Array
    survivors: Array
    evidence: float | None
    point: str
    image: Array
    image_size: tuple[int, int]
    path: Path | None = None
    image_threshold: float | None = None
    pixel_threshold: float | None = None
    timings: dict[str, float] = field(default_factory=dict)
    certificate: Certificate | None = None

    @property
    def pred_label(self) -> bool | None:
        """Whether the image is anomalous, or None while no threshold is known."""
        return None if self.image_threshold is None else self.pred_score >= self.image_threshold

    @property
    def pred_mask(self) -> Array | None:
        """(H, W) bool, or None while no threshold is known."""
        return None if self.pixel_threshold is None else self.anomaly_map >= self.pixel_threshold

    @property
    def keep_pixels(self) -> float:
        """Share of all patch tokens that entered the first block."""
        dropped = 0 if self.certificate is None else len(self.certificate.dropped)
        return 1 - dropped / (self.grid[0] * self.grid[1])

    @property
    def keep_shallow(self) -> float:
        """Share of all patch tokens alive after the shallow router."""
        return len(self.survivors_shallow) / (self.grid[0] * self.grid[1])

    @property
    def keep_final(self) -> float:
        """Share of all patch tokens alive after both routers."""
        return len(self.survivors) / (self.grid[0] * self.grid[1])

    @property
    def seconds(self) -> float:
        """Time of the forward pass, without reading the image."""
        return sum(self.timings.values())

    def to_dict(self) -> dict[str, Any]:
        """The numbers of this prediction, ready for JSON; maps and survivors stay out."""
        return {
            "path": None if self.path is None else str(self.path),
            "pred_score": self.pred_score,
            "pred_label": self.pred_label,
            "keep_pixels": self.keep_pixels,
            "keep_shallow": self.keep_shallow,
            "keep_final": self.keep_final,
            "evidence": self.evidence,
            "seconds": self.seconds,
            "point": self.point,
        }

    def plot(self, *, scale: float = 1.0) -> Image.Image:
        """Image, anomaly map from 0 to `scale` (never stretched per image), and surviving tokens, side by side."""
        from keepad.output.drawing import draw_panels

        return draw_panels(self, scale=scale)

    def save(self, path: str | Path, *, scale: float = 1.0) -> None:
        """Write `plot()`: as a JPEG where the name says so, else as a PNG."""
        from keepad.output.drawing import write_picture

        write_picture(self.plot(scale=scale), Path(path))
