"""Ground-truth masks: read, checked against their image and resized as it is."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image, ImageOps

from keepad.arrays import Array
from keepad.data.samples import Sample
from keepad.errors import ImageError, KeepADError
from keepad.images import opened

_FIRST_TRANSPOSED = 5  # EXIF orientations from here on exchange height and width


def load_mask(sample: Sample, size: tuple[int, int]) -> Array:
    """The sample's mask resized to `size` (H, W): (H, W) bool, True on the defect, all False for normal samples.

    Every value above zero marks a defect. After resizing, a pixel is True if more than half of it was marked.

    Raises:
        KeepADError: The sample is anomalous without a mask, the mask cannot be read, or its size is not its image's.
    """
    if sample.label == 0:
        return np.zeros(size, dtype=bool)
    if sample.mask is None:
        raise KeepADError(
            f"The anomalous image '{sample.image}' has no mask; use image-level metrics only, or add one."
        )
    check_headers(sample)
    pixels = Image.fromarray(defect_pixels(sample.mask).astype(np.uint8) * 255)
    height, width = size
    if pixels.size != (width, height):
        pixels = pixels.resize((width, height), Image.Resampling.BICUBIC)
    return np.asarray(pixels) > 127


def defect_pixels(path: Path) -> Array:
    """(H, W) bool of a mask file at its own size: True where any colour is above zero.

    Raises:
        ImageError: The file cannot be read.
    """
    try:
        with opened(path) as image:
            upright = ImageOps.exif_transpose(image)
            # Integer and float masks are not converted, which would round small values to zero.
            single = upright.mode in {"1", "L", "F"} or upright.mode.startswith("I")
            values = np.asarray(upright if single else upright.convert("RGB"))
    except Exception as error:  # Pillow's parsers agree on no single exception
        raise ImageError(f"The mask '{path}' cannot be read; copy or export it again.") from error
    return np.asarray(values > 0 if values.ndim == 2 else (values > 0).any(axis=2))


def check_headers(sample: Sample) -> None:
    """Checks that the image and its mask, if any, can be opened and have the same size; decodes no pixels.

    Raises:
        ImageError: The image or the mask cannot be opened.
        KeepADError: Their sizes differ.
    """
    height, width = _upright_size(sample.image)
    if sample.mask is None:
        return
    mask_height, mask_width = _upright_size(sample.mask)
    if (mask_height, mask_width) != (height, width):
        raise KeepADError(
            f"The mask '{sample.mask}' has {mask_width} x {mask_height} pixels but its image '{sample.image}' has "
            f"{width} x {height}; give the mask the size of its image."
        )


def _upright_size(path: Path) -> tuple[int, int]:
    """(height, width) after the EXIF orientation is applied."""
    try:
        with opened(path) as image:
            # PNG may store EXIF behind the pixels; reading it would decode them all.
            orientation = 1 if image.format == "PNG" else image.getexif().get(0x0112, 1)
            width, height = image.size
    except Exception as error:  # Pillow's parsers agree on no single exception
        raise ImageError(f"'{path}' is not an image that can be opened; copy or export it again.") from error
    return (width, height) if orientation >= _FIRST_TRANSPOSED else (height, width)
