"""timm ViTs that run on live tokens, and the sources of their weights."""

from __future__ import annotations

from typing import TYPE_CHECKING

from keepad.backbone.registry import BACKBONES, DEFAULT_BACKBONE, BackboneSpec
from keepad.lazy import lazy_names

if TYPE_CHECKING:
    from keepad.backbone.building import build_backbone, load_backbone, spec_of
    from keepad.backbone.vit import Backbone

__all__ = ["BACKBONES", "DEFAULT_BACKBONE", "Backbone", "BackboneSpec", "build_backbone", "load_backbone", "spec_of"]

# Imported at first use, so that the registry needs no torch.
_MODULES = {
    "Backbone": "keepad.backbone.vit",
    "build_backbone": "keepad.backbone.building",
    "load_backbone": "keepad.backbone.building",
    "spec_of": "keepad.backbone.building",
}

__getattr__ = lazy_names(__name__, _MODULES)
