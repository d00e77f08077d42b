"""load(): a checkpoint and its backbone, put together into a detector."""

from __future__ import annotations

import warnings
from pathlib import Path

import torch
from torch import Tensor

from keepad.backbone import BACKBONES, Backbone, BackboneSpec, build_backbone, load_backbone
from keepad.backbone.weights import Say, say_on_stderr
from keepad.checkpoint import CheckpointInfo, bundled_checkpoints, read_checkpoint, read_info
from keepad.errors import KeepADError
from keepad.head import PrototypeHead
from keepad.network import KeepAD, trained_tensors
from keepad.presets import Calibration, OperatingPoint, Placement, operating_point
from keepad.routing import DeepSelector, ShallowSelector

DEFAULT_CHECKPOINT = "default"
HELD_OUT = "held_out."  # heads that have not seen part of the source; only stage 2 asks them


def load(
    name_or_path: str | Path | None = None,
    point: str | OperatingPoint = "prune50",
    device: str | torch.device | None = None,
    *,
    weights: str | Path | None = None,
    say: Say = say_on_stderr,
) -> KeepAD:
    """A detector, ready to be called.

    Args:
        name_or_path: A checkpoint file, the name of a bundled checkpoint, or the name of a backbone that has one;
            the bundled default if None.
        point: Operating point: dense, prune30, prune50, prune70, or one made by hand.
        device: Where to run; a GPU if there is one, else the CPU.
        weights: Backbone weights to use instead of looking for them.
        say: Called with one line for every step of finding the weights.
    """
    path = resolve_checkpoint(name_or_path)
    info, tensors = read_checkpoint(path)
    backbone, spec, digest = load_backbone(info.backbone, file=weights, say=say)
    if info.backbone_digest is not None and digest != info.backbone_digest:
        raise KeepADError(
            f"{path.name} was trained on other weights of {info.backbone} than those found ({digest[:12]}… instead of "
            f"{info.backbone_digest[:12]}…); use the weights it was trained on or train it anew."
        )
    if (info.mean, info.std, info.antialias) != (spec.mean, spec.std, spec.antialias):
        raise KeepADError(f"{path.name} was trained with another preprocessing of {info.backbone}; train it anew.")
    model = assemble(backbone, info, tensors, source=path.name)
    model.point = operating_point(point)
    return model.to(choose_device(device))


def assemble(backbone: Backbone, info: CheckpointInfo, tensors: dict[str, Tensor], *, source: str) -> KeepAD:
    """A detector from a backbone and the content of a checkpoint; `source` names it in messages."""
    tensors = {name: tensor for name, tensor in tensors.items() if not name.startswith(HELD_OUT)}
    head = PrototypeHead(info.placement.head_layers, backbone.width, info.readings)
    model = KeepAD(
        backbone,
        head,
        ShallowSelector(backbone.width, cue="shallow.unlike" in tensors),
        DeepSelector(backbone.width, cue="deep.unlike" in tensors),
        placement=info.placement,
        calibration=info.calibration,
        image_size=info.image_size,
        name=info.name,
        provenance=info.provenance,
    )
    wanted = trained_tensors(model)
    if set(wanted) != set(tensors) or any(wanted[name].shape != tensors[name].shape for name in wanted):
        raise KeepADError(f"{source} does not fit {backbone.name}; it was made for another backbone or is damaged.")
    if not all(bool(tensor.isfinite().all()) for tensor in tensors.values()):
        raise KeepADError(f"{source} holds values that are not finite; get the checkpoint again.")
    model.load_state_dict(tensors, strict=False)
    return model


def untrained(name: str, *, seed: int = 0, image_size: tuple[int, int] | None = None, point: str = "prune50") -> KeepAD:
    """A detector with random weights throughout: right for measuring time, useless for finding defects."""
    backbone, spec = build_backbone(name, seed=seed)
    return with_fresh_parts(backbone, spec, seed=seed, image_size=image_size, point=point)


def with_fresh_parts(
    backbone: Backbone,
    spec: BackboneSpec,
    *,
    seed: int = 0,
    placement: Placement | None = None,
    image_size: tuple[int, int] | None = None,
    point: str = "prune50",
) -> KeepAD:
    """A detector whose head and selectors are freshly initialised from `seed`."""
    placement = placement or Placement.for_depth(backbone.depth)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return KeepAD(
            backbone,
            PrototypeHead(placement.head_layers, backbone.width),
            ShallowSelector(backbone.width),
            DeepSelector(backbone.width),
            placement=placement,
            calibration=Calibration(),
            image_size=image_size or spec.image_size,
            point=point,
            name="untrained",
        )


def resolve_checkpoint(name_or_path: str | Path | None) -> Path:
    """The file of a checkpoint given by path, by its own name, or by the name of its backbone."""
    bundled = bundled_checkpoints()
    if name_or_path is None:
        name_or_path = DEFAULT_CHECKPOINT
    if str(name_or_path) in bundled:
        return bundled[str(name_or_path)]
    for path in bundled.values():
        if read_info(path).backbone == str(name_or_path):
            return path
    if str(name_or_path) in BACKBONES:
        raise KeepADError(
            f"no checkpoint for the backbone {name_or_path} comes with the package; give the path of one."
        )
    path = Path(name_or_path)
    if path.suffix != ".safetensors" and not path.exists():
        raise KeepADError(
            f"there is no checkpoint called {name_or_path!r}; choose one of {', '.join(bundled)} or give a file."
        )
    return path


def choose_device(device: str | torch.device | None) -> torch.device:
    """The device of that name; if None, a GPU if there is one, else the CPU."""
    if device is not None:
        try:
            chosen = torch.device(device)
            torch.empty(0, device=chosen)
        except (RuntimeError, AssertionError) as error:
            raise KeepADError(f"the device {device!r} cannot be used here; leave it out or use 'cpu'.") from error
        return chosen
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns about old drivers where all we ask is whether there is a GPU
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
