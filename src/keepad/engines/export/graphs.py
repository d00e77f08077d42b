"""Graphs: a segment as an ONNX graph, and that graph as the model of an engine."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from keepad.engines.export.segments import Early, Scores, Segment


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
    live = cells if isinstance(segment, Early | Scores) else cells - 3
    count = cells - 5  # fewer tokens than cells, so that some are shared
    token = torch.arange(live).clamp(max=count - 1)
    width = 3 * network.patch[0] * network.patch[1]
    inputs = {
        "patches": torch.randint(0, 256, (count, width), generator=generator, dtype=torch.uint8),
        "tokens": torch.randn(count + network.backbone.prefix, network.backbone.width, generator=generator),
        "index": torch.arange(count),
        "cells": torch.arange(live),
        "token": token,
        "size": torch.bincount(token).float(),
        "entry": torch.rand(live, generator=generator),
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
