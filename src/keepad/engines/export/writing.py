"""export(): a detector cut into segments and written for an engine; verify(): whether it still says the same."""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from keepad.arrays import Array
from keepad.detector import ImageSource
from keepad.engines.export.folding import folded
from keepad.engines.export.gptq import rounded, turned
from keepad.engines.export.int8 import Feed, in_integers
from keepad.engines.export.segments import Middle, Prefix, Scores, Segment, Tail
from keepad.engines.folder import DESCRIPTION, SUFFIXES, EngineInfo, digest_of_file, write_description
from keepad.engines.network import SCORES, EngineDetector, patches_of, tail_name
from keepad.engines.sessions import open_session
from keepad.errors import KeepADError
from keepad.files import writable_folder
from keepad.images import read_image, to_input
from keepad.network import KeepAD
from keepad.presets import POINTS, OperatingPoint
from keepad.routing import keep_deep, keep_shallow

PRECISIONS = {"openvino": ("fp32", "bf16", "int8"), "onnx": ("fp32", "int8")}
CALIBRATION_POINT = "prune70"
_FEWEST_PATCHES = 90  # below, a pruned pass may leave fewer tokens than dissimilarity has neighbours
_WORST_LIKENESS = 0.98  # cosine to the float outputs under which a segment stays in floating point
_COMPARED = 8  # images that say so

Say = Callable[[str], None]


def export(
    model: KeepAD,
    out: str | Path,
    *,
    engine: str = "openvino",
    precision: str = "fp32",
    images: Sequence[ImageSource] = (),
    say: Say = lambda line: None,
) -> Path:
    """The folder of an exported detector: segments, preprocessing, thresholds, calibration and provenance.

    Args:
        model: The detector; it is moved to the CPU.
        out: Folder to write to; an exported detector in it is replaced.
        engine: "openvino" or "onnx".
        precision: "fp32"; "bf16" (OpenVINO); or "int8", which looks at `images` to choose its scales.
        images: Source images, for int8.
        say: Called with one line for every step.

    Raises:
        KeepADError: The engine has no such precision, something is missing, or the folder cannot be written.
    """
    check_request(engine, precision, images)
    rows, columns = model.grid
    if rows * columns < _FEWEST_PATCHES:
        raise KeepADError(f"a grid of {rows}x{columns} patches is too small to export; use a larger image size.")
    out = writable_folder(Path(out))
    (out / DESCRIPTION).unlink(missing_ok=True)
    for old in (path for name in segments_of(model) for path in out.glob(f"{name}.*")):
        old.unlink()  # of another engine, perhaps
    network = written = folded(model.cpu())
    turn, feeds = None, dict[str, list[Feed]]()
    if precision == "int8":
        say(f"looking at {len(images)} images")
        turn = turned(network)
        written = rounded(network, lambda: [feed["patches"] for feed in _feeds(network, images, turn)["prefix"]])
        feeds = _feeds(network, images, turn)
    exact = segments_of(network, turn)
    files: list[str] = []
    floating: list[str] = []
    for name, segment in segments_of(written, turn).items():
        say(f"{name}: blocks to {engine}")
        with tempfile.TemporaryDirectory() as folder:
            graph = Path(folder) / f"{name}.onnx"
            try:
                _to_onnx(segment, graph)
                target = out / f"{name}{SUFFIXES[engine]}"
                kind = "fp32" if name == SCORES else precision
                stayed = _convert(graph, target, engine, kind, feeds.get(name, []), exact[name], say)
            except OSError as error:
                raise KeepADError(f"{out} could not be written: {error.strerror or error}.") from error
        floating += stayed
        files += sorted(path.name for path in out.glob(f"{name}.*"))
    info = EngineInfo(
        engine=engine,
        precision=precision,
        name=model.name,
        backbone=model.backbone_name,
        image_size=model.image_size,
        patch=model.backbone.patch,
        prefix=model.backbone.prefix,
        placement=model.placement,
        calibration=model.calibration,
        provenance=model.provenance,
        digests=model.digests(),
        floating=tuple(floating),
        files={name: digest_of_file(out / name) for name in dict.fromkeys(files)},
    )
    write_description(out, info)
    return out


def check_request(engine: str, precision: str, images: Sequence[ImageSource]) -> None:
    """Refuse what cannot be exported before anything is loaded for it."""
    if engine not in PRECISIONS:
        raise KeepADError(f"there is no engine called {engine!r}; choose one of {', '.join(PRECISIONS)}.")
    if precision not in PRECISIONS[engine]:
        raise KeepADError(f"{engine} cannot be exported as {precision!r}; choose {' or '.join(PRECISIONS[engine])}.")
    if precision == "int8" and not images:
        raise KeepADError("int8 needs source images to choose its scales by; name some with --calibrate.")


