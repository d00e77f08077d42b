"""Segments: the steps of a pass between two decisions, as modules of plain tensors that can be exported.

Each one takes the live tokens of one image, any number of them; `keepad.inference` makes the decisions in between.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn

from keepad.context import Context
from keepad.engines.steps import SCORES, late_name
from keepad.network import Network
from keepad.tokens import Merge, Tokens

# Inputs that describe the dropped tokens; a single one of size 0 where there is no context.
CONTEXT = ("context", "context_index", "context_cells", "context_token", "context_size")


class Segment(nn.Module):
    """A part of the network with named inputs and outputs.

    Args:
        network: The network that it is cut from.
    """

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]

    def __init__(self, network: Network) -> None:
        super().__init__()
        self.network = network
        self._grid = network.grid

    def tokens(self, x: Tensor, index: Tensor, merge: Merge, entry: Tensor | None = None) -> Tokens:
        """Live tokens of one image, from (prefix + n, C) features and (n,) grid indices."""
        return replace(self.network.backbone.tokens_at(x, index, self._grid), merges=(merge,), entry=entry)


class Early(Segment):
    """From the pixels of the live patches to the tokens that enter the shallow router."""

    inputs = ("patches", "index", "size")
    outputs = ("embedded",)

    def __init__(self, network: Network) -> None:
        super().__init__(network)
        network.backbone.positions(self._grid)  # resample now; engines have interpolations of their own
        self._cells = torch.arange(self._grid[0] * self._grid[1])

    def forward(self, patches: Tensor, index: Tensor, size: Tensor) -> tuple[Tensor]:
        """
        Args:
            patches: (n, 3 * height * width) uint8 pixels, channel by channel.
            index: (n,) grid indices of the patches, ascending.
            size: (n,) cells per patch.
        """
        backbone = self.network.backbone
        pixels = patches.float() if backbone.normalises else patches.float() / 255
        tokens = backbone.embed_patches(pixels, index, self._grid)
        # Before the shallow router only the sizes matter: they weigh attention.
        return (self.network.early(replace(tokens, merges=(Merge(self._cells, self._cells, size),))).x,)


class Scores(Segment):
    """From the tokens that enter the shallow router to their scores; cheap, and always in single precision."""

    inputs = ("tokens", "cells", "token", "size", "landmarks")
    outputs = ("scores",)

    def forward(self, x: Tensor, cells: Tensor, token: Tensor, size: Tensor, landmarks: Tensor) -> tuple[Tensor]:
        """
        Args:
            x: (prefix + n, C) output of the first segment.
            cells: (m,) grid indices of the cells that count.
            token: (m,) position of each cell's token among the patches.
            size: (n,) cells per patch.
            landmarks: (l,) positions of the landmarks among the cells.
        """
        patches = x[self.network.backbone.prefix :]
        return (self.network.shallow(patches, cells, self._grid, Merge(cells, token, size), landmarks),)


class Middle(Segment):
    """From the tokens that the shallow router kept to those that enter the deep one, their dissimilarity and risk.

    Args:
        network: The network that it is cut from.
        rotation: (C, C) rotation of its input tokens, if any; see `gptq`.
    """

    inputs = ("tokens", "index", "cells", "token", "size", *CONTEXT)
    outputs = ("entering", "entry", "risk")

    def __init__(self, network: Network, rotation: Tensor | None = None) -> None:
        super().__init__(network)
        self._rotation = rotation

    def forward(
        self,
        x: Tensor,
        index: Tensor,
        cells: Tensor,
        token: Tensor,
        size: Tensor,
        context: Tensor,
        context_index: Tensor,
        context_cells: Tensor,
        context_token: Tensor,
        context_size: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor]:
        if self._rotation is not None:
            x, context = x @ self._rotation.T, context @ self._rotation.T
        rope = self.network.backbone.rotary_rows(context_index, self._grid)
        around = Context(context, context_cells, context_token, context_size, rope=rope)
        tokens = replace(self.tokens(x, index, Merge(cells, token, size)), contexts=(around,))
        tokens = self.network.middle(tokens)
        (risk,) = self.network.risks(tokens)
        entry = self.network.dissimilarity(tokens) if tokens.entry is None else tokens.entry
        return tokens.x, entry, risk


class Late(Segment):
    """From the tokens that the deep router kept to the responses of the head.

    Args:
        network: The network that it is cut from.
        last: Last block that runs.
    """

    inputs = ("tokens", "index", "cells", "token", "size", "entry")
    outputs = ("responses", "cls", "features")

    @property
    def layers(self) -> int:
        """Number of head layers that respond."""
        return sum(layer <= self.last for layer in self.network.placement.head_layers)

    def __init__(self, network: Network, last: int) -> None:
        super().__init__(network)
        self.last = last

    def forward(
        self, x: Tensor, index: Tensor, cells: Tensor, token: Tensor, size: Tensor, entry: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """(layers, m) responses of the cells, (layers,) of the CLS token, and features of the match layers."""
        tokens = self.tokens(x, index, Merge(cells, token, size), entry)
        responses = self.network.respond(tokens, self.last, features=True)
        return (
            torch.stack([own for (own,) in responses.patch.values()]),
            torch.cat(list(responses.cls.values())),
            torch.stack([own for (own,) in responses.features.values()]),
        )


def segments_of(network: Network, rotation: Tensor | None = None) -> dict[str, Segment]:
    """The segments of all operating points, by name.

    Args:
        network: The network.
        rotation: Rotation of the tokens that the first segment outputs, if any; see `gptq`.
    """
    placement = network.placement
    segments: dict[str, Segment] = {
        "early": Early(network),
        SCORES: Scores(network),
        "middle": Middle(network, rotation),
    }
    for last in (placement.exit, placement.head_layers[-1]):
        segments.setdefault(late_name(placement.exit, last), Late(network, last))
    return segments
