"""Blocks that shorten the sequence of one image while they run, as the reducers of other works do."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
from torch import Tensor

from keepad.backbone.attention import finish_attention, project, rotate, uniform_attention
from keepad.backbone.vit import POST_NORM, Backbone, in_chunks, run_mlp, scale_branch
from keepad.tokens import Tokens


@dataclass(frozen=True)
class ReducedTokens:
    """The tokens of one image: prefix, patches, and one fused token at the end if there is any.

    Attributes:
        x: (T, C) features.
        cells: (n,) grid index that each patch token grew from, ascending.
        size: (n,) cells of each patch token.
        token: (N,) position of the patch token of each cell; -1 where the token was dropped.
        prefix: Tokens before the patches.
        rope: Rotary table, (T, D) or (depth, heads, T, D), or None.
        fused: Whether the last row is a token that stands for dropped ones and belongs to no cell.
    """

    x: Tensor
    cells: Tensor
    size: Tensor
    token: Tensor
    prefix: int
    rope: Tensor | None = None
    fused: bool = False

    @staticmethod
    def whole(tokens: Tokens) -> ReducedTokens:
        """All tokens of one image, one per cell."""
        cells = tokens.index
        return ReducedTokens(tokens.x, cells, tokens.x.new_ones(len(cells)), cells, tokens.prefix, tokens.rope)

    @property
    def patches(self) -> Tensor:
        """(n, C) features of the patch tokens."""
        return self.x[self.prefix : self.prefix + len(self.cells)]

    def patch_part(self, values: Tensor) -> Tensor:
        """The rows of the patch tokens, of any tensor laid out like `x`."""
        return values[self.prefix : self.prefix + len(self.cells)]

    def rows(self, keep: Tensor) -> Tensor:
        """Rows of `x` of the prefix and of the patch tokens at `keep`; the fused token is left out."""
        return torch.cat([torch.arange(self.prefix, device=keep.device), keep + self.prefix])

    def gather(self, keep: Tensor) -> ReducedTokens:
        """The patch tokens at `keep` alone, ascending positions; cells of the others have no token."""
        renumbered = torch.full_like(self.cells, -1)
        renumbered[keep] = torch.arange(len(keep), device=keep.device)
        return self._at(self.rows(keep), self.cells[keep], self.size[keep], self._renumbered(renumbered))

    def merged(self, x: Tensor, size: Tensor, kept: Tensor, target: Tensor) -> ReducedTokens:
        """The patch tokens after merging.

        Args:
            x: (k, C) their features.
            size: (k,) their cells.
            kept: (k,) positions of the tokens that they grew from.
            target: (n,) which of them each present token is part of.
        """
        state = self._at(self.rows(kept), self.cells[kept], size, self._renumbered(target))
        return replace(state, x=torch.cat([state.x[: self.prefix], x]))

    def with_fused(self, row: Tensor) -> ReducedTokens:
        """The tokens with one more, (1, C), that belongs to no cell; it has no position either."""
        rope = self.rope
        if rope is not None:  # the prefix is not rotated
            rope = torch.cat([rope, rope[..., :1, :]], dim=-2)
        return replace(self, x=torch.cat([self.x, row]), rope=rope, fused=True)

    def _renumbered(self, position: Tensor) -> Tensor:
        """(N,) token of each cell after its token has moved to `position`."""
        return torch.where(self.token >= 0, position[self.token.clamp(min=0)], -1)

    def _at(self, rows: Tensor, cells: Tensor, size: Tensor, token: Tensor) -> ReducedTokens:
        rope = None if self.rope is None else self.rope[..., rows, :]
        return ReducedTokens(self.x[rows], cells, size, token, self.prefix, rope)


@dataclass(frozen=True)
class Heads:
    """What the attention of one block sees.

    Attributes:
        q: (T, heads, D) queries.
        k: (T, heads, D) keys.
        v: (T, heads, D) values.
        keys: (n, D) keys of the patch tokens before any rotation, mean over the heads.
        scale: Of the logits.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    keys: Tensor
    scale: float

    def attention(self, row: slice = slice(None)) -> Tensor:
        """(heads, rows, T) attention of some rows to all tokens."""
        logits = torch.einsum("ihd,jhd->hij", self.q[row], self.k) * self.scale
        return logits.softmax(-1)


