"""Reads files, PIL images, arrays and tensors as upright 8-bit RGB, and lists the image files of folders."""

from __future__ import annotations

import io
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, TypeVar

import numpy as np
from PIL import Image, ImageFile

from keepad.arrays import Array
from keepad.errors import ImageError, KeepADError

if TYPE_CHECKING:
    from keepad.tiles import TilePlan

SUFFIXES = frozenset({".png", ".jpg", ".jpeg", ".bmp", ".tif", ".tiff", ".webp", ".ppm", ".pgm", ".gif"})
MAX_PIXELS = 500_000_000
_LARGE = 50_000_000  # pixels

# Raster formats only: Pillow passes PostScript files to an external program.
_FORMATS = ("PNG", "JPEG", "BMP", "TIFF", "WEBP", "PPM", "GIF")
_READABLE = "PNG, JPEG, BMP, TIFF, WebP, PPM, PGM or GIF"
# EXIF orientation -> operation that turns the stored pixels upright.
_TRANSPOSES = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
_TOLERANCE = 1e-4  # rounding error allowed outside [0, 1]

T = TypeVar("T")


@dataclass(frozen=True)
class InputImage:
    """An image as the network takes it; `Detector.prepare` makes one.

    Attributes:
        pixels: (H, W, 3) uint8 at input size, in whole patches.
        size: Height and width of the original image, upright.
        content: Height and width of the part of `pixels` that holds the image, at its top left, in whole patches.
        path: Its file, if it has one.
        name: What it is called where it has none.
        digest: SHA-256 of the content of its file, or "" if unknown.
        inside: (N,) bool, the cells that count, or None where all do.
        roi: (height, width) bool, where the original image is looked at, or None for everywhere.
        fit: What was chosen, for people; None where the image was squashed as always.
        picture: The original image where it is cut into tiles, else None.
        plan: Its tiles, or None where it is taken whole.
    """

    pixels: Array
    size: tuple[int, int]
    content: tuple[int, int]
    path: Path | None = None
    name: str = ""
    digest: str = ""
    inside: Array | None = None
    roi: Array | None = None
    fit: str | None = None
    picture: Image.Image | None = None
    plan: TilePlan | None = None

    @property
    def map_size(self) -> tuple[int, int]:
        """Height and width of its anomaly map."""
        return self.content if self.plan is None else self.plan.size


def read_image(source: Any) -> Image.Image:
    """The source as an upright 8-bit RGB image.

    EXIF orientation is applied, transparency is composited over white, 16-bit values are scaled by their full range
    (65535 becomes 255), and the first frame of several is used.

    Args:
        source: A path; a PIL image (mode I counts as 16-bit); a NumPy array (H, W), (H, W, 1), (H, W, 3) or (H, W, 4)
            of uint8, uint16, bool or floats in [0, 1]; or a torch tensor (1, H, W) or (3, H, W) of uint8 or floats
            in [0, 1].

    Raises:
        ImageError: The source is not a usable image.
    """
    if isinstance(source, (str, os.PathLike)):
        return _from_file(Path(source))
    if isinstance(source, Image.Image):
        return _from_pil(source, "The given PIL image")
    if isinstance(source, np.ndarray):
        return _from_array(source, f"The array of shape {source.shape}")
    if type(source).__module__.partition(".")[0] == "torch" and hasattr(source, "detach"):
        return _from_tensor(source)
    raise ImageError(
        f"An image cannot be made from {type(source).__name__}; "
        "give a path, a PIL image, a NumPy array or a torch tensor."
    )


def read_encoded(data: bytes, name: str, max_pixels: int = MAX_PIXELS) -> Image.Image:
    """The content of an image file as an upright 8-bit RGB image; see `read_image`.

    Args:
        data: Content of the file.
        name: What errors call it.
        max_pixels: Larger images are refused by their header, before anything is decoded.

    Raises:
        ImageError: The content is not a usable image, or has too many pixels.
    """
    if not data:
        raise ImageError(f"{name} is empty (0 bytes); copy or export it again.")
    return _from_stream(io.BytesIO(data), name, max_pixels)


def to_input(image: Image.Image, size: tuple[int, int]) -> Array:
    """(H, W, 3) uint8 pixels of an RGB image, resized to `size` (H, W) by bicubic interpolation."""
    height, width = size
    if image.size != (width, height):
        image = image.resize((width, height), Image.Resampling.BICUBIC)
    return np.array(image, dtype=np.uint8)


@contextmanager
def opened(path: Path) -> Iterator[Image.Image]:
    """An image file opened without decoding: raster formats only, without Pillow's limit on pixels."""
    with path.open("rb") as file, _own_size_limit(), Image.open(file, formats=_FORMATS) as image:
        yield image


