"""Graphs: segments as ONNX graphs, and these as models of an engine."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from keepad.console import Say
from keepad.engines.export.segments import Early, Late, Segment

_LANDMARKS = 8  # every so many cells in the example, so that their number equals no other


def write_graphs(segments: Mapping[str, Segment], folder: Path, say: Say) -> dict[str, Path]:
    """The ONNX graphs of all segments, by name, written to `folder`.

    Tracing takes most of the time of an export, so a late segment is cut from the one that runs further, if that works.

    Args:
        segments: The segments.
        folder: Folder to write to.
        say: Called with one line for every segment.
    """
    paths = {name: folder / f"{name}.onnx" for name in segments}
    late = {name: segment.layers for name, segment in segments.items() if isinstance(segment, Late)}
    longest = max(late, key=lambda name: late[name])
    for name in sorted(segments, key=lambda name: name != longest):
        say(f"{name}: to ONNX")
        is_part = name in late and name != longest
        if not is_part or not cut_graph(paths[longest], paths[name], late[name], of=late[longest]):
            write_graph(segments[name], paths[name])
    return paths


def write_graph(segment: Segment, path: Path) -> None:
    """Write a segment as an ONNX graph for any number of tokens."""
    import onnxscript  # noqa: F401 - torch needs it; without it, torch's own message is long

    example = _example(segment)
    with torch.no_grad():
        torch.onnx.export(
            segment.eval(),
            example,
            str(path),
            dynamo=True,
            input_names=list(segment.inputs),
            output_names=list(segment.outputs),
            dynamic_shapes=tuple({0: torch.export.Dim.AUTO} for _ in example),
            external_data=False,
            verbose=False,
        )


def cut_graph(whole: Path, path: Path, layers: int, *, of: int) -> bool:
    """Write the part of a late graph that its first head layers need; False where it cannot be cut.

    Args:
        whole: File of the graph; every output is a concatenation over its head layers.
        path: File to write.
        layers: Number of head layers to keep.
        of: Number of head layers in the graph.
    """
    import onnx

    model = onnx.load(str(whole))
    graph = model.graph
    stacks = [node for node in graph.node if node.output[0] in {output.name for output in graph.output}]
    shapes = [(node.op_type, len(node.input), [entry.i for entry in node.attribute]) for node in stacks]
    if shapes != [("Concat", of, [0])] * len(graph.output):  # another version of the exporter writes other nodes
        return False
    for node in stacks:
        del node.input[layers:]
    for output in graph.output:
        output.type.tensor_type.shape.dim[0].dim_value = layers
    needed = {output.name for output in graph.output}
    nodes = []
    for node in reversed(graph.node):  # in topological order, so that consumers come first here
        if needed.intersection(node.output):
            needed.update(node.input)
            nodes.append(node)
    for field, kept in (
        ("node", nodes[::-1]),
        ("initializer", [value for value in graph.initializer if value.name in needed]),
        ("value_info", [value for value in graph.value_info if value.name in needed]),
    ):
        graph.ClearField(field)
        getattr(graph, field).extend(kept)
    onnx.save(model, str(path))
    return True


def read_model(graph: Path, engine: str) -> Any:
    """An ONNX graph as the model of an engine."""
    if engine == "onnx":
        import onnx

        return onnx.load(str(graph))
    import openvino

    return openvino.convert_model(str(graph))


def write_model(model: Any, target: Path, engine: str) -> None:
    """Write the model of an engine to its file."""
    if engine == "onnx":
        import onnx

        onnx.save(model, str(target))
    else:
        import openvino

        openvino.save_model(model, str(target), compress_to_fp16=False)


def _example(segment: Segment) -> tuple[Tensor, ...]:
    """Inputs for tracing; their number of tokens equals no size of the network, so none becomes a constant."""
    network, generator = segment.network, torch.Generator().manual_seed(0)
    cells = network.grid[0] * network.grid[1]
    live = cells if isinstance(segment, Early) else cells - 3
    count = cells - 5  # fewer tokens than cells, so that some are shared
    token = torch.arange(live).clamp(max=count - 1)
    width = 3 * network.patch[0] * network.patch[1]
    dropped, left = cells - 9, cells - 11
    groups = torch.arange(dropped).clamp(max=left - 1)
    inputs = {
        "patches": torch.randint(0, 256, (count, width), generator=generator, dtype=torch.uint8),
        "tokens": torch.randn(count + network.backbone.prefix, network.backbone.width, generator=generator),
        "index": torch.arange(count),
        "cells": torch.arange(live),
        "token": token,
        "size": torch.bincount(token).float(),
        "entry": torch.rand(live, generator=generator),
        "landmarks": torch.arange(live)[::_LANDMARKS],
        "context": torch.randn(left, network.backbone.width, generator=generator),
        "context_index": torch.arange(left),
        "context_cells": torch.arange(dropped),
        "context_token": groups,
        "context_size": torch.bincount(groups).float(),
    }
    return tuple(inputs[name] for name in segment.inputs)


@contextmanager
def quiet() -> Iterator[None]:
    """Silence the logs of torch.export and onnxscript, and decline the usage reports of OpenVINO and NNCF."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings(), _without_telemetry():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


@contextmanager
def _without_telemetry() -> Iterator[None]:
    """Decline the usage reports that OpenVINO's converter and NNCF would send over the network."""
    try:
        from openvino_telemetry.utils import opt_in_checker
    except ImportError:
        yield
        return
    check = opt_in_checker.OptInChecker.check
    opt_in_checker.OptInChecker.check = lambda *_, **__: opt_in_checker.ConsentCheckResult.DECLINED
    try:
        yield
    finally:
        opt_in_checker.OptInChecker.check = check
