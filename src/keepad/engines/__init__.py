"""Networks outside torch: OpenVINO and ONNX Runtime run what `keepad export` wrote."""

from __future__ import annotations

from keepad.engines.folder import EngineInfo, is_exported
from keepad.engines.network import EngineNetwork, open_network

__all__ = ["EngineInfo", "EngineNetwork", "is_exported", "open_network"]
