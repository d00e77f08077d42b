"""What an evaluation measures on an image that may have any shape, or be cut into tiles."""

from __future__ import annotations

import numpy as np

from keepad.arrays import Array
from keepad.errors import KeepADError
from keepad.images import InputImage
from keepad.inference import Inference
from keepad.metrics import defect_tokens
from keepad.tiling import MAP_PIXELS


def check_measurable(image: InputImage) -> None:
    """Raise a KeepADError where the map of an image is not kept at the size of its mask."""
    height, width = image.map_size
    if height * width > MAP_PIXELS:
        raise KeepADError(
            f"'{image.path}' has {width} x {height} pixels, and maps are measured up to {MAP_PIXELS // 1_000_000} "
            "megapixels; cut it into several images."
        )


def defect_cells(mask: Array, patch: tuple[int, int]) -> Array:
    """(N,) bool of the cells that hold any defect, from an (H, W) mask; the last ones of tiles may be cut."""
    beyond = [(0, -side % of) for side, of in zip(mask.shape, patch, strict=True)]
    padded: Array = np.pad(mask, beyond)
    return defect_tokens(padded, (padded.shape[0] // patch[0], padded.shape[1] // patch[1])).reshape(-1)


def shares_of(inference: Inference) -> dict[str, float]:
    """Shares of the tokens that entered block 1, and that left either router; of all tiles, where there are tiles."""
    if inference.tiles is not None:
        report = inference.tiles
        cells, entered, shallow, final = report.cells, report.entered, report.shallow, report.final
    else:
        routing, cells = inference.pixel_routing, inference.counted
        entered = cells if routing is None else len(routing.index)
        shallow, final = len(inference.survivors_shallow), len(inference.survivors)
    return {"keep_pixels": entered / cells, "keep_shallow": shallow / cells, "keep": final / cells}
