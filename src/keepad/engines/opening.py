"""Detectors by what should run them: torch from a checkpoint, an engine from a folder or exported on the way."""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from keepad.detector import Detector, ImageSource
from keepad.engines.folder import EDITION, FORMAT, is_exported, read_description
from keepad.engines.network import load_engine
from keepad.errors import KeepADError
from keepad.presets import OperatingPoint

if TYPE_CHECKING:
    from keepad.network import KeepAD

ENGINES = ("torch", "openvino", "onnx")

Say = Callable[[str], None]


def _say_on_stderr(line: str) -> None:
    print(line, file=sys.stderr)


def open_detector(
    name_or_path: str | Path | None,
    point: str | OperatingPoint = "prune50",
    *,
    engine: str | None = None,
    device: str | None = None,
    weights: Path | None = None,
    say: Say = _say_on_stderr,
) -> Detector:
    """The detector that a user asked for.

    Args:
        name_or_path: A checkpoint, as `keepad.load` takes it, or a folder that `keepad export` wrote.
        point: Operating point.
        engine: "torch", "openvino" or "onnx"; None is torch, or whatever the folder was exported for. A checkpoint is
            exported in fp32 to the user's cache when an engine first needs it.
        device: Where torch runs.
        weights: Backbone weights to use instead of looking for them.
        say: Called with one line for every step.

    Raises:
        KeepADError: There is no such engine, or the folder was exported for another one.
    """
    if engine is not None and engine not in ENGINES:
        raise KeepADError(f"there is no engine called {engine!r}; choose one of {', '.join(ENGINES)}.")
    if is_exported(name_or_path):
        folder = Path(str(name_or_path))
        found = read_description(folder).engine
        if engine not in (None, found):
            raise KeepADError(f"{folder} was exported for {found}; leave --engine out, or export it for {engine}.")
        return load_engine(folder, point)
    from keepad.loading import load  # a folder needs no torch

    model = load(name_or_path, point, "cpu" if engine in ENGINES[1:] else device, weights=weights, say=say)
    if engine in (None, "torch"):
        return model
    return load_engine(exported(model, str(engine), "fp32", say=say), point)


def exported(model: KeepAD, engine: str, precision: str, *, say: Say, images: Sequence[ImageSource] = ()) -> Path:
    """The folder of a detector that is exported to the user's cache, once; int8 chooses its scales by the images."""
    from keepad.backbone.weights import cache_folder
    from keepad.engines.export.writing import export

    told = [FORMAT, EDITION, model.digests(), model.name, model.image_size]
    key = hashlib.sha256(json.dumps(told, sort_keys=True).encode())
    folder = cache_folder() / "engines" / f"{key.hexdigest()[:16]}-{engine}-{precision}"
    if not is_exported(folder):
        say(f"exporting {model.name} for {engine} to {folder}")
        export(model, folder, engine=engine, precision=precision, images=images, say=say)
    return folder
