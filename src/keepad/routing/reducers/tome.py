"""ToMe (Bolya et al., ICLR 2023): bipartite soft matching on keys, then size-weighted merging."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor


@dataclass(frozen=True)
class Matching:
    """Which tokens of one image merge into which.

    Attributes:
        kept: (n - r,) positions of the tokens that stay, ascending.
        target: (n,) position in `kept` of the token that each token is part of afterwards.
    """

    kept: Tensor
    target: Tensor


def match(keys: Tensor, count: int) -> Matching:
    """The `count` most similar pairs of tokens; of each, the one at an even position merges into the other.

    Tokens at even positions each propose their most similar token at an odd position (cosine of the keys), and the best
    proposals are accepted. Ties: lower position.

    Args:
        keys: (n, D) keys of the live tokens, averaged over the heads.
        count: Pairs that merge; at most one for each even position, that is half of the tokens.
    """
    n, device = len(keys), keys.device
    position = torch.arange(n, device=device)
    if count <= 0 or n < 2:
        return Matching(position, position)
    unit = F.normalize(keys, dim=-1)
    similarity, partner = (unit[0::2] @ unit[1::2].T).max(1)
    merged = similarity.argsort(descending=True, stable=True)[:count] * 2
    stays = torch.ones(n, dtype=torch.bool, device=device)
    stays[merged] = False
    into = position.clone()
    into[merged] = partner[merged // 2] * 2 + 1
    return Matching(stays.nonzero().squeeze(1), (stays.cumsum(0) - 1)[into])


def merge(values: Tensor, size: Tensor, matching: Matching) -> tuple[Tensor, Tensor]:
    """Size-weighted means of merged tokens, (n, C) -> (n - r, C), and their sizes, (n,) -> (n - r,)."""
    total = size.new_zeros(len(matching.kept)).index_add(0, matching.target, size)
    summed = values.new_zeros(len(matching.kept), values.shape[1])
    summed = summed.index_add(0, matching.target, values * size[:, None].to(values.dtype))
    return summed / total[:, None].to(values.dtype), total
