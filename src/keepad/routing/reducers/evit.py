"""EViT (Liang et al., ICLR 2022): tokens that CLS attends to stay, the rest become one token."""

from __future__ import annotations

import torch
from torch import Tensor


def choose(attention: Tensor, count: int) -> Tensor:
    """Positions of the `count` tokens with the most attention of CLS, ascending; (n,) -> (count,). Ties: lower one."""
    best: Tensor = attention.argsort(descending=True, stable=True)[:count]
    return best.sort().values


def fuse(values: Tensor, attention: Tensor) -> Tensor:
    """Attention-weighted mean of the tokens that do not stay, (m, C), (m,) -> (1, C).

    The paper sums; its backbones are trained with that. In a frozen backbone a mean keeps the token at the norm of its
    parts.
    """
    weight = attention / attention.sum().clamp(min=torch.finfo(attention.dtype).tiny)
    return (weight.to(values.dtype) @ values)[None]
