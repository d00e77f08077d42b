"""A bank of heads that train side by side on the same features: one on the whole source, one without each fold.

Loading features dominates the cost, so leave-one-product-out validation takes hardly longer than training one head.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from keepad.head import PrototypeHead
from keepad.logit_scale import TEMPERATURE, LogitScale


class HeadBank(nn.Module):
    """Prototypes of several heads; the last one is trained on the whole source.

    Args:
        folds: Heads besides the last.
        layers: Head layers.
        width: Width of the backbone.
        generator: Draws the initial values, which are the same for all heads.
    """

    def __init__(self, folds: int, layers: tuple[int, ...], width: int, generator: torch.Generator) -> None:
        super().__init__()
        self.layers = layers
        first = torch.randn(2, len(layers), 2, width, generator=generator) * 0.02
        # (head, layer, normal / anomaly, width)
        self.patch = nn.Parameter(first[0].repeat(folds + 1, 1, 1, 1))
        self.cls = nn.Parameter(first[1].repeat(folds + 1, 1, 1, 1))

    def forward(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """Cosine gaps of patches and CLS by all heads.

        Args:
            features: (B, layers, 1 + N, C) unit features, CLS first.

        Returns:
            (B, layers, N, heads) and (B, layers, heads).
        """
        return features[:, :, 1:] @ _directions(self.patch), (features[:, :, :1] @ _directions(self.cls)).squeeze(2)


def bank_responses(patch: Tensor, cls: Tensor) -> tuple[Tensor, Tensor]:
    """Responses at the training temperature from a bank's cosine gaps: (heads, layers, B, N) and (heads, B, layers)."""
    return torch.sigmoid(patch / TEMPERATURE).permute(3, 1, 0, 2), torch.sigmoid(cls / TEMPERATURE).permute(2, 0, 1)


def head_from(patch: Tensor, cls: Tensor, layers: tuple[int, ...], scales: Sequence[LogitScale]) -> PrototypeHead:
    """A head from prototypes of a bank, (layer, 2, width) each, normalised."""
    head = PrototypeHead(layers, patch.shape[-1], scales)
    with torch.no_grad():
        head.patch.copy_(F.normalize(patch, dim=-1))
        head.cls.copy_(F.normalize(cls, dim=-1))
    return head


def _directions(prototypes: Tensor) -> Tensor:
    """(heads, layers, 2, C) -> (layers, C, heads): a product with unit features gives the cosine gap of each pair."""
    normal, anomaly = F.normalize(prototypes, dim=-1).unbind(2)
    return (anomaly - normal).permute(1, 2, 0)
