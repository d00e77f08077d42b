"""Integers where they pay: the layer that hurts most is found, stays in floats, and that helps."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import openvino
import pytest
import torch
from openvino import Type, opset13

from keepad.engines import integers
from keepad.engines.export.folding import folded
from keepad.engines.export.int8 import in_integers, worst_first
from keepad.engines.export.writing import _feeds, _read, _to_onnx, segments_of
from keepad.network import KeepAD


@pytest.fixture(scope="module")
def middle(tiny: KeepAD, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[integers.Feed]]:
    """Blocks 4 and 5 of a detector whose fourth MLP has a spike that eight bits cannot hold, and what enters them."""
    model = folded(tiny)
    fc1, fc2 = model.backbone.vit.blocks[3].mlp.fc1, model.backbone.vit.blocks[3].mlp.fc2
    with torch.no_grad():
        fc1.weight[:8] *= 30  # now and then some of these units are far above all others
        fc2.weight[:, :8] /= 30
    draw = np.random.default_rng(0)
    images = [draw.integers(0, 256, (*model.image_size, 3), dtype=np.uint8) for _ in range(4)]
    graph = tmp_path_factory.mktemp("graph") / "middle.onnx"
    _to_onnx(segments_of(model)["middle"], graph)
    return graph, _feeds(model, images)["middle"]


def test_the_layer_that_hurts_stays_in_floats_and_the_segment_is_closer_for_it(middle, monkeypatch):
    graph, feeds = middle

    def read(engine: str) -> object:
        return _read(graph, engine)

    right = integers._outputs(read("openvino"), feeds)

    def right_of(feed: integers.Feed) -> np.ndarray:
        return integers._outputs(read("openvino"), [feed])[0]

    monkeypatch.setitem(integers._TOLERATED, "middle", float("inf"))
    every, hurt = in_integers(graph, feeds, read, "openvino", right_of)
    assert hurt == []
    most = integers._error(right, integers._outputs(every, feeds))
    monkeypatch.setitem(integers._TOLERATED, "middle", 0.7 * most)
    some, hurt = in_integers(graph, feeds, read, "openvino", right_of)
    assert hurt[0] in ("blocks.3.fc1", "blocks.3.fc2")
    wrong = [integers._error(right, integers._outputs(model, feeds)) for model in (every, some)]
    assert 0 < wrong[1] < 0.9 * wrong[0]
    names = integers._linear_layers(graph)[hurt[0]]
    for model, quantised in ((every, True), (some, False)):
        assert [_has_quantiser(model, name) for name in dict.fromkeys(names)] == [quantised] * len(set(names))


def _has_quantiser(model, name: str) -> bool:
    """Whether what enters a product was rounded to integers."""
    (product,) = (
        one
        for one in model.get_ordered_ops()
        if one.get_type_name() == "MatMul" and one.get_friendly_name().partition("/")[0] == name
    )
    return product.input_value(0).get_node().get_type_name() == "FakeQuantize"


def test_bytes_are_multiplied_as_they_are():
    draw = np.random.default_rng(0)
    levels = draw.integers(0, 256, (7, 12), dtype=np.uint8)
    steps = draw.random((5, 1)).astype(np.float32)
    weights = draw.integers(-63, 64, (5, 12)).astype(np.float32)
    weights[:, 3] = 63  # an output's largest weight is its last step, as `rounding` leaves it
    given = opset13.parameter([-1, 12], np.uint8)
    product = opset13.matmul(opset13.convert(given, np.float32), opset13.constant(weights * steps), False, True)
    model = openvino.Model([product], [given])
    integers._multiply_bytes(model)
    assert "FakeQuantize" in {one.get_type_name() for one in model.get_ordered_ops()}
    assert weights.size in {one.get_data().size for one in _constants(model) if one.get_element_type() == Type.i8}
    (found,) = openvino.Core().compile_model(model, "CPU")([levels]).values()
    np.testing.assert_allclose(found, levels.astype(np.float32) @ (weights * steps).T, rtol=1e-5, atol=1e-3)


def _constants(model) -> list:
    return [one for one in model.get_ordered_ops() if one.get_type_name() == "Constant"]


def test_layers_are_given_back_worst_first_until_little_is_wrong():
    without = {"a": 9.0, "b": 6.0, "c": 7.0, "harmless": 10.5}
    assert worst_first(10.0, without, 10.0) == []
    assert worst_first(10.0, without, 6.0) == ["b"]
    assert worst_first(10.0, without, 5.9) == ["b", "c"]
    assert worst_first(10.0, without, 0.0) == ["b", "c", "a"]


def test_layers_of_a_segment_are_named_by_block_and_kind(middle):
    graph, _ = middle
    kinds = ("qkv", "proj", "fc1", "fc2")
    assert list(integers._linear_layers(graph)) == [f"blocks.{block}.{kind}" for block in (3, 4) for kind in kinds]