def find_images(paths: Sequence[str | Path] | str | Path) -> list[Path]:
    """The image files of `paths`, each once: files as they are, folders searched recursively in sorted order.

    In folders, hidden entries and files with other suffixes are skipped; a file in `paths` may have any suffix.

    Raises:
        KeepADError: A path does not exist, a folder holds no image, or `paths` is empty.
    """
    roots = _as_paths(paths)
    if not roots:
        raise KeepADError("No image was given; name at least one file or folder.")
    images: dict[str, Path] = {}
    for path in roots:
        if path.is_dir():
            files = _images_below(path)
        elif path.exists():
            files = [path]
        else:
            raise KeepADError(f"There is no file or folder '{path}'; check the path.")
        for file in files:
            # Not resolved: a link counts as a separate image.
            images.setdefault(os.path.abspath(file), file)
    return list(images.values())


def image_files(folder: Path, refuse: Callable[[OSError], None] | None = None) -> Iterator[Path]:
    """The image files of a folder and all folders below, one by one: sorted in each folder, hidden ones left out.

    Args:
        folder: The folder.
        refuse: Called for a folder that cannot be read; without it, such a folder is left out.
    """
    for root, folders, names in os.walk(folder, onerror=refuse):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(names):
            if is_image_name(name):
                yield Path(root, name)


def is_image_name(name: str) -> bool:
    """Whether a file called so is taken for an image where a folder is searched."""
    return not name.startswith(".") and os.path.splitext(name)[1].lower() in SUFFIXES


def find_pictures(paths: Sequence[str | Path] | str | Path) -> list[Path]:
    """The image files of `paths` as in `find_images`, without masks (files in `ground_truth` folders).

    Raises:
        KeepADError: As `find_images`, or `paths` hold only masks.
    """
    roots = _as_paths(paths)
    pictures = [
        file
        for file in find_images(roots)
        if not any(path in file.parents and "ground_truth" in file.relative_to(path).parts for path in roots)
    ]
    if not pictures:
        raise KeepADError(f"'{roots[0]}' holds no image but masks; give one that holds the images themselves.")
    return pictures


