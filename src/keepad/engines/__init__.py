"""Detectors outside torch: OpenVINO and ONNX Runtime run what `keepad export` wrote."""

from __future__ import annotations

from keepad.engines.folder import EngineInfo, is_exported
from keepad.engines.network import EngineDetector, load_engine

__all__ = ["EngineDetector", "EngineInfo", "is_exported", "load_engine"]
