"""Feature cache: block outputs of a frozen backbone on disk, so that only the first epoch pays for it.

A picture is known by a digest of its pixels at input size. An augmented view is a picture like any other, a changed
file is another picture, and two data sets that hold the same image share its features.

    <folder>/<backbone>-<digest of its weights>/<first two digits>/<picture>/<layer>.npy
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
from keepad.backbone.weights import cache_folder
from keepad.dissimilarity import NEIGHBOURS, WINDOW, dissimilarity
from keepad.errors import KeepADError
from keepad.files import replacing, writable_folder

DEFAULT_LIMIT = 48 * 10**9
_SPARE = 10**9  # bytes that a cache leaves free on its disk


def features_folder() -> Path:
    """Where features are kept unless another folder is named."""
    return cache_folder() / "features"


def picture_key(pixels: Array) -> str:
    """The name of a picture: a digest of its shape and pixels."""
    digest = hashlib.blake2b(repr((pixels.shape, pixels.dtype.str)).encode(), digest_size=16)
    digest.update(np.ascontiguousarray(pixels).data)
    return digest.hexdigest()


@dataclass(frozen=True)
class CacheSize:
    """What a cache holds."""

    pictures: int
    bytes: int


class FeatureCache:
    """Block outputs of one backbone by picture and layer: CLS first, then the patches; half precision.

    Args:
        backbone: The frozen backbone.
        digest: Digest of its weights; features of other weights are other features.
        folder: Where the caches of all backbones are kept.
        limit: Bytes that this folder may hold; what was used longest ago makes room.
    """

    def __init__(self, backbone: Backbone, digest: str, folder: Path | None = None, limit: int = DEFAULT_LIMIT) -> None:
        self._backbone = backbone
        self._whole = folder or features_folder()
        self._folder = self._whole / f"{backbone.name}-{digest[:12]}"
        self._limit = limit

    def load(self, key: str, layers: Sequence[int]) -> Tensor:
        """(layers, 1 + N, C) half precision block outputs of a picture that `fill` was called for, CLS and patches."""
        rows = torch.from_numpy(np.stack([self._read(self._file(key, layer)) for layer in layers]))
        registers = self._backbone.prefix - 1
        return torch.cat([rows[:, :1], rows[:, 1 + registers :]], dim=1) if registers > 0 else rows

    def load_all(self, key: str, layer: int) -> Tensor:
        """(prefix + N, C) half precision output of a block with all prefix tokens, from which the network can go on."""
        rows = torch.from_numpy(self._read(self._file(key, layer)))
        return rows[1:] if self._backbone.prefix == 0 else rows

    def missing(self, keys: Iterable[str], layers: Sequence[int]) -> list[str]:
        """The keys, each once, whose features are not all there."""
        return [key for key in dict.fromkeys(keys) if not all(self._file(key, layer).is_file() for layer in layers)]

    def make_room(self, keys: Iterable[str], layers: Sequence[int], grid: tuple[int, int]) -> None:
        """Make sure that the features of all `keys` fit together, dropping those of other pictures where need be.

        Raises:
            KeepADError: They do not fit within the limit or on the disk.
        """
        writable_folder(self._whole)
        wanted = set(keys)
        tokens = max(1, self._backbone.prefix) + grid[0] * grid[1]
        picture = len(layers) * tokens * self._backbone.width * 2
        total = picture * len(wanted)
        if total > self._limit:
            raise KeepADError(
                f"the features of {len(wanted)} pictures need {total / 1e9:.1f} GB, more than the cache may hold "
                f"({self._limit / 1e9:.1f} GB); raise --cache-limit, or take fewer suites or views."
            )
        new = picture * len(self.missing(wanted, layers))
        others = sorted(
            (path for path in _pictures(self._whole) if path.name not in wanted or path.parents[1] != self._folder),
            key=lambda path: path.stat().st_mtime,
        )
        held = sum(_bytes(path) for path in _pictures(self._whole))
        while others and held + new > self._limit:
            held -= _bytes(others[0])
            shutil.rmtree(others.pop(0), ignore_errors=True)
        free = shutil.disk_usage(self._whole).free
        if new > free - _SPARE:
            raise KeepADError(
                f"features need {new / 1e9:.1f} GB more in {self._whole}, but only {free / 1e9:.1f} GB are free there; "
                "make room or name another folder with --cache."
            )

    @torch.inference_mode()
    def fill(self, key: str, pixels: Array, layers: Sequence[int]) -> None:
        """Compute and keep the features of a picture, (H, W, 3) uint8."""
        device = next(self._backbone.parameters()).device
        image = torch.from_numpy(pixels).to(device).permute(2, 0, 1)[None].float() / 255
        tokens, done = self._backbone.embed(image), 0
        for layer in sorted(layers):
            tokens, done = self._backbone.run(tokens, done + 1, layer), layer
            # A backbone without prefix tokens has the mean of its patches in their place.
            rows = tokens.x if tokens.prefix else torch.cat([tokens.cls(), tokens.x])
            self._write(self._file(key, layer), rows.half().cpu().numpy())

    @torch.inference_mode()
    def dissimilarity(self, key: str, layers: Sequence[int], grid: tuple[int, int]) -> Tensor:
        """(layers, N) how unlike the rest of its picture each patch is; computed from kept features, and kept."""
        rows = []
        for layer in layers:
            path = self._file(key, layer).with_suffix(f".unlike-{NEIGHBOURS}-{WINDOW}.npy")
            if not path.is_file():
                patches = self.load(key, [layer])[0, 1:].float()
                values = dissimilarity(patches, torch.arange(len(patches)), grid).numpy()
                self._write(path, values)
            rows.append(self._read(path))
        return torch.from_numpy(np.stack(rows))

    def touch(self, keys: Iterable[str]) -> None:
        """Mark pictures as used now, so that they are dropped last."""
        for key in keys:
            with contextlib.suppress(FileNotFoundError):
                os.utime(self._file(key, 0).parent)

    def _read(self, path: Path) -> Array:
        try:
            return np.load(path)
        except Exception as error:  # NumPy's parser agrees on no single exception
            raise KeepADError(
                f"the features in {path.parent} are gone or damaged; remove that folder, and the same command goes on."
            ) from error

    def _write(self, path: Path, rows: Array) -> None:
        try:
            content = io.BytesIO()  # given a file, NumPy can lose the error of a full disk
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
    """What the caches of all backbones in a folder hold."""
    pictures = list(_pictures(folder or features_folder()))
    return CacheSize(len(pictures), sum(map(_bytes, pictures)))


def clear(folder: Path | None = None) -> CacheSize:
    """Drop the features of all backbones; what was dropped. Files that are no features stay."""
    dropped = size_of(folder)
    for picture in list(_pictures(folder or features_folder())):
        shutil.rmtree(picture)
    return dropped


def _pictures(folder: Path) -> Iterable[Path]:
    """Folders of single pictures: 32 hexadecimal digits, below the first two of them."""
    return (path for path in folder.glob("*/??/*") if re.fullmatch(r"[0-9a-f]{32}", path.name) and path.is_dir())


def _bytes(picture: Path) -> int:
    total = 0
    for file in picture.iterdir():
        with contextlib.suppress(FileNotFoundError):  # another process may just be renaming it
            total += file.stat().st_size
    return total
