"""export(): the segments of a network written for an engine, in a folder that runs without torch."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

from keepad.arrays import Array
from keepad.console import Say
from keepad.engines.export.feeds import Feed, describe, segment_feeds
from keepad.engines.export.folding import folded
from keepad.engines.export.gptq import quantise_weights, rotate_tokens
from keepad.engines.export.graphs import quiet, read_model, write_graphs, write_model
from keepad.engines.export.int8 import quantise_segment
from keepad.engines.export.segments import Segment, segments_of
from keepad.engines.folder import DESCRIPTION, SUFFIXES, digest_of_file, write_description
from keepad.engines.network import FEWEST_PATCHES
from keepad.engines.sessions import open_session
from keepad.engines.steps import SCORES
from keepad.errors import KeepADError
from keepad.files import writable_folder
from keepad.network import Network
from keepad.sources import ImageSource

PRECISIONS = {"openvino": ("fp32", "bf16", "int8"), "onnx": ("fp32", "int8")}
_LOWEST_COSINE = 0.98  # to the float outputs; below, a segment stays in floating point
_COMPARED_FEEDS = 8


@dataclass(frozen=True)
class _Target:
    """Where a segment goes, and how."""

    path: Path
    engine: str
    precision: str
    feeds: Sequence[Feed]
    say: Say


def export(
    network: Network,
    out: str | Path,
    *,
    engine: str = "openvino",
    precision: str = "fp32",
    images: Sequence[ImageSource] = (),
    say: Say = lambda line: None,
) -> Path:
    """The folder of an exported network: segments, preprocessing, calibration, thresholds and provenance.

    Args:
        network: The network; it is moved to the CPU.
        out: Folder to write to; an exported network in it is replaced.
        engine: "openvino" or "onnx".
        precision: "fp32"; "bf16" (OpenVINO); or "int8", calibrated on `images`.
        images: Source images, for int8.
        say: Called with one line for every step.

    Raises:
        KeepADError: The engine has no such precision, something is missing, or the folder cannot be written.
    """
    check_request(engine, precision, images)
    rows, columns = network.grid
    if rows * columns < FEWEST_PATCHES:
        raise KeepADError(f"a grid of {rows}x{columns} patches is too small to export; use a larger image size.")
    if network.placement.early_head_layers:
        raise KeepADError(
            f"{network.name} reads layer {network.placement.early_head_layers[0]} before its deep router at "
            f"{network.placement.deep}, which exports cannot do; run it in torch."
        )
    out = writable_folder(Path(out))
    (out / DESCRIPTION).unlink(missing_ok=True)
    for old in (path for name in segments_of(network) for path in out.glob(f"{name}.*")):
        old.unlink()  # possibly of another engine
    exact = written = folded(network.cpu())
    rotation, feeds = None, dict[str, list[Feed]]()
    if precision == "int8":
        say(f"calibrating on {len(images)} images")
        rotation = rotate_tokens(exact)
        written = quantise_weights(exact, lambda: segment_feeds(exact, images, rotation)["early"])
        feeds = segment_feeds(exact, images, rotation)
    references = segments_of(exact, rotation)
    floating: list[str] = []
    try:
        with quiet(), tempfile.TemporaryDirectory() as folder:
            for name, graph in write_graphs(segments_of(written, rotation), Path(folder), say).items():
                kind = "fp32" if name == SCORES else precision
                target = _Target(out / f"{name}{SUFFIXES[engine]}", engine, kind, feeds.get(name, []), say)
                floating += _convert(graph, references[name], target)
    except OSError as error:
        raise KeepADError(f"{out} could not be written: {error.strerror or error}.") from error
    except ImportError as error:
        raise KeepADError(f"{error.name} is not installed; `pip install keepad[export]` brings it.") from error
    files = sorted(path for name in references for path in out.glob(f"{name}.*"))
    digests = {path.name: digest_of_file(path) for path in files}
    info = describe(network, engine, precision)
    write_description(out, replace(info, floating=tuple(floating), files=digests))
    return out


def check_request(engine: str, precision: str, images: Sequence[ImageSource]) -> None:
    """Refuse what cannot be exported before anything is loaded for it."""
    if engine not in PRECISIONS:
        raise KeepADError(f"there is no engine called {engine!r}; choose one of {', '.join(PRECISIONS)}.")
    if precision not in PRECISIONS[engine]:
        raise KeepADError(f"{engine} cannot be exported as {precision!r}; choose {' or '.join(PRECISIONS[engine])}.")
    if precision == "int8" and not images:
        raise KeepADError("int8 needs source images to choose its scales by; name some with --calibrate.")


def _convert(graph: Path, reference: Segment, target: _Target) -> list[str]:
    """Write the engine's file of an ONNX graph; the layers that stayed in floating point."""
    name, engine, say = target.path.stem, target.engine, target.say
    if target.precision != "int8":
        write_model(read_model(graph, engine), target.path, engine)
        return []

    @torch.no_grad()
    def exact(feed: Feed) -> list[Array]:
        return [output.numpy() for output in reference(*(torch.from_numpy(feed[name]) for name in reference.inputs))]

    model, kept = quantise_segment(graph, target.feeds, engine, lambda feed: exact(feed)[0])
    write_model(model, target.path, engine)
    if kept:
        say(f"{name}: {', '.join(kept)} stay in floating point, where int8 would err too much")
    cosine = _lowest_cosine(exact, target)
    say(f"{name}: cosine of int8 to float {cosine:.4f}")
    if cosine >= _LOWEST_COSINE:
        return [f"{name} {layer}" for layer in kept]
    say(f"{name}: stays in floating point, where int8 would err too much")
    write_model(read_model(graph, engine), target.path, engine)
    return [name]


def _lowest_cosine(exact: Callable[[Feed], list[Array]], target: _Target) -> float:
    """Lowest mean cosine between an exact output and that of the written file."""
    session = open_session(target.engine, target.path, precision="int8", threads=None)
    cosines = [
        [_cosine(a, b) for a, b in zip(exact(feed), session(**feed), strict=True)]
        for feed in target.feeds[:_COMPARED_FEEDS]
    ]
    return float(np.mean(cosines, axis=0).min())


def _cosine(a: Array, b: Array) -> float:
    a, b = a.ravel().astype(np.float64), b.ravel().astype(np.float64)
    return float(a @ b / (np.linalg.norm(a) * np.linalg.norm(b) + 1e-12))
