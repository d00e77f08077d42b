"""Folding: element-wise constants of a network multiplied into the weights of the linear layers beside them.

Normalisation of pixels, LayerScale, the affine part of norms and the scale of attention each cost an engine a pass over
the tokens. What the network computes does not change.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from timm.layers.attention import Attention
from timm.layers.mlp import Mlp
from timm.models.vision_transformer import Block
from torch import Tensor, nn

from keepad.backbone import Backbone
from keepad.network import Network


@torch.no_grad()
def folded(network: Network) -> Network:
    """A copy of the network that computes the same with fewer operations; blocks other than plain ones stay."""
    network = copy.deepcopy(network)
    _fold_normalisation(network.backbone)
    for block in network.backbone.vit.blocks:
        if type(block) is Block and type(block.attn) is Attention and type(block.mlp) is Mlp:
            _fold_block(block)
    return network


def _fold_normalisation(backbone: Backbone) -> None:
    """Let the patch projection take pixels in 0..255, which fit in uint8."""
    projection = backbone.vit.patch_embed.proj
    mean, std = (torch.tensor(values, dtype=torch.float64).view(3, 1, 1) for values in (backbone.mean, backbone.std))
    weight = projection.weight.double() / std
    offset = -(weight * mean).sum((1, 2, 3))
    bias = offset if projection.bias is None else projection.bias.double() + offset
    projection.weight.copy_(weight / 255)
    projection.bias = nn.Parameter(bias.to(projection.weight.dtype), requires_grad=False)
    backbone.normalises = True


def _fold_block(block: Any) -> None:
    attn, mlp = block.attn, block.mlp
    if attn.gate is None:  # the input of a gate is normalised too
        block.norm1 = _fold_norm(block.norm1, attn.qkv)
    block.norm2 = _fold_norm(block.norm2, mlp.fc1)
    block.ls1 = _fold_scale(block.ls1, attn.proj)
    block.ls2 = _fold_scale(block.ls2, mlp.fc2)
    projections = _split(attn.qkv)
    if isinstance(attn.q_norm, nn.Identity) and isinstance(attn.k_norm, nn.Identity):
        _scale_rows(projections[0], torch.tensor(attn.scale))
        attn.scale = 1.0
    attn.q_proj, attn.k_proj, attn.v_proj = projections
    attn.qkv = None


def _fold_norm(norm: nn.Module, linear: nn.Linear) -> nn.Module:
    """The norm without its affine part, which is folded into the linear layer behind it."""
    if not isinstance(norm, nn.LayerNorm) or norm.weight is None:
        return norm
    if norm.bias is not None:
        offset = linear.weight @ norm.bias
        linear.bias = nn.Parameter(offset if linear.bias is None else linear.bias + offset, requires_grad=False)
    linear.weight.mul_(norm.weight)
    return nn.LayerNorm(norm.normalized_shape, eps=norm.eps, elementwise_affine=False)


def _fold_scale(scale: nn.Module, linear: nn.Linear) -> nn.Module:
    """The identity; the LayerScale is folded into the linear layer before it."""
    gamma = getattr(scale, "gamma", None)
    if gamma is not None:
        _scale_rows(linear, gamma)
    return nn.Identity()


def _scale_rows(linear: nn.Linear, factor: Tensor) -> None:
    """Multiply the outputs of a linear layer by a constant, or by one per output."""
    linear.weight.mul_(factor.reshape(-1, 1))
    if linear.bias is not None:
        linear.bias.mul_(factor)


def _split(linear: nn.Linear) -> list[nn.Linear]:
    """A joint projection of queries, keys and values as three linear layers."""
    parts = []
    biases = [None] * 3 if linear.bias is None else linear.bias.chunk(3)
    for weight, bias in zip(linear.weight.chunk(3), biases, strict=True):
        part = nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None)
        part.weight.copy_(weight)
        if bias is not None:
            part.bias.copy_(bias)
        parts.append(part)
    return parts
