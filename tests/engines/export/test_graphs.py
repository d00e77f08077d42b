"""Graphs: the shorter late segment is a part of the longer one, and is traced where it cannot be cut from it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from keepad.engines.export import graphs
from keepad.engines.export.graphs import cut_graph, write_graphs
from keepad.engines.export.segments import Segment, segments_of
from keepad.network import Network


def write_stacked(path: Path, op: str = "Concat") -> None:
    """A graph of three layers, x + 1, 2x + 2 and 10x + 10, whose two outputs hold one row per layer."""
    axis: dict[str, Any] = {"axis": 0} if op == "Concat" else {}
    constants = {"one": 1.0, "two": 2.0, "five": 5.0}
    nodes = [
        helper.make_node("Add", ["x", "one"], ["a"]),
        helper.make_node("Mul", ["a", "two"], ["b"]),
        helper.make_node("Mul", ["b", "five"], ["c"]),
        *(helper.make_node(op, ["a", "b", "c"], [name], **axis) for name in "yz"),
    ]
    graph = helper.make_graph(
        nodes,
        "late",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, "n"])],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, [3, "n"]) for name in "yz"],
        [numpy_helper.from_array(np.float32(value), name) for name, value in constants.items()],
        value_info=[helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, "n"]) for name in "abc"],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9), str(path))


def test_a_part_gives_its_layers_and_holds_nothing_of_the_others(tmp_path: Path) -> None:
    whole, part = tmp_path / "whole.onnx", tmp_path / "part.onnx"
    write_stacked(whole)
    assert cut_graph(whole, part, 2, of=3)
    graph = onnx.load(str(part)).graph
    onnx.checker.check_model(str(part), full_check=True)
    assert [node.op_type for node in graph.node] == ["Add", "Mul", "Concat", "Concat"]
    assert {value.name for value in graph.initializer} == {"one", "two"}
    assert {value.name for value in graph.value_info} == {"a", "b"}
    x = np.array([[0.0, 3.0]], np.float32)
    for name, values in zip("yz", onnxruntime.InferenceSession(str(part)).run(None, {"x": x}), strict=True):
        np.testing.assert_array_equal(values, [[1, 4], [2, 8]], err_msg=name)


@pytest.mark.parametrize(("op", "layers"), [("Sum", 3), ("Concat", 4)])
def test_outputs_that_are_no_rows_of_these_layers_are_not_cut(op: str, layers: int, tmp_path: Path) -> None:
    write_stacked(tmp_path / "whole.onnx", op)
    assert not cut_graph(tmp_path / "whole.onnx", tmp_path / "part.onnx", 2, of=layers)
    assert not (tmp_path / "part.onnx").exists()


@pytest.mark.parametrize(("op", "traced"), [("Concat", []), ("Sum", ["late"])])
def test_the_shorter_late_segment_is_traced_where_it_cannot_be_cut(
    short: Network, op: str, traced: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names: list[str] = []

    def write_graph(segment: Segment, path: Path) -> None:
        names.append(path.stem)
        write_stacked(path, op)

    monkeypatch.setattr(graphs, "write_graph", write_graph)
    paths = write_graphs(segments_of(short), tmp_path, lambda line: None)
    assert names == ["late-whole", "early", "scores", "middle", *traced]
    assert {name: path.is_file() for name, path in paths.items()} == dict.fromkeys(segments_of(short), True)
