"""Detectors outside torch: OpenVINO and ONNX Runtime run what `keepad export` wrote."""

from __future__ import annotations

from keepad.engines.detector import EngineDetector, load_engine
from keepad.engines.folder import EngineInfo, is_exported

__all__ = ["EngineDetector", "EngineInfo", "is_exported", "load_engine"]
