"""verify(): passes for the export of a network, and fails in one sentence for another."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from keepad.engines import EngineNetwork, open_network
from keepad.engines.export import verify
from keepad.errors import KeepADError
from keepad.network import Network
from keepad.presets import POINTS

EVERY_POINT = [POINTS[name] for name in ("dense", "prune30", "prune50", "prune70", "paper70")]


@pytest.mark.parametrize("engine", ["openvino", "onnx"])
def test_an_export_is_verified_and_another_network_is_not(
    tiny: Network, folders: dict[str, Path], image_folder: Path, engine: str
) -> None:
    network, paths = open_network(folders[engine]), sorted(image_folder.iterdir())
    differences = verify(tiny, network, paths, EVERY_POINT)
    assert [difference.point for difference in differences] == [point.name for point in EVERY_POINT]
    assert all(difference.survivors == 1 for difference in differences)
    placement = replace(network.placement, base_layers=network.placement.mid_layers)
    calibration = replace(network.calibration, patch_weight=0.0)
    info = replace(network.info, placement=placement, calibration=calibration)
    with pytest.raises(KeepADError, match=r"differs from torch at dense: .*; use a higher precision\.$"):
        verify(tiny, EngineNetwork(folders[engine], info), paths, EVERY_POINT)
