"""Prototype head: how close a feature is to "anomaly" rather than to "normal"."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from keepad.presets import Reading


class PrototypeHead(nn.Module):
    """A (normal, anomaly) pair of prototypes for every head layer; one for patches, one, decoupled, for the CLS token.

    Args:
        layers: Head layers, counted from 1.
        width: Width of the backbone.
        readings: How each layer's cosines become responses; the plain softmax of the pair if None.
    """

    def __init__(self, layers: tuple[int, ...], width: int, readings: Sequence[Reading] | None = None) -> None:
        super().__init__()
        self.layers = layers
        self.readings = tuple(readings) if readings is not None else (Reading(),) * len(layers)
        # (layer, normal / anomaly, width)
        self.patch = nn.Parameter(torch.empty(len(layers), 2, width).normal_(std=0.02))
        self.cls = nn.Parameter(torch.empty(len(layers), 2, width).normal_(std=0.02))

    def reads_dissimilarity(self, layer: int) -> bool:
        """Whether `patch_response` of this layer needs to know how unlike its image each patch is."""
        return self.readings[self.layers.index(layer)].unlike != 0

    @property
    def reads_entry(self) -> bool:
        """Whether any layer needs to know how unlike its image each patch was when it entered the deep router."""
        return any(reading.entry != 0 for reading in self.readings)

    def patch_response(
        self, layer: int, features: Tensor, dissimilarity: Tensor | None = None, entry: Tensor | None = None
    ) -> Tensor:
        """Response of each patch in [0, 1], (n,).

        Args:
            layer: The head layer.
            features: (n, C) normed features.
            dissimilarity: (n,) dissimilarity in this layer, where it is read.
            entry: (n,) dissimilarity at the entry of the deep router, where it is read.
        """
        place = self.layers.index(layer)
        reading = self.readings[place]
        evidence = reading.patch_scale * cosine_gap(self.patch[place], features) + reading.patch_bias
        if dissimilarity is not None:
            evidence = evidence + reading.unlike * dissimilarity
        if entry is not None:
            evidence = evidence + reading.entry * entry
        return torch.sigmoid(evidence)

    def cls_response(self, layer: int, features: Tensor) -> Tensor:
        """Response of each CLS feature, (B, C) -> (B,) in [0, 1]."""
        place = self.layers.index(layer)
        reading = self.readings[place]
        return torch.sigmoid(reading.cls_scale * cosine_gap(self.cls[place], features) + reading.cls_bias)


def cosine_gap(pair: Tensor, features: Tensor) -> Tensor:
    """How much nearer features are to the anomaly side of a pair, (2, C), (n, C) -> (n,).

    Divided by a temperature, a sigmoid of it is the softmax over the two cosines, anomaly side.
    """
    normal, anomaly = F.normalize(pair, dim=-1)
    return F.normalize(features, dim=-1) @ (anomaly - normal)
