"""Ground-truth masks: read as they are published, checked against their image, squashed as the image is."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image, ImageOps

from keepad.arrays import Array
from keepad.data.samples import Sample
from keepad.errors import ImageError, KeepADError
from keepad.images import opened

# EXIF orientations from this one on exchange width and height.
_FIRST_TURNED_ORIENTATION = 5


def load_mask(sample: Sample, size: tuple[int, int]) -> Array:
    """(H, W) bool, True where the image is defective, at the size (H, W) to which the image is squashed.

    Every value above zero marks a defect. The mask is then squashed as its image is, and a pixel counts where more than
    half of it is covered. Normal samples get all zeros.

    Raises:
        KeepADError: The sample is anomalous without a mask, the mask cannot be read, or its size is not its image's.
    """
    height, width = size
    if sample.label == 0:
        return np.zeros((height, width), dtype=bool)
    if sample.mask is None:
        raise KeepADError(
            f"The anomalous image '{sample.image}' has no mask; use image-level metrics only, or add one."
        )
    check_headers(sample)
    pixels = Image.fromarray(defect_pixels(sample.mask).astype(np.uint8) * 255)
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
            # Integer and float masks keep their values: conversion would round small ones to zero.
            single = upright.mode in {"1", "L", "F"} or upright.mode.startswith("I")
            values = np.asarray(upright if single else upright.convert("RGB"))
    except Exception as error:  # Pillow's parsers agree on no single exception
        raise ImageError(f"The mask '{path}' cannot be read; copy or export it again.") from error
    return np.asarray(values > 0 if values.ndim == 2 else (values > 0).any(axis=2))


def check_headers(sample: Sample) -> None:
    """Returns if the image and its mask, if any, can be opened and have one size; reads no pixels.

    Raises:
        ImageError: The image or the mask cannot be opened.
        KeepADError: Their sizes differ.
    """
    image = _upright_size(sample.image)
    if sample.mask is None:
        return
    mask = _upright_size(sample.mask)
    if image != mask:
        raise KeepADError(
            f"The mask '{sample.mask}' has {mask[0]} x {mask[1]} pixels but its image '{sample.image}' has "
            f"{image[0]} x {image[1]}; give the mask the size of its image."
        )


def _upright_size(path: Path) -> tuple[int, int]:
    """Width and height after the orientation in the header is applied."""
    try:
        with opened(path) as image:
            # A PNG may hold its EXIF behind the pixels, so that asking for it would read them all.
            orientation = 1 if image.format == "PNG" else image.getexif().get(0x0112, 1)
            width, height = image.size
    except Exception as error:  # Pillow's parsers agree on no single exception
        raise ImageError(f"'{path}' is not an image that can be opened; copy or export it again.") from error
    return (height, width) if orientation >= _FIRST_TURNED_ORIENTATION else (width, height)
