"""What tells weights apart: a digest of their bytes, and a fingerprint of what they compute.

Two sources of the same backbone may differ in bytes and still compute the same: a package may hold float32 where the
hub has another rounding. The digest says "equal"; the fingerprint says "how far apart".
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from keepad.arrays import Array
from keepad.backbone.vit import Backbone

_SIDE = 224  # pixels of the fixed image
_NUMBERS = 64  # of a fingerprint


def digest_of(state: Mapping[str, Tensor]) -> str:
    """SHA-256 of names, types, shapes and values of tensors, independent of the file format."""
    digest = hashlib.sha256()
    for name in sorted(state):
        tensor = state[name].detach().contiguous()
        digest.update(f"{name}:{tensor.dtype}:{tuple(tensor.shape)};".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().tobytes())  # NumPy has no bfloat16
    return digest.hexdigest()


@torch.no_grad()  # not inference mode: the backbone keeps the positions that are resampled here
def fingerprint_of(backbone: Backbone) -> tuple[float, ...]:
    """Features of a fixed image after the last block and the final norm, projected to 64 numbers.

    The features are those of the prefix tokens and the mean of the patch tokens. The projection is a fixed matrix of
    signs: it keeps relative distances to about a tenth, and every channel counts. Call it before the backbone moves to
    a GPU, whose convolutions may round.
    """
    rows, columns = backbone.patch
    image = torch.from_numpy(_image(_SIDE // rows * rows, _SIDE // columns * columns))[None]
    tokens = backbone.run(backbone.embed(image), 1, backbone.depth)
    features = backbone.norm(tokens.x).float()
    pooled = torch.cat([features[: backbone.prefix], features[backbone.prefix :].mean(0, keepdim=True)])
    values = _signs(pooled.numel()) @ pooled.flatten().cpu().numpy().astype(np.float64) / math.sqrt(pooled.numel())
    return tuple(float(f"{value:.6g}") for value in values)


def relative_difference(one: Sequence[float], other: Sequence[float]) -> float:
    """Distance of two fingerprints in units of the norm of the first."""
    norm = math.hypot(*one)
    return math.dist(one, other) / norm if len(one) == len(other) and norm else math.inf


def _image(height: int, width: int) -> Array:
    """(3, H, W) float32 in [0, 1]: a gradient in either direction, and fringes that get finer."""
    rows, columns = np.mgrid[0:height, 0:width] / _SIDE
    return np.stack([rows, columns, 0.5 + 0.5 * np.sin(40 * rows * columns)]).astype(np.float32)


def _signs(columns: int) -> Array:
    """(64, columns) of -1 and 1; from a hash function, because no library promises its random numbers for ever."""
    stream = hashlib.shake_128(b"keepad").digest(_NUMBERS * columns // 8)
    return 2.0 * np.unpackbits(np.frombuffer(stream, np.uint8)).reshape(_NUMBERS, columns) - 1.0
