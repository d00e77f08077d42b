"""FLOPs of a pass, counted from the tokens that ran and the sizes of the layers.

A multiply-add is two FLOPs. Counted are patch embedding, linear layers, QK^T and AV of attention, selectors and the
head; not norms, activations, softmax and sums, which add about one percent.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from torch import nn

from keepad.backbone import Backbone
from keepad.inference import Inference
from keepad.network import Network
from keepad.presets import OperatingPoint, Placement
from keepad.routing.grid import is_landmark


@dataclass(frozen=True)
class BlockShape:
    """Sizes of one transformer block.

    Attributes:
        projections: Weights of the linear layers around attention: queries, keys, values, a gate if any, output.
        keys: Those of keys and values alone, which is all that a dropped token of the context costs.
        mlp: Weights of the linear layers of the MLP, two of them in a plain one and three in SwiGLU.
        attention: Width of attention, heads times width of a head.
    """

    projections: int
    keys: int
    mlp: int
    attention: int


@dataclass(frozen=True)
class BackboneShape:
    """Sizes of a backbone.

    Attributes:
        patch: Weights that embed one patch.
        prefix: Tokens besides the patches (CLS, registers).
        blocks: Sizes of each block; a backbone need not be made of equal ones.
    """

    patch: int
    prefix: int
    blocks: tuple[BlockShape, ...]


@dataclass(frozen=True)
class Flops:
    """FLOPs of one image by part of the network."""

    embed: int
    linear: int
    attention: int
    selectors: int
    head: int

    @property
    def total(self) -> int:
        return self.embed + self.linear + self.attention + self.selectors + self.head


@lru_cache(maxsize=4)
def shape_of(backbone: Backbone) -> BackboneShape:
    """The sizes of a backbone, from its layers."""
    blocks = tuple(
        BlockShape(
            projections=_linear_weights(block.attn),
            keys=_key_weights(block.attn),
            mlp=_linear_weights(block.mlp),
            attention=block.attn.num_heads * block.attn.head_dim,
        )
        for block in backbone.vit.blocks
    )
    patch: int = backbone.vit.patch_embed.proj.weight.numel()
    return BackboneShape(patch, backbone.prefix, blocks)


def _linear_weights(module: nn.Module) -> int:
    return sum(part.weight.numel() for part in module.modules() if isinstance(part, nn.Linear))


def _key_weights(attention: Any) -> int:
    """Weights that make keys and values of a token."""
    if attention.qkv is None:
        return _linear_weights(attention.k_proj) + _linear_weights(attention.v_proj)
    weights: int = attention.qkv.weight.numel()
    return 2 * weights // 3


def backbone_flops(
    shape: BackboneShape, embedded: int, entering: Sequence[int], context: Sequence[int] = ()
) -> tuple[int, int, int]:
    """FLOPs of one image in the patch embedding, the linear layers, and attention.

    Args:
        shape: Sizes of the backbone.
        embedded: Patches of the whole grid.
        entering: Live patches that entered block 1, 2, and so on; a pass that stops early lists fewer blocks.
        context: Dropped tokens that those of each block attended to; none if empty.
    """
    linear = attention = 0
    for block, patches, dropped in zip(shape.blocks, entering, context or [0] * len(entering), strict=False):
        length = patches + shape.prefix
        linear += 2 * length * (block.projections + block.mlp) + 2 * dropped * block.keys
        attention += 4 * length * (length + dropped) * block.attention
    return 2 * embedded * shape.patch, linear, attention


def patches_entering(placement: Placement, grid: int, shallow: int, deep: int, *, early_exit: bool) -> list[int]:
    """Live patches that entered each block that ran, from those of the grid and after each router."""
    last = placement.exit if early_exit else placement.head_layers[-1]
    blocks = range(1, last + 1)
    return [grid if block < placement.shallow else shallow if block < placement.deep else deep for block in blocks]


def count_flops(network: Network, inference: Inference, point: OperatingPoint) -> Flops:
    """FLOPs that the pass at `point` spent on the image of `inference`."""
    if inference.work is not None:
        return _reduced_flops(network, inference)
    rows, columns = inference.patch_map.shape
    grid, shallow, deep = rows * columns, len(inference.survivors_shallow), len(inference.survivors)
    embedded = grid if inference.pixel_routing is None else len(inference.pixel_routing.index)
    entering = patches_entering(network.placement, embedded, shallow, deep, early_exit=point.early_exit)
    around = patches_entering(network.placement, 0, inference.context, 0, early_exit=point.early_exit)
    embed, linear, attention = backbone_flops(shape_of(network.backbone), embedded, entering, around)
    width = network.backbone.width
    counted = np.arange(grid) if inference.inside is None else np.flatnonzero(inference.inside)
    selectors = 0
    # A selector multiplies its key and query weights once per image; a score is then one dot product.
    if point.shallow is not None:
        selectors += 2 * _linear_weights(network.shallow) + 2 * embedded * width
        if network.shallow.dissimilarity is not None:
            landmarks = int(is_landmark(counted, (rows, columns), network.calibration.landmarks).sum())
            selectors += 2 * embedded * landmarks * width
    if point.deep is not None:
        selectors += 2 * _linear_weights(network.deep) + 2 * 2 * shallow * width
    selectors += 2 * shallow * inference.context * width  # which survivors carry a token of the context
    uses_entry = network.head.uses_entry or network.deep.dissimilarity is not None
    head = 2 * shallow * (shallow + inference.context) * width if uses_entry else 0
    for layer in (layer for layer in network.placement.head_layers if layer <= len(entering)):
        live = deep if layer >= network.placement.deep else shallow
        head += 2 * (live + 1) * width
        if network.head.uses_dissimilarity(layer):
            left = 0 if layer >= network.placement.deep else inference.context
            head += 2 * live * (live + left) * width
    return Flops(embed, linear, attention, selectors, head)


def _reduced_flops(network: Network, inference: Inference) -> Flops:
    """FLOPs of a pass with a reducer, from the tokens that each of its blocks recorded."""
    assert inference.work is not None
    shape, width, placement = shape_of(network.backbone), network.backbone.width, network.placement
    linear = attention = selectors = head = 0
    for layer, (block, work) in enumerate(zip(shape.blocks, inference.work, strict=False), start=1):
        keys, queries, rows, selection = work
        # Queries, keys and values of all tokens; a quarter of the projections is the output's.
        linear += 2 * keys * block.projections * 3 // 4 + 2 * queries * block.projections // 4 + 2 * rows * block.mlp
        attention += 4 * keys * queries * block.attention
        selectors += selection
        if layer + 1 == placement.deep and network.head.uses_entry:
            head += 2 * (rows - shape.prefix) ** 2 * width
        if layer in placement.head_layers:
            head += 2 * rows * width
            if network.head.uses_dissimilarity(layer):
                head += 2 * (rows - shape.prefix) ** 2 * width
    return Flops(2 * inference.patch_map.size * shape.patch, linear, attention, selectors, head)
