"""ATS (Fayyaz et al., ECCV 2022): tokens sampled from the distribution of their significance, at fixed quantiles."""

from __future__ import annotations

import torch
from torch import Tensor


def significance(attention: Tensor, values: Tensor) -> Tensor:
    """Attention of CLS times the norm of the value, summing to one; (H, n), (H, n, D) -> (n,), mean over heads."""
    scores = attention * values.norm(dim=-1)
    mean: Tensor = (scores / scores.sum(-1, keepdim=True)).mean(0)
    return mean


def sample(significance: Tensor, count: int) -> Tensor:
    """Distinct positions at which the cumulative significance reaches `count` fixed quantiles, ascending.

    The quantiles are (2 k - 1) / (2 count). A token that holds several of them is taken once, so that images whose
    significance is concentrated keep fewer tokens.
    """
    cumulative = significance.double().cumsum(0)
    quantiles = (torch.arange(count, dtype=torch.float64, device=significance.device) + 0.5) / count
    position = torch.searchsorted(cumulative, quantiles * cumulative[-1])
    distinct: Tensor = position.clamp(max=len(significance) - 1).unique()
    return distinct
