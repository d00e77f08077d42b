"""A network that is traced in a third of the time."""

from __future__ import annotations

import pytest
import timm
import torch

from keepad.assembly import with_fresh_parts
from keepad.backbone import Backbone, spec_of
from keepad.network import Network
from keepad.presets import Placement
from random_weights import lively


@pytest.fixture
def short() -> Network:
    """A random network of five blocks, 192 wide, with a 9x11 grid; all segments of `tiny`, with fewer blocks each."""
    spec = spec_of("vit_tiny_patch16_224")
    torch.manual_seed(1)
    vit = timm.create_model(spec.architecture, depth=5, num_classes=0, dynamic_img_size=True)
    backbone = lively(Backbone(vit, name=spec.name, mean=spec.mean, std=spec.std, antialias=spec.antialias))
    placement = Placement((3, 4, 5), shallow=2, deep=3, exit=4, base_layers=(3, 4), mid_layers=(3, 4))
    return with_fresh_parts(backbone, spec, seed=2, placement=placement, image_size=(9 * 16, 11 * 16))
