"""Attention of a block on live tokens: inside each image, and to the context of dropped ones."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from timm.layers.pos_embed_sincos import apply_rot_embed_cat
from torch import Tensor

from keepad.context import Context
from keepad.tokens import Tokens


def attend(attn: Any, x: Tensor, tokens: Tokens, rope: Tensor | None, bias: Tensor | None) -> Tensor:
    """Self-attention of (T, C) normalised tokens inside each image; bias: (T,) added to the logits of each key."""
    q, k, v = rotate(attn, *project(attn, x), rope)
    if tokens.uniform:
        out = uniform_attention(q, k, v, tokens.images, bias, attn.scale)
    else:
        lengths = list(tokens.lengths)
        biases = [None] * len(lengths) if bias is None else torch.split(bias, lengths)
        images = zip(*(torch.split(part, lengths) for part in (q, k, v)), biases, strict=True)
        out = torch.cat([uniform_attention(q_b, k_b, v_b, 1, bias_b, attn.scale) for q_b, k_b, v_b, bias_b in images])
    return finish_attention(attn, x, out)


def attend_with_context(attn: Any, rows: Tensor, context: Context, rope: Tensor | None, bias: Tensor | None) -> Tensor:
    """Attention of one image's live tokens to themselves and to its context, from (T + m, C) normalised rows of both.

    Args:
        attn: Attention of a block.
        rows: Live tokens, then dropped ones.
        context: The latter.
        rope: Rotary table of the live tokens, or None.
        bias: (T,) added to the logits of each live key, or None.
    """
    live = rows.shape[-2] - context.x.shape[0]  # len() would become a constant of an exported graph
    table = None if rope is None or context.rope is None else torch.cat([rope, context.rope], dim=-2)
    q, k, v = rotate(attn, *project(attn, rows, live), rope, table)
    bias = rows.new_zeros(live) if bias is None else bias
    weights = torch.cat([bias, context.size.to(bias).log()])
    out = uniform_attention(q, k, v, 1, weights, attn.scale)
    return finish_attention(attn, rows[..., :live, :], out)


def rotate(
    attn: Any, q: Tensor, k: Tensor, v: Tensor, rope: Tensor | None, of_keys: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values of all heads, each (T, heads, D), with the rotary table applied to the first two.

    Args:
        attn: Attention of a block.
        q: Queries.
        k: Keys.
        v: Values.
        rope: Rotary table, or None.
        of_keys: That of the keys, where there are more of them than queries.
    """
    if rope is not None:
        half = getattr(attn, "rotate_half", False)
        q = apply_rot_embed_cat(q, _table_of_heads(rope), half=half).type_as(v)
        k = apply_rot_embed_cat(k, _table_of_heads(rope if of_keys is None else of_keys), half=half).type_as(v)
    if k.shape[1] != q.shape[1]:
        groups = q.shape[1] // k.shape[1]
        k, v = k.repeat_interleave(groups, dim=1), v.repeat_interleave(groups, dim=1)
    return q, k, v


def _table_of_heads(rope: Tensor) -> Tensor:
    """Rotary table of (T, heads, D): (T, D) is shared by all heads, (heads, T, D) is learned for each."""
    return rope[:, None] if rope.ndim == 2 else rope.transpose(0, 1)


def finish_attention(attn: Any, x: Tensor, out: Tensor) -> Tensor:
    """Output projection of mixed values, (T, heads * D) -> (T, C); x: (T, C) normalised tokens, which gates see."""
    out = attn.norm(out)
    gate = getattr(attn, "gate", None)
    if gate is not None:
        out = out * gate(x).sigmoid()
    projected: Tensor = attn.proj(out)
    return projected


def project(attn: Any, x: Tensor, queries: int | None = None) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values of (T, C) tokens, each (T, heads, D); keys and values may have fewer heads.

    Args:
        attn: Attention of a block.
        x: The tokens.
        queries: Only the first so many have queries; all if None.
    """
    asking = x if queries is None else x[..., :queries, :]
    if attn.qkv is None:
        projections = ((attn.q_proj, asking), (attn.k_proj, x), (attn.v_proj, x))
        q, k, v = (proj(rows).flatten(0, -2).unflatten(-1, (-1, attn.head_dim)) for proj, rows in projections)
        return attn.q_norm(q), attn.k_norm(k), v
    if queries is not None:
        return _project_some(attn, asking, x)
    if getattr(attn, "q_bias", None) is None:
        qkv = attn.qkv(x)
    else:
        bias = torch.cat((attn.q_bias, attn.k_bias, attn.v_bias))
        qkv = F.linear(x, attn.qkv.weight, bias)
    q, k, v = qkv.flatten(0, -2).unflatten(-1, (3, attn.num_heads, -1)).unbind(1)
    return attn.q_norm(q), attn.k_norm(k), v


def _project_some(attn: Any, asking: Tensor, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """`project` with a joint layer, whose part for queries runs on the rows of `asking` only."""
    bias = attn.qkv.bias
    if getattr(attn, "q_bias", None) is not None:
        bias = torch.cat((attn.q_bias, attn.k_bias, attn.v_bias))
    cut = attn.qkv.weight.shape[0] // 3
    own, rest = (None, None) if bias is None else (bias[:cut], bias[cut:])
    q = F.linear(asking, attn.qkv.weight[:cut], own).flatten(0, -2).unflatten(-1, (attn.num_heads, -1))
    kv = F.linear(x, attn.qkv.weight[cut:], rest).flatten(0, -2).unflatten(-1, (2, attn.num_heads, -1))
    k, v = kv.unbind(1)
    return attn.q_norm(q), attn.k_norm(k), v


def uniform_attention(q: Tensor, k: Tensor, v: Tensor, images: int, bias: Tensor | None, scale: float) -> Tensor:
    """(T, heads, D) of equally long images -> (T, heads * D); bias: (T,) added to the scaled logits of each key."""
    q, k, v = (torch.unflatten(part, 0, (images, -1)).transpose(1, 2) for part in (q, k, v))
    mask = None if bias is None else bias.view(images, 1, 1, -1).to(q.dtype)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scale).transpose(1, 2).flatten(2).flatten(0, 1)
