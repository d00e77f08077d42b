"""Zero-TPrune (Wang et al., CVPR 2024): weighted PageRank on the attention graph, then pruning of similar tokens."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

ITERATIONS = 50
_CONVERGED = 1e-6  # largest change of a score whose mean is one
_LEAST_VARIANCE, _LARGEST_VARIANCE = 0.01, 0.7  # of a head that counts, as published


def page_rank(attention: Tensor, iterations: int = ITERATIONS) -> Tensor:
    """Importance of each token by each head: the fixed point of s = A^T s with mean one; (H, n, n) -> (H, n).

    A token is important if important tokens attend to it. Rows of `attention` sum to one, so the sum is preserved.
    """
    scores = attention.new_ones(attention.shape[:2])
    for _ in range(iterations):
        passed = (scores[:, None] @ attention).squeeze(1)
        done = bool((passed - scores).abs().max() < _CONVERGED)
        scores = passed
        if done:
            break
    return scores


def combine(scores: Tensor) -> Tensor:
    """Root mean square over the heads that tell tokens apart, (H, n) -> (n,); over all if none does.

    A head counts if the variance of its scores lies between two limits: below the first it ranks nothing, above the
    second it looks at a few tokens only.
    """
    variance = scores.var(-1, correction=0)
    counts = (variance >= _LEAST_VARIANCE) & (variance <= _LARGEST_VARIANCE)
    chosen = scores[counts] if bool(counts.any()) else scores
    return chosen.square().mean(0).sqrt()


def most_important(importance: Tensor, count: int) -> Tensor:
    """Positions of the `count` most important tokens, ascending; (n,) -> (count,). Ties: lower position."""
    best: Tensor = importance.argsort(descending=True, stable=True)[:count]
    return best.sort().values


def drop_similar(keys: Tensor, importance: Tensor, count: int) -> Tensor:
    """Positions that stay after dropping the `count` tokens most similar to a more important one, ascending.

    The less important half of the tokens is compared, by the cosine of keys, with the more important half; at most the
    former can be dropped.

    Args:
        keys: (n, D) keys, averaged over the heads.
        importance: (n,)
        count: Tokens to drop.
    """
    order = importance.argsort(descending=True, stable=True)
    half = len(order) - len(order) // 2
    unit = F.normalize(keys, dim=-1)
    redundancy = (unit[order[half:]] @ unit[order[:half]].T).amax(1)
    dropped = order[half:][redundancy.argsort(descending=True, stable=True)[:count]]
    stays = torch.ones(len(keys), dtype=torch.bool, device=keys.device)
    stays[dropped] = False
    return stays.nonzero().squeeze(1)
