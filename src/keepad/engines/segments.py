"""Segments of a pass as modules of plain tensors, so that they can be exported: everything between two decisions.

Each one takes the live tokens of one image, however many they are; `decisions.py` stands between them.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn

from keepad.model import KeepAD
from keepad.tokens import Tokens
from keepad.unlikeness import near_of, unlikeness_outside


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

    def tokens(self, x: Tensor, index: Tensor, mass: Tensor) -> Tokens:
        """Live tokens of one image, (prefix + n, C), their (n,) places and the (n,) cells that each stands for."""
        return replace(self.model.backbone.tokens_at(x, index, self._grid), mass=mass)

    def unlikeness(self, tokens: Tokens) -> Tensor:
        """The same as `KeepAD.unlikeness`, without its shortcut for whole grids."""
        return unlikeness_outside(tokens.patches(), near_of(tokens.index, self._grid))


class Prefix(Segment):
    """From the pixels of the live patches to the tokens that enter the shallow router, and their scores there."""

    inputs = ("patches", "index", "landmarks", "mass")
    outputs = ("embedded", "scores")

    def __init__(self, model: KeepAD) -> None:
        super().__init__(model)
        model.backbone.positions(self._grid)  # resampled now, or every engine would resample them its own way

    def forward(self, patches: Tensor, index: Tensor, landmarks: Tensor, mass: Tensor) -> tuple[Tensor, Tensor]:
        """
        Args:
            patches: (n, 3 * height * width) uint8 pixels, channel by channel.
            index: (n,) their places on the grid, ascending.
            landmarks: Positions of the landmarks among them.
            mass: (n,) cells that each of them stands for.
        """
        model = self.model
        tokens = model.backbone.embed_patches(patches.float() / 255, index, self._grid)
        tokens = model.backbone.run(replace(tokens, mass=mass), 1, model.placement.shallow - 1)
        return tokens.x, model.shallow(tokens.patches(), index, self._grid, landmarks, mass)


class Middle(Segment):
    """From the tokens that the shallow router kept to those that enter the deep one, their unlikeness and risk."""

    inputs = ("tokens", "index", "mass")
    outputs = ("entering", "unlike", "risk")

    def forward(self, x: Tensor, index: Tensor, mass: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        model, place = self.model, self.model.placement
        tokens = model.backbone.run(self.tokens(x, index, mass), place.shallow, place.deep - 1)
        unlike = self.unlikeness(tokens)
        return tokens.x, unlike, model.risk(tokens.patches(), unlike)


class Tail(Segment):
    """From the tokens that the deep router kept to what the head reads in them.

    Args:
        model: The detector that it is cut from.
        last: Last block that runs.
    """

    inputs = ("tokens", "index", "mass", "entry")
    outputs = ("responses", "cls")

    def __init__(self, model: KeepAD, last: int) -> None:
        super().__init__(model)
        self.layers = tuple(layer for layer in model.placement.head_layers if layer <= last)

    def forward(self, x: Tensor, index: Tensor, mass: Tensor, entry: Tensor) -> tuple[Tensor, Tensor]:
        """(layers, n) responses of the patches and (layers,) of the CLS token."""
        model, head = self.model, self.model.head
        tokens, done = self.tokens(x, index, mass), model.placement.deep - 1
        responses, cls = [], []
        for layer in self.layers:
            tokens, done = model.backbone.run(tokens, done + 1, layer), layer
            features = model.backbone.norm(tokens.x)
            unlike = self.unlikeness(tokens) if head.reads_unlikeness(layer) else None
            early = entry if head.reads_entry else None
            responses.append(head.patch_response(layer, tokens.patches(features), unlike, early))
            cls.append(head.cls_response(layer, tokens.cls(features)))
        return torch.stack(responses), torch.cat(cls)
