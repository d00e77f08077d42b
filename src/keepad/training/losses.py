"""Losses of the dense detector: focal and Dice on the map, cross-entropy on the CLS pathway.

Each gives one value an image, so that the caller decides which images count.
"""

from __future__ import annotations

import torch
from torch import Tensor

_TINY = 1e-7  # so small that only a response without any gradient left is clamped


def focal(response: Tensor, target: Tensor, gamma: float = 2.0) -> Tensor:
    """Cross-entropy that listens to what is still wrong; (B, N), (B, N) in {0, 1} -> (B,)."""
    right = torch.where(target > 0, response, 1 - response).clamp(min=_TINY)
    return -((1 - right) ** gamma * right.log()).mean(1)


def dice(response: Tensor, target: Tensor) -> Tensor:
    """One minus the overlap of map and mask, which small defects weigh in as much as large ones; (B, N) -> (B,)."""
    overlap = (response * target).sum(1)
    return 1 - (2 * overlap + 1) / (response.sum(1) + target.sum(1) + 1)


def label_entropy(response: Tensor, label: Tensor) -> Tensor:
    """Cross-entropy of the CLS responses with the image label, mean over layers; (B, layers), (B,) -> (B,)."""
    right = torch.where(label[:, None] > 0, response, 1 - response).clamp(min=_TINY)
    return -right.log().mean(1)
