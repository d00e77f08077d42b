"""export(): refused at once where it cannot succeed, and int8 where it belongs."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest

from keepad.engines import open_network
from keepad.engines.export import export, verify
from keepad.engines.export.segments import segments_of
from keepad.errors import KeepADError
from keepad.network import Network
from keepad.presets import POINTS


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"engine": "warp"}, "no engine called 'warp'"),
        ({"engine": "onnx", "precision": "bf16"}, "onnx cannot be exported as 'bf16'; choose fp32 or int8"),
        ({"precision": "int8"}, "int8 needs source images"),
    ],
)
def test_impossible_exports_are_refused(tiny: Network, tmp_path: Path, options: dict[str, str], sentence: str) -> None:
    with pytest.raises(KeepADError, match=sentence):
        export(tiny, tmp_path / "out", **options)  # type: ignore[arg-type]
    assert not (tmp_path / "out").exists()


def test_a_grid_too_small_to_export_is_refused(tiny: Network, tmp_path: Path) -> None:
    tiny.image_size = (5 * 16, 6 * 16)
    with pytest.raises(KeepADError, match="a grid of 5x6 patches is too small to export; use a larger image size"):
        export(tiny, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_int8_stays_close_and_leaves_decisions_in_floating_point(
    short: Network, image_folder: Path, tmp_path: Path
) -> None:
    paths = sorted(image_folder.iterdir())
    lines: list[str] = []
    folder = export(short, tmp_path / "int8", engine="onnx", precision="int8", images=paths, say=lines.append)
    network = open_network(folder)
    assert network.info.floating == ()
    cosines = [float(line.split()[-1]) for line in lines if "cosine of int8 to float" in line]
    assert len(cosines) == len(segments_of(short)) - 1  # scores stay in single precision
    assert min(cosines) >= 0.99  # how close depends on the integer instructions of the CPU
    assert network.runs_on == "onnx int8 on the CPU"
    (dense,) = verify(short, network, paths, [POINTS["dense"]])
    assert 0 < dense.score < 0.05  # other numbers than in floating point, but the same decision
    scores = onnx.load(str(folder / "scores.onnx")).graph
    assert not any(node.op_type == "DequantizeLinear" for node in scores.node)
    graph = onnx.load(str(folder / "middle.onnx")).graph
    quantised = {node.output[0] for node in graph.node if node.op_type == "DequantizeLinear"}
    scored = [node for node in graph.node if node.op_type == "MatMul" and node.name.startswith("node_matmul")]
    assert quantised
    assert scored
    assert not any(name in quantised for node in scored for name in node.input)
