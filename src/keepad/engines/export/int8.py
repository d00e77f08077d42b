"""int8: a segment with 8-bit linear layers, but for the layers that are too sensitive to it."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from keepad.arrays import Array
from keepad.engines.export.feeds import Feed
from keepad.engines.export.gptq import UINT8_INPUT_LEVELS
from keepad.engines.export.graphs import read_model
from keepad.engines.sessions import available_threads

_SCOPES = "pkg.torch.onnx.name_scopes"  # metadata in which torch stores the modules of a node
_LAYER = re.compile(r"\.blocks\.(\d+)\.(?:attn|mlp)\.(\w+)")
# Tolerated squared error of a segment's first output, relative to its variance over the tokens. The error of the first
# segment passes through all others and changes which tokens stay.
TOLERANCES = {"early": 1.1e-3, "middle": 3e-3, "late": 3e-3, "late-whole": 3e-3}
_MEASURED_FEEDS = 12
_MOVING = (
    "Reshape",
    "Transpose",
    "Squeeze",
    "Unsqueeze",
    "Slice",
    "StridedSlice",
)  # operations between a FakeQuantize and its MatMul

LinearLayers: TypeAlias = dict[str, list[str]]  # layer -> names of its MatMul nodes


def quantise_segment(
    graph: Path,
    feeds: Sequence[Feed],
    engine: str,
    reference: Callable[[Feed], Array],
) -> tuple[Any, list[str]]:
    """An ONNX graph as the engine's model with 8-bit weights and activations, and the layers left in floating point.

    Args:
        graph: File of the graph, named after its segment; its weights are on 8-bit levels already, see `gptq`.
        feeds: Calibration inputs of the segment.
        engine: Engine of the result, "openvino" or "onnx".
        reference: The exact first output of the segment.
    """
    layers = linear_layers(graph)
    sensitive = _sensitive_layers(graph, feeds, read_model(graph, "openvino"), layers, reference)
    floating = [name for layer in sensitive for name in layers[layer]]
    model = _quantised(graph, feeds, read_model(graph, engine), floating, _parameters(engine))
    if engine == "openvino":
        quantise_uint8_products(model)
    return model, sensitive


def linear_layers(graph: Path) -> LinearLayers:
    """Linear layers of the blocks, with the names of their MatMul nodes."""
    layers: LinearLayers = {}
    for name, layer in _products(graph):
        if layer:
            layers.setdefault(layer, []).append(name)
    return layers


def _products(graph: Path) -> list[tuple[str, str | None]]:
    """Names of all MatMul nodes, each with the linear layer of a block that it belongs to, if any.

    Queries, keys and values have the same input and count as one layer.
    """
    import onnx

    products = []
    for node in onnx.load(str(graph), load_external_data=False).graph.node:
        if node.op_type in ("MatMul", "Gemm"):
            layer = _LAYER.search(next((entry.value for entry in node.metadata_props if entry.key == _SCOPES), ""))
            kind = layer and ("qkv" if layer[2] in ("q_proj", "k_proj", "v_proj") else layer[2])
            products.append((node.name, f"blocks.{layer[1]}.{kind}" if layer else None))
    return products


def _parameters(engine: str) -> dict[str, Any]:
    """NNCF's advanced parameters for an engine."""
    import nncf

    # Ranges are equalised already, and smoothing would move the weights off their levels.
    parameters: dict[str, Any] = {"smooth_quant_alphas": nncf.AdvancedSmoothQuantParameters(matmul=-1)}
    if engine == "onnx":  # its kernels for CPUs without VNNI add pairs of products in 16 bits, which 8 bits overflow
        parameters["overflow_fix"] = nncf.OverflowFix.ENABLE
    return parameters


def _quantised(
    graph: Path, feeds: Sequence[Feed], model: Any, floating: Sequence[str], parameters: dict[str, Any]
) -> Any:
    """The model with the linear layers of its blocks fake-quantised, except the MatMul nodes named `floating`.

    Embedding, attention, selectors, dissimilarity and head stay in floats too: they are cheap, and some of them decide
    which tokens stay.
    """
    import nncf
    import onnx

    inputs = [entry.name for entry in onnx.load(str(graph), load_external_data=False).graph.input]
    outside_blocks = [name for name, layer in _products(graph) if layer is None]
    patterns = [f"{name}(/.*)?$" for name in (*outside_blocks, *floating)]
    return nncf.quantize(
        model,
        nncf.Dataset(list(feeds), lambda feed: {name: feed[name] for name in inputs}),
        model_type=nncf.ModelType.TRANSFORMER,
        subset_size=len(feeds),
        ignored_scope=nncf.IgnoredScope(patterns=patterns, validate=False),
        advanced_parameters=nncf.AdvancedQuantizationParameters(**parameters),
    )


