"""Segments of a pass as modules of plain tensors, so that they can be exported: everything between two decisions.

Each one takes the live tokens of one image, however many they are, and answers for its live cells; `decisions.py`
stands between them.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn

from keepad.budgets import on_lattice
from keepad.dissimilarity import dissimilarity_outside, near_of
from keepad.network import KeepAD
from keepad.tokens import Shares, Tokens


class Segment(nn.Module):
    """What all segments share.

    Args:
        model: The detector that they are cut from.
    """

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]

    def __init__(self, model: KeepAD) -> None:
        super().__init__()
        self.model = model
        self._grid = model.grid

    def tokens(self, x: Tensor, index: Tensor, shares: Shares) -> Tokens:
        """Live tokens of one image, (prefix + n, C), their (n,) places and which of them its cells share."""
        return replace(self.model.backbone.tokens_at(x, index, self._grid), shares=(shares,))

    def dissimilarity(self, tokens: Tokens, shares: Shares) -> Tensor:
        """The same as `KeepAD.dissimilarity`, without its shortcut for whole grids."""
        near = near_of(shares.cells, self._grid)
        return dissimilarity_outside(tokens.patches(), near, place=shares.place)


class Prefix(Segment):
    """From the pixels of the live patches to the tokens that enter the shallow router."""

    inputs = ("patches", "index", "mass")
    outputs = ("embedded",)

    def __init__(self, model: KeepAD) -> None:
        super().__init__(model)
        model.backbone.positions(self._grid)  # resampled now, or every engine would resample them its own way
        self._cells = torch.arange(self._grid[0] * self._grid[1])

    def forward(self, patches: Tensor, index: Tensor, mass: Tensor) -> tuple[Tensor]:
        """
        Args:
            patches: (n, 3 * height * width) uint8 pixels, channel by channel.
            index: (n,) their places on the grid, ascending.
            mass: (n,) cells that share each of them.
        """
        model = self.model
        levels = patches.float()
        pixels = levels if model.backbone.normalises else levels / 255
        tokens = model.backbone.embed_patches(pixels, index, self._grid)
        tokens = replace(tokens, shares=(Shares(self._cells, self._cells, mass),))  # only the mass is asked for
        return (model.backbone.run(tokens, 1, model.placement.shallow - 1).x,)


class Scores(Segment):
    """What the shallow router makes of its tokens. It decides between tokens that differ little, so it is computed in
    single precision in every export, which costs next to nothing."""

    inputs = ("tokens", "place", "mass")
    outputs = ("scores",)

    def __init__(self, model: KeepAD) -> None:
        super().__init__(model)
        self._cells = torch.arange(self._grid[0] * self._grid[1])
        self._landmarks = on_lattice(self._cells, self._grid).nonzero().squeeze(1)

    def forward(self, x: Tensor, place: Tensor, mass: Tensor) -> tuple[Tensor]:
        """
        Args:
            x: (prefix + n, C) what the first segment gives.
            place: (N,) which of the patches among them each cell of the grid has.
            mass: (n,) cells that share each of them.
        """
        shares = Shares(self._cells, place, mass)
        patches = x[self.model.backbone.prefix :]
        return (self.model.shallow(patches, self._cells, self._grid, shares, self._landmarks),)


class Middle(Segment):
    """From the tokens that the shallow router kept to those that enter the deep one, their dissimilarity and risk.

    Args:
        model: The detector that it is cut from.
        turn: (C, C) the rotation by which its tokens come turned, if they do; see `rounding`.
    """

    inputs = ("tokens", "index", "cells", "place", "mass")
    outputs = ("entering", "unlike", "risk")

    def __init__(self, model: KeepAD, turn: Tensor | None = None) -> None:
        super().__init__(model)
        self._turn = turn

    def forward(
        self, x: Tensor, index: Tensor, cells: Tensor, place: Tensor, mass: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        model, shares = self.model, Shares(cells, place, mass)
        first, last = model.placement.shallow, model.placement.deep - 1
        x = x if self._turn is None else x @ self._turn.T
        tokens = model.backbone.run(self.tokens(x, index, shares), first, last)
        unlike = self.dissimilarity(tokens, shares)
        return tokens.x, unlike, model.risk(tokens.patches(), unlike, shares)


class Tail(Segment):
    """From the tokens that the deep router kept to what the head reads in them.

    Args:
        model: The detector that it is cut from.
        last: Last block that runs.
    """

    inputs = ("tokens", "index", "cells", "place", "mass", "entry")
    outputs = ("responses", "cls")

    def __init__(self, model: KeepAD, last: int) -> None:
        super().__init__(model)
        self.layers = tuple(layer for layer in model.placement.head_layers if layer <= last)

    def forward(
        self, x: Tensor, index: Tensor, cells: Tensor, place: Tensor, mass: Tensor, entry: Tensor
    ) -> tuple[Tensor, Tensor]:
        """(layers, m) responses of the cells and (layers,) of the CLS token."""
        model, head, shares = self.model, self.model.head, Shares(cells, place, mass)
        tokens, done = self.tokens(x, index, shares), model.placement.deep - 1
        responses, cls = [], []
        for layer in self.layers:
            tokens, done = model.backbone.run(tokens, done + 1, layer), layer
            features = model.backbone.norm(tokens.x)
            unlike = self.dissimilarity(tokens, shares) if head.reads_dissimilarity(layer) else None
            early = entry if head.reads_entry else None
            responses.append(head.patch_response(layer, tokens.on_cells(tokens.patches(features)), unlike, early))
            cls.append(head.cls_response(layer, tokens.cls(features)))
        return torch.stack(responses), torch.cat(cls)
