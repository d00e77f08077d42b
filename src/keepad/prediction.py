"""Prediction: score, anomaly map and surviving tokens of one image."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image

from keepad.arrays import Array
from keepad.decisions import Verdict
from keepad.errors import ImageError, KeepADError
from keepad.images import read_image
from keepad.references.bank import Match
from keepad.references.pairs import NearestReference, pair_of
from keepad.references.profile import Profile
from keepad.regions import Region, at_least, describe, detection_arrays, find_large_regions, find_regions
from keepad.roi import shrunk
from keepad.routing.pixel import PixelRouting
from keepad.tiles import TileReport

if TYPE_CHECKING:
    from supervision import Detections

    from keepad.images import InputImage
    from keepad.inference import Inference


_REGIONS_AT_ONCE = 50_000_000  # pixels; the maps of larger images are searched part by part


@dataclass(frozen=True)
class Certificate:
    """Patches that the pixel router dropped before the first block, with a bound on what each may hide.

    Attributes:
        dropped: (d,) grid indices of the dropped patches, ascending.
        kept: (d,) grid index of the patch that represents each of them.
        bound: (d,) largest difference, in grey levels of 255 and over the channels, between any pixel of the dropped
            patch and any pixel of the kept one.
    """

    dropped: Array
    kept: Array
    bound: Array

    @staticmethod
    def of(routing: PixelRouting) -> Certificate:
        """The certificate of one image's pixel routing.

        Example:
            ```python
            certificate = Certificate.of(route_pixels(pixels, patch=(14, 14), budget=PixelBudget()))
            certificate.bound.max()
            ```
        """
        dropped = routing.cells[routing.owner[routing.cells] != routing.cells]
        return Certificate(dropped, routing.owner[dropped], routing.bound[dropped])


@dataclass(frozen=True)
class Prediction:
    """The result for one image; sizes are (height, width).

    Example:
        ```python
        prediction = keepad.load()("part.png")
        prediction.pred_score, prediction.pred_label, prediction.keep_final
        ```

    Attributes:
        pred_score: Image-level anomaly score in [0, 1]; depends on this image alone.
        anomaly_map: (H, W) float32 in [0, 1] at the network's input size, without padding; `map_at()` has it at the
            image's own size.
        grid: Rows and columns of the patch grid.
        survivors_shallow: Grid indices (row * columns + column, ascending) alive after the shallow router.
        survivors: Grid indices alive after the deep router.
        evidence: E(I) of the deep router, or None where it did not run.
        certificate: Patches dropped by the pixel router, or None where it did not run.
        inside: (rows * columns,) bool, the cells that count, or None where all do.
        roi: (height, width) bool, where the original image was looked at, or None for everywhere.
        fit: How the image became an input, for people; None where it was squashed as always.
        tiles: What the tiles cost into which the image was cut, or None where it was taken whole. Grid and survivors
            are then those of the whole image, `image` is its thumbnail.
        extent: Share of the height and width of `anomaly_map` that the image takes; below 1 only for maps that are kept
            on the grid of patches, of tiled images above 50 megapixels.
        image_threshold: Lowest score with `pred_label` True, or None if unknown.
        pixel_threshold: Lowest map value with `pred_mask` True, or None if unknown.
        timings: Seconds per stage; a batch's time is divided evenly among its images.
        point: Name of the operating point.
        path: File of the image, or None if it came from memory.
        image: (H, W, 3) uint8 input of the network before normalisation.
        image_size: Height and width of the original image, upright.
        match: How the survivors match the references, or None without references.
        profile: What was used of the product beside the image: references, calibration; or None.
        p_value: Share of good images that score at least this high, or None without a calibration.
        verdict: "ok", "review" or "defect" at the rate that the calibration promises, or None without one.
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
    match: Match | None = None
    profile: Profile | None = None
    p_value: float | None = None
    verdict: Verdict | None = None
    inside: Array | None = None
    roi: Array | None = None
    fit: str | None = None
    tiles: TileReport | None = None
    extent: tuple[float, float] = (1.0, 1.0)

    @staticmethod
    def of(
        image: InputImage,
        result: Inference,
        point: str,
        timings: dict[str, float],
        thresholds: tuple[float | None, float | None],
        profile: Profile | None,
    ) -> Prediction:
        """The Prediction of an image, from what the network took and said; an ImageError where that is not finite."""
        if not np.isfinite(result.score):
            name = image.path or image.name or "the image"
            raise ImageError(f"{name} gave no finite score; the weights or the checkpoint are damaged.")
        calibrated = None if profile is None else profile.calibrated
        return Prediction(
            pred_score=result.score,
            anomaly_map=result.anomaly_map,
            grid=result.patch_map.shape,
            survivors_shallow=result.survivors_shallow,
            survivors=result.survivors,
            evidence=result.evidence,
            certificate=None if result.pixel_routing is None else Certificate.of(result.pixel_routing),
            point=point,
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
            tiles=result.tiles,
            extent=result.extent,
        )

    @property
    def threshold(self) -> float | None:
        """Lowest score that is called anomalous, or None if unknown; that of the calibration, if there is one."""
        return self.image_threshold

    @property
    def brightness(self) -> float:
        """Mean of all pixels and channels, from 0 (black) to 1; tells a lamp that ages from a part that changes."""
        return float(self.image.mean()) / 255

    @property
    def sharpness(self) -> float:
        """Mean difference of neighbouring pixels, in deviations of all pixels: falls where a lens fogs or moves."""
        grey = self.image[..., 0].astype(np.int16) + self.image[..., 1] + self.image[..., 2]  # three times the mean
        steps = np.abs(np.diff(grey, axis=0)).mean() + np.abs(np.diff(grey, axis=1)).mean()
        return float(steps / max(2 * grey.std(), 1e-6))

    @property
    def pred_label(self) -> bool | None:
        """Whether the image is anomalous, or None without a threshold."""
        return None if self.image_threshold is None else self.pred_score >= self.image_threshold

    @property
    def pred_mask(self) -> Array | None:
        """(H, W) bool mask of anomalous pixels at the network's input size, or None without a threshold."""
        return None if self.pixel_threshold is None else self.anomaly_map >= self.pixel_threshold

    @property
    def keep_pixels(self) -> float:
        """Share of all patch tokens that entered the first block."""
        if self.tiles is not None:
            return self.tiles.entered / self.tiles.cells
        dropped = 0 if self.certificate is None else len(self.certificate.dropped)
        return 1 - dropped / self._cells

    @property
    def keep_shallow(self) -> float:
        """Share of all patch tokens alive after the shallow router."""
        if self.tiles is not None:
            return self.tiles.shallow / self.tiles.cells
        return len(self.survivors_shallow) / self._cells

    @property
    def keep_final(self) -> float:
        """Share of all patch tokens alive after both routers."""
        return len(self.survivors) / self._cells if self.tiles is None else self.tiles.final / self.tiles.cells

    @property
    def _cells(self) -> int:
        """Cells that count."""
        return self.grid[0] * self.grid[1] if self.inside is None else int(self.inside.sum())

    @property
    def seconds(self) -> float:
        """Time of the forward pass, without decoding the image."""
        return sum(self.timings.values())

    def map_at(self, size: tuple[int, int] | None = None) -> Array:
        """(H, W) float32 anomaly map in the pixels of the original image, bilinear; antialiased where it shrinks.

        Args:
            size: Height and width of the result; `image_size` if None.

        Example:
            ```python
            anomaly_map = prediction.map_at()
            row, column = np.unravel_index(anomaly_map.argmax(), anomaly_map.shape)
            ```
        """
        height, width = self.image_size if size is None else size
        if min(height, width) < 1:
            raise KeepADError(f"an anomaly map cannot have {height} x {width} pixels; give a height and width above 0.")
        return self._part_at((height, width), (0, 0, width, height))

    def _part_at(self, size: tuple[int, int], box: tuple[int, int, int, int]) -> Array:
        """The part of `map_at(size)` within a box of left, top, right and bottom."""
        rows, columns = (side * share for side, share in zip(self.anomaly_map.shape, self.extent, strict=True))
        left, top, right, bottom = box
        source = left / size[1] * columns, top / size[0] * rows, right / size[1] * columns, bottom / size[0] * rows
        whole = Image.fromarray(np.ascontiguousarray(self.anomaly_map, np.float32))
        shape = right - left, bottom - top
        part = np.array(whole.resize(shape, Image.Resampling.BILINEAR, box=source))
        if self.roi is not None:
            part[~(self.roi if size == self.image_size else shrunk(self.roi, size)[0])[top:bottom, left:right]] = 0
        return part

    def mask_at(self, size: tuple[int, int] | None = None) -> Array | None:
        """(H, W) bool mask of anomalous pixels in the original image, or None without a threshold.

        Args:
            size: Height and width of the result; `image_size` if None.

        Example:
            ```python
            model.set_threshold(0.5)
            share = model("part.png").mask_at().mean()
            ```
        """
        return None if self.pixel_threshold is None else self.map_at(size) >= self.pixel_threshold

    def regions(self, min_area: int = 1) -> tuple[Region, ...]:
        """Connected anomalous pixels of `mask_at()`, in the pixels of the original image; highest peak first.

        Pixels that touch by an edge or a corner are one region.

        Args:
            min_area: Regions of fewer pixels are left out.

        Raises:
            KeepADError: There is no pixel threshold, or `min_area` is not a whole number above 0.

        Example:
            ```python
            for region in model("part.png").regions(min_area=20):
                print(region.box, region.area, region.peak, region.polygon)
            ```
        """
        return at_least(self._regions, min_area)

    @cached_property
    def _regions(self) -> tuple[Region, ...]:
        if self.pixel_threshold is None:
            raise KeepADError("regions need a threshold for pixels; set one with detector.set_threshold() beforehand.")
        if self.anomaly_map.max() < self.pixel_threshold - 1e-4:  # resizing only mixes values
            return ()
        if self.image_size[0] * self.image_size[1] <= _REGIONS_AT_ONCE:
            return find_regions(self.map_at(), self.pixel_threshold)
        return find_large_regions(self._part_at, self.image_size, self.anomaly_map, self.extent, self.pixel_threshold)

    def to_supervision(self, min_area: int = 1) -> Detections:
        """The regions as `supervision.Detections`: boxes, masks and peaks as confidence; class 0 is "anomaly".

        Args:
            min_area: Regions of fewer pixels are left out.

        Raises:
            KeepADError: The package supervision is not installed, or as `regions()`.

        Example:
            ```python
            annotated = supervision.MaskAnnotator().annotate(image, prediction.to_supervision(min_area=20))
            ```
        """
        try:
            from supervision import Detections
        except ImportError as error:
            raise KeepADError(
                "to_supervision() needs the package supervision; install it with 'pip install supervision'."
            ) from error
        regions = self.regions(min_area)
        return Detections(
            **detection_arrays(regions, self.image_size), data={"class_name": np.full(len(regions), "anomaly")}
        )

    def nearest_reference(self, margin: int = 2) -> NearestReference | None:
        """The survivor that matches the references worst, beside the reference patch that it resembles most.

        Args:
            margin: Patches shown around it on each side.

        Returns:
            None without references.

        Example:
            ```python
            pair = keepad.load(profile="bolts.keepad")("part.png").nearest_reference()
            pair.own.show(), pair.reference.show()
            ```
        """
        if self.match is None or self.profile is None or self.profile.bank is None:
            return None
        image, grid = Image.fromarray(self.image), self.grid
        if self.tiles is not None:  # the thumbnail is too coarse to show a patch of a tile
            image, grid = image if self.path is None else read_image(self.path), self.tiles.tile
        return pair_of(self.match, self.profile, (image, self.grid), grid, margin)

    def to_dict(self) -> dict[str, Any]:
        """The scalar results and, where there is a pixel threshold, the regions, ready for JSON.

        `regions` lists the 100 regions with the highest peaks at most, `regions_total` counts all of them. `polygon`
        and `holes` are None where the polygons of one image would have more than 10,000 points together.

        Example:
            ```python
            print(json.dumps(prediction.to_dict()))
            ```
        """
        regions = {} if self.pixel_threshold is None else describe(self.regions())
        return {
            "path": None if self.path is None else str(self.path),
            "pred_score": self.pred_score,
            "pred_label": self.pred_label,
            "verdict": self.verdict,
            "p_value": self.p_value,
            "threshold": self.threshold,
            "keep_pixels": self.keep_pixels,
            "keep_shallow": self.keep_shallow,
            "keep_final": self.keep_final,
            "evidence": self.evidence,
            "brightness": self.brightness,
            "sharpness": self.sharpness,
            "seconds": self.seconds,
            "point": self.point,
            **({} if self.fit is None else {"fit": self.fit}),
            **({} if self.tiles is None else {"tiles": asdict(self.tiles)}),
            **regions,
        }

    def plot(self, *, scale: float = 1.0) -> Image.Image:
        """Image, anomaly map and surviving tokens side by side, at the aspect ratio of the original image.

        Args:
            scale: Map value of the last colour; the same for all images, so that pictures are comparable.

        Example:
            ```python
            prediction.plot().show()
            ```
        """
        from keepad.output.drawing import draw_panels

        return draw_panels(self, scale=scale)

    def save(self, path: str | Path, *, scale: float = 1.0) -> None:
        """Write `plot()` as a JPEG where the suffix is .jpg or .jpeg, else as a PNG.

        Example:
            ```python
            prediction.save("part.overlay.jpg")
            ```
        """
        from keepad.output.drawing import write_picture

        write_picture(self.plot(scale=scale), Path(path))
