"""Random weights that tests can learn something from, and backbones with few blocks."""

from __future__ import annotations

from typing import Any

import timm
import torch

from keepad.backbone import Backbone, BackboneSpec, spec_of


def lively(backbone: Backbone, seed: int = 0) -> Backbone:
    """Random weights that matter: timm starts LayerScale near zero, where every block would be the identity."""
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in backbone.vit.named_parameters():
        if "gamma" in name:
            parameter.data.copy_(0.3 + 0.4 * torch.rand(parameter.shape, generator=generator))
    return backbone


def short_backbone(name: str, depth: int, **sizes: Any) -> tuple[Backbone, BackboneSpec]:
    """A backbone of that family with so many blocks and lively random weights, and its spec; `sizes` are timm's."""
    spec = spec_of(name)
    with torch.random.fork_rng():
        torch.manual_seed(5)
        vit = timm.create_model(spec.architecture, num_classes=0, dynamic_img_size=True, depth=depth, **sizes)
    backbone = Backbone(vit, name=spec.name, mean=spec.mean, std=spec.std, antialias=spec.antialias)
    return lively(backbone), spec