def quantise_uint8_products(model: Any) -> None:
    """Make integer products of an OpenVINO model's MatMul nodes of uint8 inputs and constants on `gptq` levels."""
    from openvino import Type, opset13

    for product in model.get_ordered_ops():
        if product.get_type_name() != "MatMul" or not product.get_attributes()["transpose_b"]:
            continue
        pixels, constants = (entry.get_source_output().get_node() for entry in product.inputs())
        is_uint8 = pixels.get_type_name() == "Convert" and pixels.get_input_element_type(0) == Type.u8
        if not is_uint8 or constants.get_type_name() != "Constant":
            continue
        limits = [opset13.constant(np.float32(limit)) for limit in (0, 255, 0, 255)]
        product.input(0).replace_source_output(opset13.fake_quantize(pixels, *limits, 256).output(0))
        weights = constants.get_data().astype(np.float32)
        steps = np.abs(weights).max(1, keepdims=True).clip(min=1e-12) / UINT8_INPUT_LEVELS
        levels = opset13.constant(np.rint(weights / steps).astype(np.int8))
        dequantised = opset13.multiply(opset13.convert(levels, np.float32), opset13.constant(steps))
        product.input(1).replace_source_output(dequantised.output(0))


def _sensitive_layers(
    graph: Path,
    feeds: Sequence[Feed],
    model: Any,
    layers: LinearLayers,
    reference: Callable[[Feed], Array],
) -> list[str]:
    """The layers, most sensitive first, that must stay in floats for the error of the segment to be tolerable."""
    measured = list(feeds[:: -(-len(feeds) // _MEASURED_FEEDS)])
    expected = [reference(feed) for feed in measured]
    # Without bias correction, which would be wrong for a layer that returns to floats.
    uncorrected = {"disable_bias_correction": True, "backend_params": {"compress_weights": False}}
    quantised = _quantised(graph, feeds, model, [], {**_parameters("openvino"), **uncorrected})
    total, tolerance = relative_error(expected, first_outputs(quantised, measured)), TOLERANCES[graph.stem]
    if total <= tolerance:
        return []
    without = {
        layer: relative_error(expected, first_outputs(_in_floats(quantised, names), measured))
        for layer, names in layers.items()
    }
    return most_sensitive(total, without, tolerance)


def most_sensitive(total: float, without: dict[str, float], tolerance: float) -> list[str]:
    """The fewest layers, most sensitive first, that must stay in floats; errors of layers are taken to add up.

    Args:
        total: Error with all layers quantised.
        without: Error with all but this layer quantised.
        tolerance: Largest error allowed.
    """
    sensitive: list[str] = []
    error = total
    for layer in sorted(without, key=lambda layer: without[layer]):
        if error <= tolerance or without[layer] >= total:
            break
        error -= total - without[layer]
        sensitive.append(layer)
    return sensitive


def _in_floats(quantised: Any, names: Sequence[str]) -> Any:
    """A copy of the model without the fake quantisation of these MatMul nodes' inputs."""
    model = quantised.clone()
    for product in model.get_ordered_ops():
        if product.get_type_name() == "MatMul" and product.get_friendly_name().partition("/")[0] in names:
            for entry in product.inputs():
                source = entry.get_source_output().get_node()
                while source.get_type_name() in _MOVING:
                    source = source.input_value(0).get_node()
                if source.get_type_name() == "FakeQuantize":  # all its consumers are of the same layer
                    source.output(0).replace(source.input_value(0))
    return model


def first_outputs(model: Any, feeds: Sequence[Feed]) -> list[Array]:
    """First output of an OpenVINO model for each feed, computed in fp32 where it is not quantised."""
    import openvino

    settings = {"INFERENCE_NUM_THREADS": available_threads(), "INFERENCE_PRECISION_HINT": "f32"}
    compiled = openvino.Core().compile_model(model, "CPU", settings)
    names = [entry.get_any_name() for entry in compiled.inputs]
    return [compiled([feed[name] for name in names])[0].copy() for feed in feeds]


def relative_error(expected: Sequence[Array], actual: Sequence[Array]) -> float:
    """Mean squared error of outputs, (n, C) each, relative to their variance over the tokens."""
    pairs = zip(expected, actual, strict=True)
    return float(np.mean([np.square(b - a).mean() / (np.square(a - a.mean(0)).mean() + 1e-12) for a, b in pairs]))
