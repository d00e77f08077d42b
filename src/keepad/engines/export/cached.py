"""exported(): the export of a network in the user's cache, made once."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Sequence
from pathlib import Path

from keepad.console import Say
from keepad.engines.export.writing import check_request, export
from keepad.engines.folder import EDITION, FORMAT, is_exported
from keepad.files import cache_folder, locked, writable_folder
from keepad.network import Network
from keepad.sources import ImageSource

_PATIENCE = 1800  # seconds; int8 takes minutes


def exported(
    network: Network, engine: str, precision: str = "fp32", *, say: Say, images: Sequence[ImageSource] = ()
) -> Path:
    """The folder of a network that is exported to the user's cache, once; another process that does so is waited for.

    Args:
        network: The network.
        engine: "openvino" or "onnx".
        precision: "fp32", "bf16" or "int8".
        say: Called with one line for every step.
        images: Calibration images, for int8.
    """
    folder = cached_export(network, engine, precision)
    if is_exported(folder):
        return folder
    check_request(engine, precision, images)
    with locked(writable_folder(folder.parent), f".{folder.name}.lock", patience=_PATIENCE):
        if not is_exported(folder):
            say(f"exporting {network.name} for {engine} to {folder}, once")
            # Engines map files into memory: a file that changes under them ends the process.
            partial = folder.with_name(f"{folder.name}.part")
            shutil.rmtree(partial, ignore_errors=True)
            export(network, partial, engine=engine, precision=precision, images=images, say=say)
            shutil.rmtree(folder, ignore_errors=True)
            partial.rename(folder)
    return folder


def cached_export(network: Network, engine: str, precision: str = "fp32") -> Path:
    """Where the export of a network is kept in the user's cache, whether or not it exists."""
    key_of = [FORMAT, EDITION, network.digests(), network.name, network.image_size]
    key = hashlib.sha256(json.dumps(key_of, sort_keys=True).encode())
    return cache_folder() / "engines" / f"{key.hexdigest()[:16]}-{engine}-{precision}"