@dataclass(frozen=True)
class BlockWork:
    """What one block computed for one image.

    Attributes:
        keys: Tokens with queries, keys and values.
        queries: Tokens whose attention was mixed and projected.
        rows: Tokens that went through the MLP.
        selection: FLOPs of the reducer.
    """

    keys: int
    queries: int
    rows: int
    selection: int = 0


class Reducer(Protocol):
    """Shortens the sequence of one image at up to three places of a block; gives the tokens and its own FLOPs."""

    @property
    def weighted(self) -> bool:
        """Whether attention to a token is proportional to its size."""

    def before_attention(self, layer: int, tokens: ReducedTokens, heads: Heads) -> tuple[Tensor | None, int]:
        """Positions of the patch tokens whose attention is computed at all, or None for all of them."""

    def after_attention(self, layer: int, tokens: ReducedTokens, heads: Heads) -> tuple[ReducedTokens, int]:
        """The tokens that go through the MLP."""

    def after_block(self, layer: int, tokens: ReducedTokens, heads: Heads) -> tuple[ReducedTokens, int]:
        """The tokens that enter the next block."""


def run_reducing(
    backbone: Backbone, tokens: ReducedTokens, layer: int, reducer: Reducer
) -> tuple[ReducedTokens, BlockWork]:
    """The tokens after block `layer`, counted from 1, and what it computed."""
    block = backbone.vit.blocks[layer - 1]
    normed = tokens.x if isinstance(block, POST_NORM) else block.norm1(tokens.x)
    heads = _heads(block.attn, normed, tokens, layer)
    bias = None
    if reducer.weighted:
        ones = tokens.size.new_ones
        bias = torch.cat([ones(tokens.prefix), tokens.size, ones(int(tokens.fused))]).log()
    keep, chosen = reducer.before_attention(layer, tokens, heads)
    count = len(tokens.x)
    if keep is None:
        mixed = uniform_attention(heads.q, heads.k, heads.v, 1, bias, heads.scale)
    else:
        rows = tokens.rows(keep)
        mixed = _attention(heads.q[rows], heads.k, heads.v, bias, heads.scale)
        tokens, normed = tokens.gather(keep), normed[rows]
    branch = finish_attention(block.attn, normed, mixed)
    after = block.norm1(branch) if isinstance(block, POST_NORM) else scale_branch(block, 1, branch)
    queries = len(tokens.x)
    tokens, merged = reducer.after_attention(layer, replace(tokens, x=tokens.x + after), heads)
    x = in_chunks(lambda part: part + _mlp_branch(block, part), tokens.x)
    rows_done = len(x)
    tokens, dropped = reducer.after_block(layer, replace(tokens, x=x), heads)
    return tokens, BlockWork(count, queries, rows_done, chosen + merged + dropped)


def _heads(attn: Any, normed: Tensor, tokens: ReducedTokens, layer: int) -> Heads:
    q, k, v = project(attn, normed)
    keys = tokens.patch_part(k).mean(1)
    rope = tokens.rope if tokens.rope is None or tokens.rope.ndim == 2 else tokens.rope[layer - 1]
    return Heads(*rotate(attn, q, k, v, rope), keys=keys, scale=attn.scale)


def _mlp_branch(block: Any, x: Tensor) -> Tensor:
    if isinstance(block, POST_NORM):
        after: Tensor = block.norm2(run_mlp(block.mlp, x))
        return after
    return scale_branch(block, 2, run_mlp(block.mlp, block.norm2(x)))


def _attention(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, scale: float) -> Tensor:
    """(m, heads, D) queries on (T, heads, D) keys and values -> (m, heads * D)."""
    q, k, v = (part.transpose(0, 1)[None] for part in (q, k, v))
    mask = None if bias is None else bias.to(q.dtype)[None, None, None]
    mixed = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scale)
    return mixed[0].transpose(0, 1).flatten(1)
