"""Random weights that tests can learn something from."""

from __future__ import annotations

import torch

from keepad.backbone import Backbone


def lively(backbone: Backbone, seed: int = 0) -> Backbone:
    """Random weights that matter: timm starts LayerScale near zero, where every block would be the identity."""
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in backbone.vit.named_parameters():
        if "gamma" in name:
            parameter.data.copy_(0.3 + 0.4 * torch.rand(parameter.shape, generator=generator))
    return backbone