def spread(items: Sequence[T], count: int) -> list[T]:
    """At most `count` of the items, evenly spaced."""
    count = min(count, len(items))
    return [items[index * len(items) // count] for index in range(count)]


def _as_paths(paths: Sequence[str | Path] | str | Path) -> list[Path]:
    return [Path(path) for path in ([paths] if isinstance(paths, (str, os.PathLike)) else paths)]


def _images_below(folder: Path) -> list[Path]:
    def refuse(error: OSError) -> None:
        raise KeepADError(f"The folder '{error.filename}' cannot be read ({error.strerror}); check its permissions.")

    files = list(image_files(folder, refuse))
    if not files:
        raise KeepADError(f"The folder '{folder}' holds no image; put {_READABLE} files in it or name another folder.")
    return sorted(files)


_limit_lock = threading.Lock()
_limit_users = 0
_limit_saved: int | None = None


@contextmanager
def _own_size_limit() -> Iterator[None]:
    """Disables Pillow's limit on pixels in favour of `MAX_PIXELS`; thread-safe."""
    global _limit_users, _limit_saved
    with _limit_lock:
        if _limit_users == 0:
            _limit_saved, Image.MAX_IMAGE_PIXELS = Image.MAX_IMAGE_PIXELS, None
        _limit_users += 1
    try:
        yield
    finally:
        with _limit_lock:
            _limit_users -= 1
            if _limit_users == 0:
                Image.MAX_IMAGE_PIXELS = _limit_saved


def _from_file(path: Path) -> Image.Image:
    name = f"'{path}'"
    try:
        if path.is_dir():
            raise ImageError(f"{name} is a folder, not an image; name a file in it.")
        if not path.exists():
            raise ImageError(f"There is no file {name}; check the path.")
        if not path.is_file():
            raise ImageError(f"{name} is not a regular file; name an image file.")
        if path.stat().st_size == 0:
            raise ImageError(f"The file {name} is empty (0 bytes); copy or export it again.")
        file = path.open("rb")
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise ImageError(f"The file {name} cannot be opened ({reason}); check its name and permissions.") from error
    with file:
        return _from_stream(file, name, MAX_PIXELS)


def _from_stream(stream: IO[bytes], name: str, limit: int) -> Image.Image:
    with _own_size_limit():
        try:
            image = Image.open(stream, formats=_FORMATS)
        except Exception as error:  # Pillow's parsers raise exceptions of many types
            raise ImageError(f"{name} is not an image that can be read; save it as {_READABLE}.") from error
        return _from_pil(image, name, limit)


def _from_pil(image: Image.Image, name: str, limit: int = MAX_PIXELS) -> Image.Image:
    _check_size((image.height, image.width), name, limit)
    try:
        with _own_size_limit():
            image.load()
    except MemoryError as error:
        raise ImageError(f"{name} does not fit in memory; make it smaller.") from error
    except Exception as error:  # as do its decoders
        raise ImageError(f"{name} is cut off or damaged; copy or export it again.") from error
    rgb = _to_rgb(image, name)
    try:
        orientation = image.getexif().get(0x0112)
    except Exception:  # the pixels are valid without their EXIF
        orientation = None
    if orientation in _TRANSPOSES:
        rgb = rgb.transpose(_TRANSPOSES[orientation])
    # Drops the EXIF orientation, which has been applied.
    rgb.info.clear()
    return rgb


def _to_rgb(image: Image.Image, name: str) -> Image.Image:
    if image.mode == "F" or image.mode.startswith("I"):
        # Pillow would clip these at 255; 16-bit grey is I;16, I;16B or I, depending on format and version.
        return Image.fromarray(_to_uint8(_grey_values(image, name), name)).convert("RGB")
    if image.has_transparency_data:
        layer = image.convert("LA" if image.mode == "La" else "RGBA").convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", layer.size, "white"), layer).convert("RGB")
    if image.mode == "RGB" and isinstance(image, ImageFile.ImageFile) and image.width * image.height > _LARGE:
        return image  # decoded from a file that nobody else holds; a copy would double the memory
    return image.copy() if image.mode == "RGB" else image.convert("RGB")


def _grey_values(image: Image.Image, name: str) -> Array:
    values = np.asarray(image)
    if image.mode == "F":
        return values
    if values.min() < 0 or values.max() > 65535:
        raise ImageError(f"{name} holds integers outside of 0 to 65535; save it with 8 or 16 bits per channel.")
    return values.astype(np.uint16)


def _from_array(array: Array, name: str) -> Image.Image:
    channels_last = array.ndim == 3 and array.shape[2] in (1, 3, 4)
    if array.ndim == 3 and array.shape[0] in (1, 3, 4) and not channels_last:
        raise ImageError(f"{name} has its channels first; give (H, W, channels), as array.transpose(1, 2, 0) makes it.")
    if array.ndim != 2 and not channels_last:
        raise ImageError(f"{name} is not one image; give (H, W), (H, W, 1), (H, W, 3) or (H, W, 4).")
    _check_size(array.shape[:2], name)
    pixels = _to_uint8(array.astype(array.dtype.newbyteorder("="), copy=False), name)
    return _to_rgb(Image.fromarray(pixels[..., 0] if pixels.shape[2:] == (1,) else pixels), name)


def _from_tensor(tensor: Any) -> Image.Image:
    name = f"The tensor of shape {tuple(tensor.shape)}"
    if tensor.ndim == 4:
        raise ImageError(f"{name} is a batch; give its images one by one.")
    if tensor.ndim != 3 or tensor.shape[0] not in (1, 3):
        raise ImageError(f"{name} is not an image; give (1, H, W) or (3, H, W), as tensor.permute(2, 0, 1) makes it.")
    values = tensor.detach().cpu()
    values = values.float() if values.is_floating_point() else values  # NumPy has no bfloat16
    return _from_array(values.permute(1, 2, 0).numpy(), name)


def _to_uint8(values: Array, name: str) -> Array:
    """The values as uint8, scaled by the full range of their type."""
    if values.dtype == np.uint8:
        return np.ascontiguousarray(values)
    if values.dtype == np.bool_:
        return np.where(values, 255, 0).astype(np.uint8)
    if values.dtype == np.uint16:
        return ((values.astype(np.uint32) * 255 + 32767) // 65535).astype(np.uint8)
    if not np.issubdtype(values.dtype, np.floating):
        raise ImageError(f"{name} holds {values.dtype}; convert it to uint8, uint16, bool or floats in [0, 1].")
    low, high = float(values.min()), float(values.max())
    if not (np.isfinite(low) and np.isfinite(high)):
        raise ImageError(f"{name} holds NaN or infinite values; replace them by numbers in [0, 1].")
    if low < -_TOLERANCE or high > 1 + _TOLERANCE:
        raise ImageError(f"{name} holds floats from {low:.4g} to {high:.4g}; scale them to [0, 1] or give uint8.")
    return np.rint(np.clip(values.astype(np.float32), 0, 1) * 255).astype(np.uint8)


def _check_size(size: tuple[int, ...], name: str, limit: int = MAX_PIXELS) -> None:
    height, width = size
    if width == 0 or height == 0:
        raise ImageError(f"{name} has no pixels ({width} x {height}); give an image of at least 1 x 1.")
    if width * height > limit:
        raise ImageError(
            f"{name} has {width} x {height} pixels, more than the limit of {limit / 1e6:g} megapixels; "
            "make it smaller or cut it into tiles."
        )
