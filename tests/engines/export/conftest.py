"""A network that is traced in a third of the time."""

from __future__ import annotations

import pytest

from keepad.assembly import with_fresh_parts
from keepad.network import Network
from keepad.presets import Placement
from random_weights import short_backbone


@pytest.fixture
def short() -> Network:
    """A random network of five blocks, 192 wide, with a 9x11 grid; all segments of `tiny`, with fewer blocks each."""
    backbone, spec = short_backbone("vit_tiny_patch16_224", 5)
    placement = Placement((3, 4, 5), shallow=2, deep=3, exit=4, base_layers=(3, 4), mid_layers=(3, 4))
    return with_fresh_parts(backbone, spec, seed=2, placement=placement, image_size=(9 * 16, 11 * 16))
