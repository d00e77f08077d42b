"""exported(): the export of a network in the user's cache, made once."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path

from keepad.console import Say
from keepad.engines.export.writing import check_request, export
from keepad.engines.folder import EDITION, FORMAT, is_exported
from keepad.files import cache_folder
from keepad.network import Network
from keepad.sources import ImageSource


def exported(
    network: Network, engine: str, precision: str = "fp32", *, say: Say, images: Sequence[ImageSource] = ()
) -> Path:
    """The folder of a network that is exported to the user's cache, once.

    Args:
        network: The network.
        engine: "openvino" or "onnx".
        precision: "fp32", "bf16" or "int8".
        say: Called with one line for every step.
        images: Calibration images, for int8.
    """
    folder = cached_export(network, engine, precision)
    if not is_exported(folder):
        check_request(engine, precision, images)
        say(f"exporting {network.name} for {engine} to {folder}, once")
        export(network, folder, engine=engine, precision=precision, images=images, say=say)
    return folder


def cached_export(network: Network, engine: str, precision: str = "fp32") -> Path:
    """Where the export of a network is kept in the user's cache, whether or not it exists."""
    key_of = [FORMAT, EDITION, network.digests(), network.name, network.image_size]
    key = hashlib.sha256(json.dumps(key_of, sort_keys=True).encode())
    return cache_folder() / "engines" / f"{key.hexdigest()[:16]}-{engine}-{precision}"
