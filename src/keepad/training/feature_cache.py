"""Feature cache: block outputs of a frozen backbone on disk, so that only the first epoch computes them.

The key of an image is a digest of its pixels at input size: augmented views have keys of their own, and data sets that
hold the same image share its features.

    <folder>/<backbone>-<digest of its weights>/<first two digits>/<key>/<layer>.npy
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import re
import shutil
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from keepad.arrays import Array
from keepad.backbone import Backbone
from keepad.dissimilarity import NEIGHBOURS, WINDOW, dissimilarity
from keepad.errors import KeepADError
from keepad.files import cache_folder, replacing, writable_folder

DEFAULT_LIMIT = 48 * 10**9
_SPARE = 10**9  # bytes that a cache leaves free on its disk


def features_folder() -> Path:
    """Default folder of the feature cache."""
    return cache_folder() / "features"


def image_key(pixels: Array) -> str:
    """Key of an image: a digest of its shape, dtype and pixels."""
    digest = hashlib.blake2b(repr((pixels.shape, pixels.dtype.str)).encode(), digest_size=16)
    digest.update(np.ascontiguousarray(pixels).data)
    return digest.hexdigest()


@dataclass(frozen=True)
class CacheSize:
    """Images and bytes in a cache."""

    images: int
    bytes: int


class FeatureCache:
    """Block outputs of one backbone by image and layer: CLS first, then the patches; half precision.

    Args:
        backbone: The frozen backbone.
        digest: Digest of its weights.
        folder: Folder shared by the caches of all backbones; the user's own if None.
        limit: Bytes that this folder may hold; the least recently used images are dropped first.
    """

    def __init__(self, backbone: Backbone, digest: str, folder: Path | None = None, limit: int = DEFAULT_LIMIT) -> None:
        self.backbone, self.digest = backbone, digest
        self._root = folder or features_folder()
        self._folder = self._root / f"{backbone.name}-{digest[:12]}"
        self._limit = limit

    def load(self, key: str, layers: Sequence[int]) -> Tensor:
        """(layers, 1 + N, C) half-precision block outputs of a cached image, CLS and patches."""
        rows = torch.from_numpy(np.stack([self._read(self._file(key, layer)) for layer in layers]))
        registers = self.backbone.prefix - 1
        return torch.cat([rows[:, :1], rows[:, 1 + registers :]], dim=1) if registers > 0 else rows

    def load_all(self, key: str, layer: int) -> Tensor:
        """(prefix + N, C) half-precision output of a block with all prefix tokens, as input of the next block."""
        rows = torch.from_numpy(self._read(self._file(key, layer)))
        return rows[1:] if self.backbone.prefix == 0 else rows

    def missing(self, keys: Iterable[str], layers: Sequence[int]) -> list[str]:
        """The distinct keys of which any layer is not cached."""
        return [key for key in dict.fromkeys(keys) if not all(self._file(key, layer).is_file() for layer in layers)]

    def make_room(self, keys: Iterable[str], layers: Sequence[int], grid: tuple[int, int]) -> None:
        """Drop features of other images until those of all `keys` fit.

        Raises:
            KeepADError: They do not fit within the limit or on the disk.
        """
        writable_folder(self._root)
        wanted = set(keys)
        tokens = max(1, self.backbone.prefix) + grid[0] * grid[1]
        per_image = len(layers) * tokens * self.backbone.width * 2
        total = per_image * len(wanted)
        if total > self._limit:
            raise KeepADError(
                f"the features of {len(wanted)} images need {total / 1e9:.1f} GB, more than the cache may hold "
                f"({self._limit / 1e9:.1f} GB); raise --cache-limit, or take fewer suites or views."
            )
        new = per_image * len(self.missing(wanted, layers))
        others = sorted(
            (path for path in _image_folders(self._root) if path.name not in wanted or path.parents[1] != self._folder),
            key=lambda path: path.stat().st_mtime,
        )
        held = sum(_bytes(path) for path in _image_folders(self._root))
        while others and held + new > self._limit:
            held -= _bytes(others[0])
            shutil.rmtree(others.pop(0), ignore_errors=True)
        free = shutil.disk_usage(self._root).free
        if new > free - _SPARE:
            raise KeepADError(
                f"features need {new / 1e9:.1f} GB more in {self._root}, but only {free / 1e9:.1f} GB are free there; "
                "make room or name another folder with --cache."
            )

    @torch.inference_mode()
    def add(self, key: str, pixels: Array, layers: Sequence[int]) -> None:
        """Compute and store the features of an image, (H, W, 3) uint8."""
        device = next(self.backbone.parameters()).device
        image = torch.from_numpy(pixels).to(device).permute(2, 0, 1)[None].float() / 255
        tokens, done = self.backbone.embed(image), 0
        for layer in sorted(layers):
            tokens, done = self.backbone.run(tokens, done + 1, layer), layer
            # Without prefix tokens, the mean of the patches stands in for CLS.
            rows = tokens.x if tokens.prefix else torch.cat([tokens.cls(), tokens.x])
            self._write(self._file(key, layer), rows.half().cpu().numpy())

    @torch.inference_mode()
    def dissimilarity(self, key: str, layers: Sequence[int], grid: tuple[int, int]) -> Tensor:
        """(layers, N) dissimilarity of the patches, computed from cached features on first use and stored."""
        rows = []
        for layer in layers:
            # "unlike" is the file name in existing caches.
            path = self._file(key, layer).with_suffix(f".unlike-{NEIGHBOURS}-{WINDOW}.npy")
            if not path.is_file():
                patches = self.load(key, [layer])[0, 1:].float()
                values = dissimilarity(patches, torch.arange(len(patches)), grid).numpy()
                self._write(path, values)
            rows.append(self._read(path))
        return torch.from_numpy(np.stack(rows))

    def touch(self, keys: Iterable[str]) -> None:
        """Mark images as used now, so that they are dropped last."""
        for key in keys:
            with contextlib.suppress(FileNotFoundError):
                os.utime(self._file(key, 0).parent)

    def _read(self, path: Path) -> Array:
        try:
            rows: Array = np.load(path)
            return rows
        except Exception as error:  # NumPy raises many types for a damaged file
            raise KeepADError(
                f"the features in {path.parent} are gone or damaged; remove that folder, and the same command goes on."
            ) from error

    def _write(self, path: Path, rows: Array) -> None:
        try:
            content = io.BytesIO()  # np.save to a file can swallow the error of a full disk
            np.save(content, rows)
            with replacing(path, durable=False) as partial:
                partial.write_bytes(content.getvalue())
        except OSError as error:
            raise KeepADError(
                f"features could not be written to {self._folder}: {error.strerror or error}; what is there is kept, "
                "and the same command goes on."
            ) from error

    def _file(self, key: str, layer: int) -> Path:
        return self._folder / key[:2] / key / f"{layer:02d}.npy"


def size_of(folder: Path | None = None) -> CacheSize:
    """Size of the caches of all backbones in a folder."""
    images = list(_image_folders(folder or features_folder()))
    return CacheSize(len(images), sum(map(_bytes, images)))


def clear(folder: Path | None = None) -> CacheSize:
    """Drop the features of all backbones and return their size; other files stay."""
    dropped = size_of(folder)
    for image in list(_image_folders(folder or features_folder())):
        shutil.rmtree(image)
    return dropped


def _image_folders(folder: Path) -> Iterable[Path]:
    """Folders of single images: 32 hexadecimal digits, below the first two of them."""
    return (path for path in folder.glob("*/??/*") if re.fullmatch(r"[0-9a-f]{32}", path.name) and path.is_dir())


def _bytes(image: Path) -> int:
    total = 0
    for file in image.iterdir():
        with contextlib.suppress(FileNotFoundError):  # another process may be renaming it
            total += file.stat().st_size
    return total
