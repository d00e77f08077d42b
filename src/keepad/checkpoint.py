"""Checkpoints: head, selectors, and everything needed to use them, in one safetensors file. Needs no torch."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from keepad.arrays import Array
from keepad.errors import KeepADError
from keepad.files import replacing
from keepad.logit_scale import LogitScale
from keepad.presets import Calibration, Placement, with_tuples

_KEY = "keepad"
_FORMAT = 3
_LONGEST_SIDE = 1 << 14  # pixels; far above what a network is trained for
_OLDEST_FORMAT = 2  # its names for dissimilarity are translated


@dataclass(frozen=True)
class CheckpointInfo:
    """Description of a checkpoint; everything but the tensors.

    Attributes:
        name: Name of the checkpoint.
        backbone: Name of the backbone it was trained on.
        backbone_digest: Digest of that backbone's weights, or None for random ones.
        image_size: Height and width of the network's input.
        mean: Channel means of the normalisation.
        std: Channel deviations of the normalisation.
        antialias: How position embeddings were resampled.
        scales: Scale and bias of each head layer's logits.
        placement: Positions of routers, head layers and exit.
        calibration: Constants fitted on source data.
        provenance: Data with counts and licences, command, versions.
        backbone_source: Where those weights came from; None in checkpoints older than the field.
        backbone_fingerprint: What those weights compute (`identity.fingerprint_of`); None as well.
    """

    name: str
    backbone: str
    backbone_digest: str | None
    image_size: tuple[int, int]
    mean: tuple[float, float, float]
    std: tuple[float, float, float]
    antialias: bool
    scales: tuple[LogitScale, ...]
    placement: Placement
    calibration: Calibration
    provenance: dict[str, Any]
    backbone_source: str | None = None
    backbone_fingerprint: tuple[float, ...] | None = None

    def to_json(self) -> str:
        return json.dumps({"format": _FORMAT, **asdict(self)}, sort_keys=True)

    @staticmethod
    def from_json(text: str, path: Path) -> CheckpointInfo:
        try:
            fields = json.loads(text)
            version = fields.pop("format")
            if version not in (_OLDEST_FORMAT, _FORMAT):
                raise KeepADError(
                    f"{path} has checkpoint format {version}, but this version of KeepAD reads formats "
                    f"{_OLDEST_FORMAT} and {_FORMAT}; use the version that wrote it, or train it anew."
                )
            if version == _OLDEST_FORMAT:
                fields["scales"] = [_renamed(scale) for scale in fields.pop("readings")]
            placement = with_tuples(fields.pop("placement"))
            fields["image_size"] = sides_of(fields["image_size"])
            for key in ("mean", "std"):
                fields[key] = tuple(map(float, fields[key]))
            if fields.get("backbone_fingerprint") is not None:
                fields["backbone_fingerprint"] = tuple(map(float, fields["backbone_fingerprint"]))
            calibration = Calibration(**with_tuples(fields.pop("calibration")))
            scales = tuple(LogitScale(**scale) for scale in fields.pop("scales"))
            if len(scales) != len(placement["head_layers"]):
                raise ValueError("one scale for each head layer")
            return CheckpointInfo(placement=Placement(**placement), calibration=calibration, scales=scales, **fields)
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise KeepADError(f"{path} carries a description that cannot be read; get the checkpoint again.") from error


def sides_of(values: object) -> tuple[int, int]:
    """Height and width in pixels as a file gives them; a ValueError for what no input can have."""
    if not isinstance(values, list) or len(values) != 2:
        raise ValueError("no height and width")
    height, width = values
    if not all(isinstance(side, int) and 1 <= side <= _LONGEST_SIDE for side in (height, width)):
        raise ValueError("no size of an image")
    return height, width


def write_checkpoint(path: str | Path, tensors: Mapping[str, Any], info: CheckpointInfo) -> None:
    """Store a checkpoint of NumPy arrays or torch tensors; the same content gives the same bytes."""
    path = Path(path)
    arrays = {name: _as_array(tensor) for name, tensor in tensors.items()}
    try:
        with replacing(path) as partial:
            partial.write_bytes(save(arrays, metadata={_KEY: info.to_json()}))
    except OSError as error:
        raise KeepADError(f"the checkpoint could not be written to {path}: {error.strerror}.") from error


def read_info(path: str | Path) -> CheckpointInfo:
    """The description of a checkpoint, without its tensors."""
    return _read(Path(path), tensors=False)[0]


def read_checkpoint(path: str | Path) -> tuple[CheckpointInfo, dict[str, Array]]:
    """A checkpoint's description and its tensors."""
    return _read(Path(path), tensors=True)


def _read(path: Path, *, tensors: bool) -> tuple[CheckpointInfo, dict[str, Array]]:
    if not path.is_file():
        raise KeepADError(
            f"the checkpoint {path} does not exist; `keepad models` lists those that come with the package."
        )
    try:
        with safe_open(str(path), "np") as opened:
            text = (opened.metadata() or {}).get(_KEY)
            if text is None:
                raise KeepADError(f"{path} is a safetensors file but no KeepAD checkpoint; give one made by KeepAD.")
            state = {name: opened.get_tensor(name) for name in opened.keys()} if tensors else {}  # noqa: SIM118
    except (SafetensorError, OSError, ValueError) as error:
        raise KeepADError(f"{path} is damaged or no safetensors file; get the checkpoint again.") from error
    return CheckpointInfo.from_json(text, path), _renamed(state)


def _as_array(tensor: Any) -> Array:
    values = tensor.detach().cpu().numpy() if hasattr(tensor, "detach") else tensor
    return np.array(values, order="C")


def _renamed(fields: dict[str, Any]) -> dict[str, Any]:
    """Fields or tensors of an older format under their present names."""
    return {name.replace("unlike", "dissimilarity"): value for name, value in fields.items()}


def bundled_checkpoints() -> dict[str, Path]:
    """Checkpoints that come with the package, by name."""
    folder = Path(str(resources.files("keepad"))) / "checkpoints"
    return {path.stem: path for path in sorted(folder.glob("*.safetensors"))}
