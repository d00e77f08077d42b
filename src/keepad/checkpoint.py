"""Checkpoints: head, selectors and everything needed to use them rightly, in one safetensors file."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from keepad.errors import KeepADError
from keepad.files import replacing
from keepad.presets import Calibration, Placement, Reading, with_tuples

_KEY = "keepad"
_FORMAT = 2


@dataclass(frozen=True)
class CheckpointInfo:
    """All that a checkpoint says about itself; everything but the tensors.

    Attributes:
        name: What users call it.
        backbone: Name of the backbone it was trained on.
        backbone_digest: Digest of that backbone's weights, or None for random ones.
        image_size: Height and width of the network's input.
        mean: Normalisation the features were made with.
        std: The same.
        antialias: How position embeddings were resampled.
        readings: How each head layer's cosines become responses.
        placement: Where routers, head and exit sit.
        calibration: What was fitted on source data.
        provenance: Data with counts and licences, command, versions.
    """

    name: str
    backbone: str
    backbone_digest: str | None
    image_size: tuple[int, int]
    mean: tuple[float, float, float]
    std: tuple[float, float, float]
    antialias: bool
    readings: tuple[Reading, ...]
    placement: Placement
    calibration: Calibration
    provenance: dict[str, Any]

    def to_json(self) -> str:
        return json.dumps({"format": _FORMAT, **asdict(self)}, sort_keys=True)

    @staticmethod
    def from_json(text: str, path: Path) -> CheckpointInfo:
        try:
            fields = json.loads(text)
            found = fields.pop("format")
            if found != _FORMAT:
                raise KeepADError(
                    f"{path} has checkpoint format {found}, but this version of KeepAD reads format {_FORMAT}; "
                    "use the version that wrote it, or train it anew."
                )
            placement = with_tuples(fields.pop("placement"))
            for key in ("image_size", "mean", "std"):
                fields[key] = tuple(fields[key])
            calibration = Calibration(**with_tuples(fields.pop("calibration")))
            readings = tuple(Reading(**reading) for reading in fields.pop("readings"))
            if len(readings) != len(placement["head_layers"]):
                raise ValueError("one reading for each head layer")
            return CheckpointInfo(
                placement=Placement(**placement), calibration=calibration, readings=readings, **fields
            )
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise KeepADError(f"{path} carries a description that cannot be read; get the checkpoint again.") from error


def write_checkpoint(path: str | Path, tensors: dict[str, Tensor], info: CheckpointInfo) -> None:
    """Store a checkpoint; the same content gives the same bytes."""
    path = Path(path)
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    try:
        with replacing(path) as partial:
            partial.write_bytes(save(tensors, metadata={_KEY: info.to_json()}))
    except OSError as error:
        raise KeepADError(f"the checkpoint could not be written to {path}: {error.strerror}.") from error


def read_info(path: str | Path) -> CheckpointInfo:
    """What a checkpoint says about itself, without its tensors."""
    return _read(Path(path), tensors=False)[0]


def read_checkpoint(path: str | Path) -> tuple[CheckpointInfo, dict[str, Tensor]]:
    """A checkpoint's description and its tensors."""
    return _read(Path(path), tensors=True)


def _read(path: Path, *, tensors: bool) -> tuple[CheckpointInfo, dict[str, Tensor]]:
    if not path.is_file():
        raise KeepADError(
            f"the checkpoint {path} does not exist; `keepad models` lists those that come with the package."
        )
    try:
        with safe_open(str(path), "pt") as opened:
            text = (opened.metadata() or {}).get(_KEY)
            if text is None:
                raise KeepADError(f"{path} is a safetensors file but no KeepAD checkpoint; give one made by KeepAD.")
            state = {name: opened.get_tensor(name) for name in opened.keys()} if tensors else {}  # noqa: SIM118
    except (SafetensorError, OSError, ValueError) as error:
        raise KeepADError(f"{path} is damaged or no safetensors file; get the checkpoint again.") from error
    return CheckpointInfo.from_json(text, path), state


def bundled_checkpoints() -> dict[str, Path]:
    """Checkpoints that come with the package, by name."""
    folder = Path(str(resources.files("keepad"))) / "checkpoints"
    return {path.stem: path for path in sorted(folder.glob("*.safetensors"))}
