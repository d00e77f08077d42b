"""The folder of an exported network: its description, and a check of its files."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from keepad.checkpoint import sides_of
from keepad.errors import KeepADError
from keepad.files import replace_text
from keepad.presets import Calibration, Placement, with_tuples

DESCRIPTION = "engine.json"
SUFFIXES = {"openvino": ".xml", "onnx": ".onnx"}
FORMAT = 9
EDITION = 3  # raised when exports change though older ones still run, so that the cache makes new ones


@dataclass(frozen=True)
class EngineInfo:
    """Description of an exported network; everything but the segments.

    Attributes:
        engine: "openvino" or "onnx".
        precision: "fp32", "bf16" or "int8".
        name: Name of the checkpoint.
        backbone: Name of its backbone.
        image_size: Height and width of the network's input, (H, W, 3) uint8 pixels that are squashed to it.
        patch: Height and width of a patch.
        prefix: Tokens before the patches (CLS, registers).
        placement: Positions of routers, head layers and exit.
        calibration: Constants fitted on source data, thresholds among them.
        provenance: Origin of the trained parts.
        digests: Digests of the exported checkpoint and backbone.
        floating: Segments, or layers of them, that int8 left in floating point.
        files: SHA-256 of every file beside this description.
    """

    engine: str
    precision: str
    name: str
    backbone: str
    image_size: tuple[int, int]
    patch: tuple[int, int]
    prefix: int
    placement: Placement
    calibration: Calibration
    provenance: dict[str, Any]
    digests: dict[str, str]
    floating: tuple[str, ...]
    files: dict[str, str]

    @property
    def grid(self) -> tuple[int, int]:
        """Rows and columns of the patch grid."""
        return self.image_size[0] // self.patch[0], self.image_size[1] // self.patch[1]


def is_exported(path: str | Path | None) -> bool:
    """Whether a path is the folder of an exported network."""
    return path is not None and (Path(path) / DESCRIPTION).is_file()


def write_description(folder: Path, info: EngineInfo) -> None:
    """Write the description; last of all, so that a folder that has one is complete."""
    replace_text(folder / DESCRIPTION, json.dumps({"format": FORMAT, **asdict(info)}, indent=1) + "\n")


def read_description(folder: Path) -> EngineInfo:
    """The description of a folder, its files checked against it, or a KeepADError."""
    try:
        fields = json.loads((folder / DESCRIPTION).read_text(encoding="utf-8"))
        if fields.pop("format") != FORMAT:
            raise KeepADError(f"{folder} was exported by another version of KeepAD; export it again.")
        for key in ("image_size", "patch"):
            fields[key] = sides_of(fields[key])
        fields["floating"] = tuple(fields["floating"])
        fields["placement"] = Placement(**with_tuples(fields["placement"]))
        fields["calibration"] = Calibration(**with_tuples(fields["calibration"]))
        info = EngineInfo(**fields)
        if info.engine not in SUFFIXES or any(Path(name).name != name for name in info.files):
            raise ValueError("an unknown engine, or a file outside the folder")
        files = sorted(info.files.items())
    except OSError as error:
        raise KeepADError(f"{folder} is no exported network: {DESCRIPTION} cannot be read; export it again.") from error
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise KeepADError(f"{folder / DESCRIPTION} is damaged; export it again.") from error
    for name, expected in files:
        if not (folder / name).is_file() or digest_of_file(folder / name) != expected:
            raise KeepADError(f"{folder / name} is missing or not the file that was exported; export it again.")
    return info


def digest_of_file(path: Path) -> str:
    """SHA-256 of a file."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()
