"""Where images come from: paths, folders, images in memory, images that were prepared already."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Union

from PIL import Image

from keepad.arrays import Array
from keepad.images import InputImage, find_images

if TYPE_CHECKING:
    from torch import Tensor

ImageSource = Union[str, Path, Image.Image, Array, "Tensor", InputImage]


def sources_of(source: ImageSource | Iterable[ImageSource]) -> Iterable[ImageSource]:
    """The images of a path, of a single image, or of an iterable."""
    if isinstance(source, str | Path):
        return find_images([source])
    if isinstance(source, Image.Image | InputImage) or getattr(source, "ndim", 4) < 4:
        return [source]  # type: ignore[list-item]
    return source
