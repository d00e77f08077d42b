"""KeepAD: zero-shot anomaly detection that drops patch tokens and keeps the defect."""

from __future__ import annotations

from typing import TYPE_CHECKING

from keepad.lazy import lazy_names
from keepad.version import __version__

if TYPE_CHECKING:
    from keepad.detector import Detector
    from keepad.errors import ImageError, KeepADError
    from keepad.loading import load
    from keepad.prediction import Certificate, Prediction
    from keepad.presets import OperatingPoint
    from keepad.regions import Region

__all__ = [
    "Certificate",
    "Detector",
    "ImageError",
    "KeepADError",
    "OperatingPoint",
    "Prediction",
    "Region",
    "__version__",
    "load",
]

# Imported at first use, so that `keepad --help` and data readers start quickly.
_MODULES = {
    "Certificate": "keepad.prediction",
    "Detector": "keepad.detector",
    "ImageError": "keepad.errors",
    "KeepADError": "keepad.errors",
    "OperatingPoint": "keepad.presets",
    "Prediction": "keepad.prediction",
    "Region": "keepad.regions",
    "load": "keepad.loading",
}

__getattr__ = lazy_names(__name__, _MODULES)
