"""A pass with a reducer of another work in the place of the routers, in the same frozen detector."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from keepad.arrays import Array
from keepad.backbone.reducing import ReducedTokens, run_reducing
from keepad.dissimilarity import dissimilarity
from keepad.presets import OperatingPoint
from keepad.routing.reducers.acting import reducer_of
from keepad.steps import ReducedImage
from keepad.tokens import Merge, Tokens

if TYPE_CHECKING:
    from keepad.network import Network


def reduce_image(network: Network, whole: Tokens, point: OperatingPoint, last: int) -> ReducedImage:
    """What blocks 1 to `last` and the head make of one image.

    A merged token answers for all cells that went into it; cells whose token was dropped have no response.

    Args:
        network: The detector.
        whole: All tokens of one image.
        point: Operating point with a reducer.
        last: Last block.
    """
    assert point.reducer is not None
    backbone, head, placement, grid = network.backbone, network.head, network.placement, whole.grid
    reducer = reducer_of(point.reducer, placement, last, backbone.prefix, point.name)
    tokens, work, entry, entering = ReducedTokens.whole(whole), [], None, whole.index
    patch: dict[int, Tensor] = {}  # (N,) by layer; meaningless where a cell has no token
    cls: dict[int, Tensor] = {}
    for layer in range(1, last + 1):
        if layer == placement.deep - 1:  # behind which, or in which, tokens are dropped for the second time
            entering = tokens.cells
        if layer == placement.deep and head.uses_entry:
            entry = _dissimilarity(tokens, grid)
        tokens, done = run_reducing(backbone, tokens, layer, reducer)
        work.append((done.keys, done.queries, done.rows, done.selection))
        if layer in head.layers:
            features = backbone.norm(tokens.x)
            own = _dissimilarity(tokens, grid) if head.uses_dissimilarity(layer) else None
            cells = tokens.token.clamp(min=0)
            patches = tokens.patch_part(features)[cells]
            patch[layer] = head.patch_response(layer, patches, own, entry)
            first = features[:1] if tokens.prefix else _mean(tokens, features)
            cls[layer] = head.cls_response(layer, first)[0]
    live = (tokens.token >= 0).nonzero().squeeze(1)
    return ReducedImage(
        responses=_array(torch.stack([own[live] for own in patch.values()])),
        cls=_array(torch.stack(list(cls.values()))),
        live=live.cpu().numpy(),
        entering=entering.cpu().numpy(),
        survivors=tokens.cells.cpu().numpy(),
        alone=tokens.cells[tokens.size == 1].cpu().numpy() if reducer.weighted else None,
        work=tuple(work),
    )


def _mean(tokens: ReducedTokens, features: Tensor) -> Tensor:
    """(1, C) mean of the patches, in place of a CLS token."""
    return (tokens.size @ tokens.patch_part(features) / tokens.size.sum())[None]


def _dissimilarity(tokens: ReducedTokens, grid: tuple[int, int]) -> Tensor:
    """(N,) dissimilarity of the cells that have a token to the rest of the image; 0 elsewhere."""
    cells = (tokens.token >= 0).nonzero().squeeze(1)
    token = tokens.token[cells]
    merge = Merge(cells, token, tokens.size)
    values = tokens.x.new_zeros(len(tokens.token))
    values[cells] = dissimilarity(tokens.patches, cells, grid, merge=None if merge.one_to_one else merge)
    return values


def _array(values: Tensor) -> Array:
    array: Array = values.detach().float().cpu().numpy()
    return array
