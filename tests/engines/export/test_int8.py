"""int8: the most sensitive layer stays in floats, which lowers the error; uint8 inputs are multiplied as they are."""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import openvino
import pytest
import torch
from openvino import Type, opset13

from keepad.arrays import Array
from keepad.assembly import untrained
from keepad.engines.export.feeds import Feed, segment_feeds
from keepad.engines.export.folding import folded
from keepad.engines.export.graphs import quiet, read_model, write_graph
from keepad.engines.export.int8 import (
    TOLERANCES,
    first_outputs,
    linear_layers,
    most_sensitive,
    quantise_segment,
    quantise_uint8_products,
    relative_error,
)
from keepad.engines.export.segments import segments_of

Middle: TypeAlias = tuple[Path, list[Feed]]


@pytest.fixture(scope="module")
def middle(tmp_path_factory: pytest.TempPathFactory) -> Middle:
    """Graph and inputs of blocks 4 and 5 of a network whose fourth MLP has outlier units."""
    network = folded(untrained("vit_tiny_patch16_224", seed=1, image_size=(9 * 16, 11 * 16)))
    mlp = network.backbone.vit.blocks[3].mlp
    with torch.no_grad():
        mlp.fc1.weight[:8] *= 30
        mlp.fc2.weight[:, :8] /= 30
    random = np.random.default_rng(0)
    images = [random.integers(0, 256, (*network.image_size, 3), dtype=np.uint8) for _ in range(4)]
    graph = tmp_path_factory.mktemp("graph") / "middle.onnx"
    with quiet():
        write_graph(segments_of(network)["middle"], graph)
    return graph, segment_feeds(network, images)["middle"]


def test_the_most_sensitive_layer_stays_in_floats_and_lowers_the_error(
    middle: Middle, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph, feeds = middle

    exact = read_model(graph, "openvino")

    def reference(feed: Feed) -> Array:
        return first_outputs(exact, [feed])[0]

    expected = first_outputs(exact, feeds)
    monkeypatch.setitem(TOLERANCES, "middle", float("inf"))
    all_quantised, sensitive = quantise_segment(graph, feeds, "openvino", reference)
    assert sensitive == []
    error = relative_error(expected, first_outputs(all_quantised, feeds))
    monkeypatch.setitem(TOLERANCES, "middle", 0.7 * error)
    some_quantised, sensitive = quantise_segment(graph, feeds, "openvino", reference)
    assert sensitive[0] in ("blocks.3.fc1", "blocks.3.fc2")
    assert 0 < relative_error(expected, first_outputs(some_quantised, feeds)) < 0.9 * error
    names = linear_layers(graph)[sensitive[0]]
    for model, quantised in ((all_quantised, True), (some_quantised, False)):
        assert [_has_quantised_input(model, name) for name in dict.fromkeys(names)] == [quantised] * len(set(names))


def _has_quantised_input(model: Any, name: str) -> bool:
    (product,) = (
        node
        for node in model.get_ordered_ops()
        if node.get_type_name() == "MatMul" and node.get_friendly_name().partition("/")[0] == name
    )
    return bool(product.input_value(0).get_node().get_type_name() == "FakeQuantize")


def test_products_of_uint8_inputs_are_integer_products() -> None:
    random = np.random.default_rng(0)
    pixels = random.integers(0, 256, (7, 12), dtype=np.uint8)
    steps = random.random((5, 1)).astype(np.float32)
    levels = random.integers(-63, 64, (5, 12)).astype(np.float32)
    levels[:, 3] = 63  # the largest weight of an output is on the last level, as `gptq` leaves it
    parameter = opset13.parameter([-1, 12], np.uint8)
    product = opset13.matmul(opset13.convert(parameter, np.float32), opset13.constant(levels * steps), False, True)
    model = openvino.Model([product], [parameter])
    quantise_uint8_products(model)
    nodes = model.get_ordered_ops()
    assert "FakeQuantize" in {node.get_type_name() for node in nodes}
    constants = [node for node in nodes if node.get_type_name() == "Constant"]
    assert levels.size in {node.get_data().size for node in constants if node.get_element_type() == Type.i8}
    (actual,) = openvino.Core().compile_model(model, "CPU")([pixels]).values()
    np.testing.assert_allclose(actual, pixels.astype(np.float32) @ (levels * steps).T, rtol=1e-5, atol=1e-3)


def test_layers_return_to_floats_most_sensitive_first_until_the_error_is_tolerable() -> None:
    without = {"a": 9.0, "b": 6.0, "c": 7.0, "harmless": 10.5}
    assert most_sensitive(10.0, without, 10.0) == []
    assert most_sensitive(10.0, without, 6.0) == ["b"]
    assert most_sensitive(10.0, without, 5.9) == ["b", "c"]
    assert most_sensitive(10.0, without, 0.0) == ["b", "c", "a"]


def test_layers_of_a_segment_are_named_by_block_and_kind(middle: Middle) -> None:
    graph, _ = middle
    kinds = ("qkv", "proj", "fc1", "fc2")
    assert list(linear_layers(graph)) == [f"blocks.{block}.{kind}" for block in (3, 4) for kind in kinds]
