"""Prototype head: how much closer a feature is to the anomaly prototype than to the normal one."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from keepad.logit_scale import LogitScale


class PrototypeHead(nn.Module):
    """A (normal, anomaly) pair of prototypes per head layer; one for patches and a decoupled one for the CLS token.

    Args:
        layers: Head layers, counted from 1.
        width: Width of the backbone.
        scales: Scale and bias of each layer's logits; the plain softmax of the pair if None.
    """

    def __init__(self, layers: tuple[int, ...], width: int, scales: Sequence[LogitScale] | None = None) -> None:
        super().__init__()
        self.layers = layers
        self.scales = tuple(scales) if scales is not None else (LogitScale(),) * len(layers)
        # (layer, normal / anomaly, width)
        self.patch = nn.Parameter(torch.empty(len(layers), 2, width).normal_(std=0.02))
        self.cls = nn.Parameter(torch.empty(len(layers), 2, width).normal_(std=0.02))

    def uses_dissimilarity(self, layer: int) -> bool:
        """Whether `patch_response` of this layer takes the dissimilarity within the image."""
        return self.scales[self.layers.index(layer)].dissimilarity != 0

    @property
    def uses_entry(self) -> bool:
        """Whether any layer takes the dissimilarity at the entry of the deep router."""
        return any(scale.entry != 0 for scale in self.scales)

    def patch_response(
        self, layer: int, features: Tensor, dissimilarity: Tensor | None = None, entry: Tensor | None = None
    ) -> Tensor:
        """Response of each patch in [0, 1], (n,).

        Args:
            layer: The head layer.
            features: (n, C) normed features.
            dissimilarity: (n,) in this layer, where it is used.
            entry: (n,) dissimilarity at the entry of the deep router, where it is used.
        """
        number = self.layers.index(layer)
        scale = self.scales[number]
        logits = scale.patch_scale * cosine_gap(self.patch[number], features) + scale.patch_bias
        if dissimilarity is not None:
            logits = logits + scale.dissimilarity * dissimilarity
        if entry is not None:
            logits = logits + scale.entry * entry
        return torch.sigmoid(logits)

    def cls_response(self, layer: int, features: Tensor) -> Tensor:
        """Response of each CLS feature, (B, C) -> (B,) in [0, 1]."""
        number = self.layers.index(layer)
        scale = self.scales[number]
        return torch.sigmoid(scale.cls_scale * cosine_gap(self.cls[number], features) + scale.cls_bias)


def cosine_gap(pair: Tensor, features: Tensor) -> Tensor:
    """Cosine to the anomaly prototype minus cosine to the normal one, (2, C), (n, C) -> (n,).

    The sigmoid of it, divided by a temperature, is the softmax over the two cosines, anomaly side.
    """
    normal, anomaly = F.normalize(pair, dim=-1)
    gap: Tensor = F.normalize(features, dim=-1) @ (anomaly - normal)
    return gap
