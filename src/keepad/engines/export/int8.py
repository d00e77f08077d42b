"""Integers: a segment with 8-bit products wherever that pays, and in floating point wherever it hurts."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from keepad.arrays import Array
from keepad.engines.export.feeds import Feed
from keepad.engines.export.gptq import LEVELS_BESIDE_BYTES
from keepad.engines.sessions import available_threads

_SCOPES = "pkg.torch.onnx.name_scopes"  # under which torch writes the modules that a node comes from
_LAYER = re.compile(r"\.blocks\.(\d+)\.(?:attn|mlp)\.(\w+)")
# Squared error that integers may make in what a segment gives, relative to its spread. What the first one makes wrong
# goes through all others and decides who stays.
_TOLERATED = {"early": 1.1e-3, "middle": 3e-3, "late": 3e-3, "late-whole": 3e-3}
_LOOKED_AT = 12  # feeds that say so
_MOVING = ("Reshape", "Transpose", "Squeeze", "Unsqueeze")  # operations that a quantiser may stand before


def quantise_segment(
    graph: Path,
    feeds: Sequence[Feed],
    read: Callable[[str], Any],
    engine: str,
    right: Callable[[Feed], Array],
) -> tuple[Any, list[str]]:
    """An ONNX graph as the engine's model with 8-bit weights and activations, and the layers that stayed in floats.

    Args:
        graph: File of the graph, called as its segment; `rounding` has prepared it.
        feeds: Inputs that its scales are chosen by.
        read: Gives the graph as the model of an engine.
        engine: Whose model it becomes: "openvino" or "onnx".
        right: What the segment's first output should be.
    """
    layers = _linear_layers(graph)
    hurt = _hurt(graph, feeds, read("openvino"), layers, right)
    names = [name for layer in hurt for name in layers[layer]]
    found = _quantised(graph, feeds, read(engine), names, _parameters(engine))
    if engine == "openvino":
        _multiply_bytes(found)
    return found, hurt


def _parameters(engine: str) -> dict[str, Any]:
    import nncf

    # Ranges are divided out already, and weights would no longer lie on the steps that they were rounded to.
    found: dict[str, Any] = {"smooth_quant_alphas": nncf.AdvancedSmoothQuantParameters(matmul=-1)}
    if engine == "onnx":  # its kernels for CPUs without VNNI add pairs of products in 16 bits, which 8 bits overflow
        found["overflow_fix"] = nncf.OverflowFix.ENABLE
    return found


def _quantised(
    graph: Path, feeds: Sequence[Feed], content: Any, floating: Sequence[str], parameters: dict[str, Any]
) -> Any:
    """The model with the linear layers of the blocks in integers but for the products called `floating`."""
    import nncf
    import onnx

    inputs = [one.name for one in onnx.load(str(graph), load_external_data=False).graph.input]
    patterns = [f"{name}(/.*)?$" for name in (*_outside_blocks(graph), *floating)]
    return nncf.quantize(
        content,
        nncf.Dataset(list(feeds), lambda feed: {name: feed[name] for name in inputs}),
        model_type=nncf.ModelType.TRANSFORMER,
        subset_size=len(feeds),
        ignored_scope=nncf.IgnoredScope(patterns=patterns, validate=False),
        advanced_parameters=nncf.AdvancedQuantizationParameters(**parameters),
    )


def _multiply_bytes(model: Any) -> None:
    """Let products of bytes with constants be products of integers; `rounding` has put the constants on steps."""
    from openvino import Type, opset13

    for product in model.get_ordered_ops():
        if product.get_type_name() != "MatMul" or not product.get_attributes()["transpose_b"]:
            continue
        levels, constants = (given.get_source_output().get_node() for given in product.inputs())
        of_bytes = levels.get_type_name() == "Convert" and levels.get_input_element_type(0) == Type.u8
        if not of_bytes or constants.get_type_name() != "Constant":
            continue
        ends = [opset13.constant(np.float32(end)) for end in (0, 255, 0, 255)]
        product.input(0).replace_source_output(opset13.fake_quantize(levels, *ends, 256).output(0))
        weights = constants.get_data().astype(np.float32)
        steps = np.abs(weights).max(1, keepdims=True).clip(min=1e-12) / LEVELS_BESIDE_BYTES
        whole = opset13.constant(np.rint(weights / steps).astype(np.int8))
        written = opset13.multiply(opset13.convert(whole, np.float32), opset13.constant(steps))
        product.input(1).replace_source_output(written.output(0))


def _hurt(
    graph: Path,
    feeds: Sequence[Feed],
    content: Any,
    layers: dict[str, list[str]],
    right_of: Callable[[Feed], Array],
) -> list[str]:
    """The layers, worst first, without which integers make no more wrong in the segment's first output than they may.

    What layers make wrong adds up, so each one is looked at alone.
    """
    few = list(feeds[:: -(-len(feeds) // _LOOKED_AT)])
    right = [right_of(feed) for feed in few]
    # Without its correction of biases, which would be wrong for a layer that is given back its floats.
    trial = {**_parameters("openvino"), "disable_bias_correction": True, "backend_params": {"compress_weights": False}}
    quantised = _quantised(graph, feeds, content, [], trial)
    whole, tolerated = _error(right, _outputs(quantised, few)), _TOLERATED[graph.stem]
    if whole <= tolerated:
        return []
    without = {layer: _error(right, _outputs(_in_floats(quantised, names), few)) for layer, names in layers.items()}
    return worst_first(whole, without, tolerated)


def worst_first(whole: float, without: dict[str, float], tolerated: float) -> list[str]:
    """The fewest layers that must be given back their floats.

    Args:
        whole: Error with all layers in integers.
        without: Error with each one given back its floats.
        tolerated: Error that may be left.
    """
    found: list[str] = []
    left = whole
    for layer in sorted(without, key=lambda layer: without[layer]):
        if left <= tolerated or without[layer] >= whole:
            break
        left -= whole - without[layer]
        found.append(layer)
    return found


def _in_floats(quantised: Any, names: Sequence[str]) -> Any:
    """The model with these products given back what they had before it was quantised."""
    model = quantised.clone()
    for product in model.get_ordered_ops():
        if product.get_type_name() == "MatMul" and product.get_friendly_name().partition("/")[0] in names:
            for given in product.inputs():
                source = given.get_source_output().get_node()
                while source.get_type_name() in _MOVING:
                    source = source.input_value(0).get_node()
                if source.get_type_name() == "FakeQuantize":  # all who read it are of the same layer
                    source.output(0).replace(source.input_value(0))
    return model


def _outputs(model: Any, feeds: Sequence[Feed]) -> list[Array]:
    """First output of the model for each feed."""
    import openvino

    settings = {"INFERENCE_NUM_THREADS": available_threads(), "INFERENCE_PRECISION_HINT": "f32"}
    compiled = openvino.Core().compile_model(model, "CPU", settings)
    names = [one.get_any_name() for one in compiled.inputs]
    return [compiled([feed[name] for name in names])[0].copy() for feed in feeds]


def _error(right: Sequence[Array], found: Sequence[Array]) -> float:
    """Mean squared error, relative to how much each output varies from token to token."""
    pairs = zip(right, found, strict=True)
    return float(np.mean([np.square(b - a).mean() / (np.square(a - a.mean(0)).mean() + 1e-12) for a, b in pairs]))


def _products(graph: Path) -> list[tuple[str, str | None]]:
    """Names of all products, each with the linear layer of a block that it is, if it is one.

    Queries, keys and values read the same, and are one layer.
    """
    import onnx

    found = []
    for node in onnx.load(str(graph), load_external_data=False).graph.node:
        if node.op_type in ("MatMul", "Gemm"):
            layer = _LAYER.search(next((one.value for one in node.metadata_props if one.key == _SCOPES), ""))
            kind = layer and ("qkv" if layer[2] in ("q_proj", "k_proj", "v_proj") else layer[2])
            found.append((node.name, f"blocks.{layer[1]}.{kind}" if layer else None))
    return found


def _linear_layers(graph: Path) -> dict[str, list[str]]:
    """Linear layers of the blocks -> names of their products."""
    found: dict[str, list[str]] = {}
    for name, layer in _products(graph):
        if layer:
            found.setdefault(layer, []).append(name)
    return found


def _outside_blocks(graph: Path) -> list[str]:
    """Names of the other products: embedding, attention, and the few small products of selectors, dissimilarity, head,
    which decide who stays and cost nothing."""
    return [name for name, layer in _products(graph) if layer is None]