def segments_of(model: KeepAD, turn: torch.Tensor | None = None) -> dict[str, Segment]:
    """The segments of all operating points, by name.

    Args:
        model: The detector.
        turn: The rotation by which its first segment turns the tokens, if it does; see `rounding`.
    """
    place = model.placement
    found: dict[str, Segment] = {"prefix": Prefix(model), SCORES: Scores(model), "middle": Middle(model, turn)}
    for last in (place.exit, place.head_layers[-1]):
        found.setdefault(tail_name(place.exit, last), Tail(model, last))
    return found


def _to_onnx(segment: Segment, path: Path) -> None:
    """The segment as an ONNX graph for any number of tokens."""
    try:
        import onnxscript  # noqa: F401 - torch needs it, and says so at length
    except ImportError as error:
        raise KeepADError("onnxscript is not installed; `pip install keepad[export]` brings it.") from error
    given = _example(segment)
    with _quiet(), torch.no_grad():
        torch.onnx.export(
            segment.eval(),
            given,
            str(path),
            dynamo=True,
            input_names=list(segment.inputs),
            output_names=list(segment.outputs),
            dynamic_shapes=tuple({0: torch.export.Dim.AUTO} for _ in given),
            external_data=False,
            verbose=False,
        )


def _example(segment: Segment) -> tuple[torch.Tensor, ...]:
    """Inputs of the right form; their number of tokens is no one's size, so that nothing takes it for a constant."""
    model, generator = segment.model, torch.Generator().manual_seed(0)
    cells = model.grid[0] * model.grid[1]
    live = cells if isinstance(segment, Prefix | Scores) else cells - 3
    count = cells - 5  # fewer tokens than cells: some are shared
    place = torch.arange(live).clamp(max=count - 1)
    width = 3 * model.backbone.patch[0] * model.backbone.patch[1]
    every = {
        "patches": torch.randint(0, 256, (count, width), generator=generator, dtype=torch.uint8),
        "tokens": torch.randn(count + model.backbone.prefix, model.backbone.width, generator=generator),
        "index": torch.arange(count),
        "cells": torch.arange(live),
        "place": place,
        "mass": torch.bincount(place).float(),
        "entry": torch.rand(live, generator=generator),
    }
    return tuple(every[name] for name in segment.inputs)


@contextmanager
def _quiet() -> Iterator[None]:
    """torch.export and onnxscript tell their own developers much."""
    import logging

    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


def _convert(
    graph: Path, target: Path, engine: str, precision: str, feeds: Sequence[Feed], exact: Segment, say: Say
) -> list[str]:
    """Write the engine's file of an ONNX graph; what stayed in floating point although int8 was asked for."""
    name = target.stem

    @torch.no_grad()
    def right(feed: Feed) -> list[Array]:
        return [one.numpy() for one in exact(*(torch.from_numpy(feed[given]) for given in exact.inputs))]

    try:
        if precision != "int8":
            _write(_read(graph, engine), target, engine)
            return []
        with _quiet():
            content, hurt = in_integers(
                graph, feeds, lambda kind: _read(graph, kind), engine, lambda feed: right(feed)[0]
            )
        _write(content, target, engine)
    except ImportError as error:
        raise KeepADError(f"{error.name} is not installed; `pip install keepad[export]` brings it.") from error
    if hurt:
        say(f"{name}: integers hurt {', '.join(hurt)}, which stay in floating point")
    alike = _likeness(right, target, engine, feeds)
    say(f"{name}: cosine of int8 to float {alike:.4f}")
    if alike >= _WORST_LIKENESS:
        return [f"{name} {layer}" for layer in hurt]
    say(f"{name}: integers hurt it, so it stays in floating point")
    _write(_read(graph, engine), target, engine)
    return [name]


def _read(graph: Path, engine: str) -> Any:
    """An ONNX graph as the engine's own model."""
    if engine == "onnx":
        import onnx

        return onnx.load(str(graph))
    import openvino

    return openvino.convert_model(str(graph))


def _write(content: Any, target: Path, engine: str) -> None:
    if engine == "onnx":
        import onnx

        onnx.save(content, str(target))
    else:
        import openvino

        openvino.save_model(content, str(target), compress_to_fp16=False)


