"""Where each reducer acts inside a pass, on top of its pure functions.

ToMe merges in every block. The others act where KeepAD's routers do: the tokens that enter the block of a router are
already fewer. EViT and ATS need no more than the block before it, in which they act around attention; Zero-TPrune drops
tokens behind it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from keepad.backbone.reducing import Heads, ReducedTokens, Reducer
from keepad.errors import KeepADError
from keepad.presets import Placement, ReducerBudget
from keepad.routing.reducers import ats, evit, tome, zerotprune


@dataclass(frozen=True)
class _Reducer:
    """A reducer that leaves a share `ratio` of the patch tokens at each of some blocks."""

    ratio: float
    layers: tuple[int, ...]
    weighted: ClassVar[bool] = False

    def target(self, live: int) -> int:
        """Tokens to leave, of `live`; at least one."""
        return min(live, max(1, round(self.ratio * live)))

    def before_attention(self, layer: int, tokens: ReducedTokens, heads: Heads) -> tuple[Tensor | None, int]:
        return None, 0

    def after_attention(self, layer: int, tokens: ReducedTokens, heads: Heads) -> tuple[ReducedTokens, int]:
        return tokens, 0

    def after_block(self, layer: int, tokens: ReducedTokens, heads: Heads) -> tuple[ReducedTokens, int]:
        return tokens, 0


class ToMe(_Reducer):
    """Merges after the attention of every block; attention to a token is proportional to its size."""

    weighted: ClassVar[bool] = True

    def after_attention(self, layer: int, tokens: ReducedTokens, heads: Heads) -> tuple[ReducedTokens, int]:
        live = len(tokens.cells)
        count = min(live - self.target(live), live // 2)
        if layer not in self.layers or count == 0:
            return tokens, 0
        matching = tome.match(heads.keys, count)
        x, size = tome.merge(tokens.patches, tokens.size, matching)
        cost = 2 * (live - live // 2) * (live // 2) * heads.keys.shape[1]
        return tokens.merged(x, size, matching.kept, matching.target), cost


class EViT(_Reducer):
    """Keeps what CLS attends to; the rest, with what was fused before, becomes one token."""

    def after_attention(self, layer: int, tokens: ReducedTokens, heads: Heads) -> tuple[ReducedTokens, int]:
        if layer not in self.layers:
            return tokens, 0
        attention = heads.attention(slice(1)).mean(0)[0]  # of CLS, (T,)
        keep = evit.choose(tokens.patch_part(attention), self.target(len(tokens.cells)))
        fused = torch.ones(len(tokens.x), dtype=torch.bool, device=keep.device)
        fused[tokens.rows(keep)] = False
        cost = 2 * heads.k.numel()
        left = tokens.gather(keep)
        if not bool(fused.any()):
            return left, cost
        return left.with_fused(evit.fuse(tokens.x[fused], attention[fused])), cost


class ATS(_Reducer):
    """Samples tokens by attention of CLS and norm of value, before their own attention is computed."""

    def before_attention(self, layer: int, tokens: ReducedTokens, heads: Heads) -> tuple[Tensor | None, int]:
        if layer not in self.layers:
            return None, 0
        attention = heads.attention(slice(1))[:, 0, tokens.prefix :]  # (heads, n)
        significance = ats.significance(attention, heads.v[tokens.prefix :].transpose(0, 1))
        return ats.sample(significance, self.target(len(tokens.cells))), 4 * heads.k.numel()


class ZeroTPrune(_Reducer):
    """Drops unimportant tokens and then similar ones behind a block, in equal shares as far as that goes."""

    def after_block(self, layer: int, tokens: ReducedTokens, heads: Heads) -> tuple[ReducedTokens, int]:
        if layer not in self.layers:
            return tokens, 0
        live, (count, number, width) = len(tokens.cells), heads.q.shape
        importance = tokens.patch_part(zerotprune.combine(zerotprune.page_rank(heads.attention())))
        # Half of the tokens can be similar at most; importance takes the rest.
        first = min(live, 2 * self.target(live), max(1, round(math.sqrt(self.ratio) * live)))
        important = zerotprune.most_important(importance, first)
        drop = min(first - self.target(live), first // 2)
        stays = zerotprune.drop_similar(heads.keys[important], importance[important], max(0, drop))
        similar = 2 * (first - first // 2) * (first // 2) * width
        cost = 2 * number * count**2 * (width + zerotprune.ITERATIONS) + similar
        return tokens.gather(important[stays]), cost


METHODS: dict[str, type[_Reducer]] = {"tome": ToMe, "evit": EViT, "ats": ATS, "zerotprune": ZeroTPrune}


def reducer_of(budget: ReducerBudget, placement: Placement, last: int, prefix: int, name: str) -> Reducer:
    """The reducer of an operating point.

    Args:
        budget: Method and share of tokens.
        placement: Blocks of KeepAD's routers.
        last: Last block of the pass.
        prefix: Tokens before the patches; EViT and ATS need a CLS token.
        name: Of the operating point, for messages.

    Raises:
        KeepADError: The point was not given a budget, or the backbone has no CLS token for the method.
    """
    if not budget.ratio:
        raise KeepADError(
            f"{name} has the FLOPs of {budget.namesake}, which depend on the images: keepad evaluate, benchmark and "
            "reproduce count them first, and no other command runs it."
        )
    if budget.method in ("evit", "ats") and prefix == 0:
        raise KeepADError(f"{name} ranks tokens by the attention of CLS, which this backbone does not have.")
    before = (max(1, placement.shallow - 1), max(1, placement.deep - 1))
    layers = tuple(range(1, last + 1)) if budget.method == "tome" else before
    return METHODS[budget.method](budget.ratio, layers)
