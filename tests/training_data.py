"""Small painted images and a small random backbone to train on."""

from __future__ import annotations

BACKBONE = "vit_tiny_patch16_224"
SIZE = (224, 224)