def _likeness(exact: Callable[[Feed], list[Array]], target: Path, engine: str, feeds: Sequence[Feed]) -> float:
    """Smallest mean cosine between the outputs as they should be and those of the written file."""
    session = open_session(engine, target, precision="int8", threads=None)
    alike = [[_cosine(a, b) for a, b in zip(exact(feed), session(**feed), strict=True)] for feed in feeds[:_COMPARED]]
    return float(np.mean(alike, axis=0).min())


def _cosine(a: Array, b: Array) -> float:
    a, b = a.ravel().astype(np.float64), b.ravel().astype(np.float64)
    return float(a @ b / (np.linalg.norm(a) * np.linalg.norm(b) + 1e-12))


@torch.no_grad()
def _feeds(model: KeepAD, images: Sequence[ImageSource], turn: torch.Tensor | None = None) -> dict[str, list[Feed]]:
    """What enters each segment when the images pass at the point that prunes most."""
    point = POINTS[CALIBRATION_POINT]
    assert point.shallow is not None
    assert point.deep is not None
    named = segments_of(model, turn)
    found: dict[str, list[Feed]] = {name: [] for name in named}
    every = torch.arange(model.grid[0] * model.grid[1])

    def fed(name: str, *given: torch.Tensor) -> Any:
        found[name].append({key: one.numpy() for key, one in zip(named[name].inputs, given, strict=True)})
        return named[name](*given)

    for image in images:
        patches = patches_of(to_input(read_image(image), model.image_size), model.backbone.patch)
        mass = torch.ones(len(every))
        (x,) = fed("prefix", torch.from_numpy(patches), every, mass)
        (scores,) = fed(SCORES, x, every, mass)
        tokens = model.backbone.tokens_at(x, every, model.grid)
        tokens = tokens.gather([keep_shallow(scores, every, model.grid, point.shallow)])
        own = torch.arange(len(tokens.index))
        x, entry, risk = fed("middle", tokens.x, tokens.index, tokens.index, own, torch.ones(len(own)))
        keep = keep_deep(risk, tokens.index, model.grid, point.deep).keep
        tokens = tokens.with_features(x).gather([keep])
        own = torch.arange(len(tokens.index))
        for name in (name for name in named if name.startswith("tail")):
            fed(name, tokens.x, tokens.index, tokens.index, own, torch.ones(len(own)), entry[keep])
    return found


@dataclass(frozen=True)
class Verified:
    """How far an exported detector is from the one that it was made from, at one operating point.

    Attributes:
        point: The operating point.
        score: Largest difference of an image score.
        map: Largest difference of a map, mean over its pixels.
        survivors: Smallest share of common survivors (intersection over union).
    """

    point: str
    score: float
    map: float
    survivors: float


# What differs by more is no longer the same detector: scores, maps, survivors.
TOLERANCES = {"fp32": (1e-3, 1e-3, 0.99), "bf16": (0.05, 0.02, 0.80), "int8": (0.10, 0.04, 0.60)}


def verify(
    model: KeepAD, engine: EngineDetector, images: Sequence[Path], points: Sequence[OperatingPoint]
) -> list[Verified]:
    """Differences between both on the images, one for each operating point; raises beyond the tolerance.

    Raises:
        KeepADError: A difference is larger than the precision allows.
    """
    worst = {point.name: [0.0, 0.0, 1.0] for point in points}
    for path in images:
        pixels = to_input(read_image(path), model.image_size)[None]
        ours, theirs = model.find(pixels, points), engine.find(pixels, points)
        for name, row in worst.items():
            a, b = ours[name][0], theirs[name][0]
            row[0] = max(row[0], abs(a.score - b.score))
            row[1] = max(row[1], float(np.abs(a.pixel_map - b.pixel_map).mean()))
            both = len(np.intersect1d(a.survivors, b.survivors))
            row[2] = min(row[2], both / (len(a.survivors) + len(b.survivors) - both))
    found = [Verified(name, *row) for name, row in worst.items()]
    score, pixels_off, alive = TOLERANCES[engine.info.precision]
    for one in found:
        if one.score > score or one.map > pixels_off or one.survivors < alive:
            raise KeepADError(
                f"the exported detector differs from torch at {one.point}: scores by {one.score:.4f} (at most {score} "
                f"is allowed), maps by {one.map:.4f} ({pixels_off}), common survivors {one.survivors:.0%} "
                f"({alive:.0%}); use a higher precision."
            )
    return found
