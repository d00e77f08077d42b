"""Prototype head: how close a feature is to "anomaly" rather than to "normal"."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class PrototypeHead(nn.Module):
    """A (normal, anomaly) pair of prototypes for every head layer; one for patches, one, decoupled, for the CLS token.

    Args:
        layers: Head layers, counted from 1.
        width: Width of the backbone.
        temperature: What cosines are divided by before the softmax.
    """

    def __init__(self, layers: tuple[int, ...], width: int, temperature: float = 0.07) -> None:
        super().__init__()
        self.layers = layers
        self.temperature = temperature
        # (layer, normal / anomaly, width)
        self.patch = nn.Parameter(torch.empty(len(layers), 2, width).normal_(std=0.02))
        self.cls = nn.Parameter(torch.empty(len(layers), 2, width).normal_(std=0.02))

    def patch_response(self, layer: int, features: Tensor) -> Tensor:
        """Anomaly probability of each patch feature, (n, C) -> (n,)."""
        return self._response(self.patch[self.layers.index(layer)], features)

    def cls_response(self, layer: int, features: Tensor) -> Tensor:
        """Anomaly probability of each CLS feature, (B, C) -> (B,)."""
        return self._response(self.cls[self.layers.index(layer)], features)

    def _response(self, pair: Tensor, features: Tensor) -> Tensor:
        """Softmax over cosine / temperature of a pair, anomaly side, which is a sigmoid of the difference."""
        normal, anomaly = F.normalize(pair, dim=-1)
        cosine_gap = F.normalize(features, dim=-1) @ (anomaly - normal)
        return torch.sigmoid(cosine_gap / self.temperature)
