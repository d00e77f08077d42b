"""Regions: connected anomalous pixels of a map as polygons, boxes and scores, in the pixels of the map."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from math import ceil, floor
from typing import Any

import numpy as np
from scipy import ndimage

from keepad.arrays import Array
from keepad.errors import KeepADError

MAX_LISTED = 100  # regions of one image in `describe()`
MAX_POINTS = 10_000  # points of all polygons and holes of one image in `describe()`
_EAST, _SOUTH, _WEST, _NORTH = range(4)  # clockwise, y grows downwards
_EIGHT = np.ones((3, 3), bool)


@dataclass(frozen=True, eq=False)
class Region:
    """Anomalous pixels that touch each other by an edge or a corner; coordinates are those of the user's image.

    The pixel in column x and row y covers the square from (x, y) to (x + 1, y + 1). Polygons run along these edges, so
    the area of `polygon` minus the areas of `holes` is `area` exactly.

    Example:
        ```python
        for region in model("part.png").regions(min_area=20):
            print(region.box, region.area, region.peak)
        ```

    Attributes:
        box: x0, y0, x1, y1 of the smallest box around the region; half-open: x1 and y1 are the first column and row
            behind it, so the width is x1 - x0.
        area: Number of pixels.
        peak: Highest map value.
        mean: Mean map value.
        mask: (y1 - y0, x1 - x0) bool, True for the pixels of the region within its box.
    """

    box: tuple[int, int, int, int]
    area: int
    peak: float
    mean: float
    mask: Array

    @property
    def polygon(self) -> Array:
        """(k, 2) int x, y corners of the outer contour, clockwise as seen, without collinear points.

        Where pixels touch only by a corner, the contour passes that corner twice.
        """
        return self._rings[0]

    @property
    def holes(self) -> tuple[Array, ...]:
        """(k, 2) int x, y corners of each hole, counter-clockwise as seen; holes do not touch by an edge."""
        return self._rings[1:]

    @cached_property
    def parts(self) -> tuple[Array, ...]:
        """(k, 2) int polygons without holes and without a corner passed twice, that together cover the region exactly.

        For formats that know no holes, such as COCO. A region that is simple already has one part, its `polygon`.
        """
        corner = self.box[:2]
        cuts = {int(hole[:, 1].min()) - corner[1] for hole in self.holes}
        bounds = [0, *sorted(cuts), len(self.mask)]  # a cut along the top of every hole opens it
        parts = []
        for top, bottom in pairwise(bounds):
            labels, _ = ndimage.label(self.mask[top:bottom])
            for number, (rows, columns) in enumerate(ndimage.find_objects(labels), 1):
                offset = (corner[0] + columns.start, corner[1] + top + rows.start)
                parts += trace(labels[rows, columns] == number, offset, join_corners=False)
        return tuple(parts)

    @cached_property
    def _rings(self) -> tuple[Array, ...]:
        rings = trace(self.mask, self.box[:2])
        outer = [number for number, ring in enumerate(rings) if signed_area(ring) > 0]
        assert len(outer) == 1, "a connected region has one outer contour"
        return (rings.pop(outer[0]), *rings)

    def to_dict(self) -> dict[str, Any]:
        """All but the mask, ready for JSON.

        Example:
            ```python
            json.dumps([region.to_dict() for region in prediction.regions()])
            ```
        """
        return {
            **self._scalars(),
            "polygon": self.polygon.tolist(),
            "holes": [hole.tolist() for hole in self.holes],
        }

    def _scalars(self) -> dict[str, Any]:
        return {"box": list(self.box), "area": self.area, "peak": self.peak, "mean": self.mean}


def find_regions(anomaly_map: Array, threshold: float) -> tuple[Region, ...]:
    """Regions of an (H, W) map where it reaches `threshold`; highest peak first, then largest, then topmost.

    Pixels that touch by an edge or a corner belong to one region.

    Example:
        ```python
        regions = find_regions(prediction.map_at(), 0.5)
        ```
    """
    labels, count = ndimage.label(anomaly_map >= threshold, structure=_EIGHT)
    if not count:
        return ()
    members = np.flatnonzero(labels)
    owner = labels.ravel()[members] - 1  # (number of anomalous pixels,)
    values = np.asarray(anomaly_map).ravel()[members].astype(np.float64)
    areas = np.bincount(owner, minlength=count)
    means = np.bincount(owner, values, minlength=count) / areas
    peaks = np.full(count, -np.inf)
    np.maximum.at(peaks, owner, values)
    boxes = ndimage.find_objects(labels)
    # Labels count from the top left, and a stable order keeps that for equal peaks and areas.
    return tuple(
        Region(
            box=(boxes[number][1].start, boxes[number][0].start, boxes[number][1].stop, boxes[number][0].stop),
            area=int(areas[number]),
            peak=float(peaks[number]),
            mean=float(min(means[number], peaks[number])),  # a sum of many equal values may round upwards
            mask=labels[boxes[number]] == number + 1,
        )
        for number in np.lexsort((-areas, -peaks)).tolist()
    )


def find_large_regions(
    part_at: Callable[[tuple[int, int], tuple[int, int, int, int]], Array],
    size: tuple[int, int],
    coarse: Array,
    extent: tuple[float, float],
    threshold: float,
) -> tuple[Region, ...]:
    """`find_regions` of a map that is too large to be held: only parts where it can reach the threshold are made.

    Interpolation between values below the threshold stays below it, so every region lies near coarse values above.

    Args:
        part_at: The part of the map of `size` within a box of left, top, right and bottom.
        size: Height and width of the map.
        coarse: (rows, columns) values that the map interpolates.
        extent: Share of their height and width that the map takes.
        threshold: Lowest anomalous value.
    """
    reach = ndimage.binary_dilation(coarse >= threshold, structure=_EIGHT, iterations=2)
    labels, _ = ndimage.label(reach, structure=_EIGHT)
    steps = [side / (cells * share) for side, cells, share in zip(size, coarse.shape, extent, strict=True)]
    regions: list[Region] = []
    for number, (rows, columns) in enumerate(ndimage.find_objects(labels), 1):
        top, left = (max(0, floor(axis.start * step)) for axis, step in zip((rows, columns), steps, strict=True))
        bottom, right = (
            min(end, ceil(axis.stop * step)) for axis, step, end in zip((rows, columns), steps, size, strict=True)
        )
        if bottom <= top or right <= left:
            continue
        part = part_at(size, (left, top, right, bottom))
        at_row, at_column = (
            np.minimum(((np.arange(first, last) + 0.5) / step).astype(np.int64), cells - 1)
            for first, last, step, cells in (
                (top, bottom, steps[0], len(coarse)),
                (left, right, steps[1], coarse.shape[1]),
            )
        )
        own = labels[at_row][:, at_column] == number
        for region in find_regions(np.where(own, part, -np.inf), threshold):
            x0, y0, x1, y1 = region.box
            regions.append(replace(region, box=(x0 + left, y0 + top, x1 + left, y1 + top)))
    return tuple(sorted(regions, key=lambda region: (-region.peak, -region.area, region.box[1], region.box[0])))


def at_least(regions: Sequence[Region], min_area: int) -> tuple[Region, ...]:
    """The regions of `min_area` pixels or more, in their order.

    Raises:
        KeepADError: `min_area` is not a whole number above 0.
    """
    if isinstance(min_area, bool) or not isinstance(min_area, int | np.integer) or min_area < 1:
        raise KeepADError(f"min_area must be a whole number of pixels, 1 or more, not {min_area!r}.")
    return tuple(region for region in regions if region.area >= min_area)


def describe(regions: Sequence[Region]) -> dict[str, Any]:
    """`regions_total` and `regions`, the first `MAX_LISTED` of them, ready for JSON and bounded in size.

    `polygon` and `holes` are None from the first region on whose points would bring the list above `MAX_POINTS`.

    Example:
        ```python
        json.dumps(describe(prediction.regions()))
        ```
    """
    listed: list[dict[str, Any]] = []
    room = MAX_POINTS
    for region in regions[:MAX_LISTED]:
        if room >= 0:
            room -= sum(map(len, (region.polygon, *region.holes)))
        shape: dict[str, Any] = {"polygon": None, "holes": None}
        listed.append(region.to_dict() if room >= 0 else {**region._scalars(), **shape})
    return {"regions_total": len(regions), "regions": listed}


def detection_arrays(regions: Sequence[Region], size: tuple[int, int]) -> dict[str, Array]:
    """Arrays named as the arguments of `supervision.Detections`, for an image of `size` (height, width).

    `xyxy` (n, 4) float32 half-open boxes, `mask` (n, height, width) bool, `confidence` (n,) float32 peaks, `class_id`
    (n,) int zeros. The masks take n * height * width bytes.

    Example:
        ```python
        detections = supervision.Detections(**detection_arrays(prediction.regions(), prediction.image_size))
        ```
    """
    masks = np.zeros((len(regions), *size), bool)
    for mask, region in zip(masks, regions, strict=True):
        x0, y0, x1, y1 = region.box
        mask[y0:y1, x0:x1] = region.mask
    return {
        "xyxy": np.array([region.box for region in regions], np.float32).reshape(-1, 4),
        "mask": masks,
        "confidence": np.array([region.peak for region in regions], np.float32),
        "class_id": np.zeros(len(regions), int),
    }


def signed_area(ring: Array) -> float:
    """Shoelace area of a closed (k, 2) x, y ring in pixels: above 0 if clockwise as seen, below 0 for a hole."""
    x, y = np.asarray(ring, np.float64).T
    return float(x @ np.roll(y, -1) - np.roll(x, -1) @ y) / 2


def trace(mask: Array, offset: tuple[int, int] = (0, 0), *, join_corners: bool = True) -> list[Array]:
    """Closed contours of an (h, w) mask along pixel edges: (k, 2) int x, y corners, moved by `offset` (x, y).

    The mask is on the right of the direction of travel: outer contours are clockwise as seen, holes the other way.

    Args:
        mask: Any bool mask.
        offset: Added to x and y.
        join_corners: Whether two pixels that touch by a corner share a contour, as 8-connected regions do.
    """
    starts, ends, headings, columns = _runs(mask)
    # A run ends where the contour turns. At a corner where two pixels touch, both turns exist: to the left it goes on
    # around the other pixel, to the right around the same one.
    first, second = (3, 1) if join_corners else (1, 3)
    keys = starts * 4 + headings
    order = np.argsort(keys)
    preferred, other = (ends * 4 + (headings + turn) % 4 for turn in (first, second))
    found = np.minimum(np.searchsorted(keys[order], preferred), len(keys) - 1)
    exists = keys[order][found] == preferred
    following = order[np.where(exists, found, np.minimum(np.searchsorted(keys[order], other), len(keys) - 1))].tolist()
    points = np.stack([starts % columns + offset[0], starts // columns + offset[1]], axis=1)
    rings, seen = [], bytearray(len(following))
    for begin in range(len(following)):
        ring = []
        run = begin
        while not seen[run]:
            seen[run] = 1
            ring.append(run)
            run = following[run]
        if ring:
            rings.append(points[ring])
    return rings


def _runs(mask: Array) -> tuple[Array, Array, Array, int]:
    """Straight runs of the contour: vertices where they start and end, headings, and vertices per row.

    Vertex y * columns + x is the corner (x, y). Runs heading east come first, from the top left.
    """
    columns = mask.shape[1] + 1
    padded = np.pad(mask, 1)
    rows_above, columns_before = padded[:-1, 1:-1], padded[1:-1, :-1]
    rows_below, columns_after = padded[1:, 1:-1], padded[1:-1, 1:]
    starts, ends, headings = [], [], []
    for edges, heading in (
        (~rows_above & rows_below, _EAST),  # (h + 1, w): the upper edge of a pixel
        ((columns_before & ~columns_after).T, _SOUTH),  # (w + 1, h): its right edge
        (rows_above & ~rows_below, _WEST),
        ((~columns_before & columns_after).T, _NORTH),
    ):
        steps = np.diff(np.pad(edges.astype(np.int8), ((0, 0), (1, 1))), axis=1)
        line, low = np.nonzero(steps == 1)
        high = np.nonzero(steps == -1)[1]
        scale, step = (columns, 1) if heading in (_EAST, _WEST) else (1, columns)
        pair = (line * scale + low * step, line * scale + high * step)
        start, end = pair if heading in (_EAST, _SOUTH) else pair[::-1]
        starts.append(start)
        ends.append(end)
        headings.append(np.full(len(start), heading))
    return np.concatenate(starts), np.concatenate(ends), np.concatenate(headings), columns
