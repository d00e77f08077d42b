"""Losses: focal and Dice on the map and cross-entropy on the CLS pathway for the dense detector, four more for routers.

Each gives one value an image, so that the caller decides which images count.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from keepad.training.relaxation import BlockValues

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


# -- stage 2: what selectors are told; one value an image, None where an image has nothing to say ---------------------


def preserve(presence: Tensor, dense: Tensor, share: float = 0.1) -> Tensor:
    """Tokens that the dense detector responds to most shall not go; (n,) presences and dense responses -> scalar."""
    top = dense.topk(max(1, math.ceil(share * len(dense))))
    return -(top.values * presence[top.indices].clamp(min=_TINY).log()).sum() / top.values.sum().clamp(min=_TINY)


def teach(
    presence: Tensor, dense: Tensor, blocks: BlockValues, *, share: float = 0.25, temperature: float = 0.08
) -> Tensor | None:
    """Within blocks, the shallow router shall keep what the dense detector will respond to.

    Args:
        presence: (N,) relaxed choice of the shallow router.
        dense: (N,) dense responses of the layer that the deep router stands before.
        blocks: Coverage blocks.
        share: Blocks of the highest contrast that count, with all that tie with the last of them.
        temperature: Of the softmax that turns responses into a distribution.

    Returns:
        Cross-entropy weighted by contrast, or None for an image without any.
    """
    contrast = blocks.max(dense) - blocks.mean(dense)
    last = contrast.topk(max(1, math.ceil(share * blocks.count))).values[-1]
    weight = torch.where(contrast >= last, contrast, 0.0)
    if float(weight.sum()) <= _TINY:
        return None
    wanted = blocks.softmax(dense / temperature)
    each = -blocks.sum(wanted * presence.clamp(min=_TINY).log())
    return (weight * each).sum() / weight.sum()


def cover(presence: Tensor, defect: Tensor, blocks: BlockValues) -> Tensor | None:
    """In blocks that a defect touches, the place shall go to it; (N,) presences, (N,) bool -> mean over such blocks."""
    touched = blocks.sum(defect.to(presence.dtype)) > 0
    if not bool(touched.any()):
        return None
    mass = blocks.sum(torch.where(defect, presence, 0.0))[touched]
    return -mass.clamp(_TINY, 1).log().mean()
