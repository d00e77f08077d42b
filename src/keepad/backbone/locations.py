"""Where weights may already be on this machine, and whether the network may be asked. Needs no torch."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

from keepad.backbone.registry import BackboneSpec, Carrier
from keepad.files import cache_folder


def cached_file(spec: BackboneSpec) -> Path:
    """Path of the converted weights of a backbone in the cache, existing or not."""
    return cache_folder() / "weights" / f"{spec.name}.safetensors"


def installed_file(carrier: Carrier) -> Path | None:
    """The ONNX file of an installed carrier, or None; the package is not imported, and other versions do not count."""
    spec = importlib.util.find_spec(carrier.member.partition("/")[0])
    for location in (spec.submodule_search_locations or []) if spec else []:
        path = Path(location).parent / carrier.member
        if path.is_file() and path.stat().st_size == carrier.member_bytes:
            return path
    return None


def offline() -> bool:
    """Whether $KEEPAD_OFFLINE or $HF_HUB_OFFLINE forbids network access."""
    return any(
        os.environ.get(name, "").lower() in ("1", "true", "yes") for name in ("KEEPAD_OFFLINE", "HF_HUB_OFFLINE")
    )
