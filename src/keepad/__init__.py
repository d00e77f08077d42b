"""KeepAD: zero-shot anomaly detection that drops patch tokens and keeps the defect."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from keepad.version import __version__

if TYPE_CHECKING:
    from keepad.errors import ImageError, KeepADError
    from keepad.loading import load
    from keepad.network import KeepAD
    from keepad.prediction import Prediction
    from keepad.presets import OperatingPoint

__all__ = ["ImageError", "KeepAD", "KeepADError", "OperatingPoint", "Prediction", "__version__", "load"]

# Imported on first use, so that `keepad --help`, readers and metrics do not wait for torch.
_HOMES = {
    "ImageError": "keepad.errors",
    "KeepADError": "keepad.errors",
    "KeepAD": "keepad.model",
    "OperatingPoint": "keepad.presets",
    "Prediction": "keepad.prediction",
    "load": "keepad.loading",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'keepad' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
