"""Losses: focal and Dice on the map, cross-entropy on the CLS pathway, and three terms for the routers.

Each gives one value per image, so the caller selects the images that count.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from keepad.training.relaxation import BlockValues

_EPS = 1e-7
_PRESERVED = 0.1  # share of the tokens with the highest dense response in L_preserve
_CONTRASTED = 0.25  # share of the blocks with the highest contrast in L_teacher
_TEACHER_TEMPERATURE = 0.08


def focal(response: Tensor, target: Tensor, gamma: float = 2.0) -> Tensor:
    """Focal loss; (B, N), (B, N) in {0, 1} -> (B,)."""
    right = torch.where(target > 0, response, 1 - response).clamp(min=_EPS)
    return -((1 - right) ** gamma * right.log()).mean(1)


def dice(response: Tensor, target: Tensor) -> Tensor:
    """Dice loss with a smoothing of 1; (B, N), (B, N) in {0, 1} -> (B,)."""
    overlap = (response * target).sum(1)
    return 1 - (2 * overlap + 1) / (response.sum(1) + target.sum(1) + 1)


def label_cross_entropy(response: Tensor, label: Tensor) -> Tensor:
    """Cross-entropy of the CLS responses with the image label, mean over layers; (B, layers), (B,) -> (B,)."""
    right = torch.where(label[:, None] > 0, response, 1 - response).clamp(min=_EPS)
    return -right.log().mean(1)


def preserve_loss(presence: Tensor, dense: Tensor) -> Tensor:
    """L_preserve: -log presence of the top decile of dense responses, weighted by them; (n,), (n,) -> scalar."""
    top = dense.topk(max(1, math.ceil(_PRESERVED * len(dense))))
    return -(top.values * presence[top.indices].clamp(min=_EPS).log()).sum() / top.values.sum().clamp(min=_EPS)


def teacher_loss(presence: Tensor, dense: Tensor, blocks: BlockValues) -> Tensor | None:
    """L_teacher: cross-entropy of the shallow presences with the dense responses within blocks of high contrast.

    Args:
        presence: (N,) relaxed choice of the shallow router.
        dense: (N,) dense responses of the first head layer.
        blocks: Coverage blocks.

    Returns:
        A scalar, weighted by contrast, or None for an image without contrast.
    """
    contrast = blocks.max(dense) - blocks.mean(dense)
    last = contrast.topk(max(1, math.ceil(_CONTRASTED * blocks.count))).values[-1]
    weight = torch.where(contrast >= last, contrast, 0.0)  # ties with the last block count
    if float(weight.sum()) <= _EPS:
        return None
    target = blocks.softmax(dense / _TEACHER_TEMPERATURE)
    cross_entropy = -blocks.sum(target * presence.clamp(min=_EPS).log())
    return (weight * cross_entropy).sum() / weight.sum()


def mask_loss(presence: Tensor, defect: Tensor, blocks: BlockValues) -> Tensor | None:
    """L_mask: -log of the shallow presence on defect tokens, mean over the blocks that hold any; None without defect.

    Args:
        presence: (N,) relaxed choice of the shallow router.
        defect: (N,) bool.
        blocks: Coverage blocks.
    """
    touched = blocks.sum(defect.to(presence.dtype)) > 0
    if not bool(touched.any()):
        return None
    mass = blocks.sum(torch.where(defect, presence, 0.0))[touched]
    return -mass.clamp(_EPS, 1).log().mean()
