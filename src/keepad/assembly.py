"""Networks put together from a backbone and the content of a checkpoint, or with random parts. Needs torch."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from keepad.backbone import Backbone, BackboneSpec, build_backbone, load_backbone
from keepad.backbone.identity import fingerprint_of, relative_difference
from keepad.backbone.weights import Origin
from keepad.checkpoint import CheckpointInfo, read_checkpoint
from keepad.console import Say
from keepad.errors import KeepADError
from keepad.head import PrototypeHead
from keepad.network import Network, trained_tensors
from keepad.presets import Calibration, Placement
from keepad.routing.selectors import DeepSelector, ShallowSelector

HELD_OUT = "held_out."  # heads trained without a fold of the source; only stage 2 uses them


def load_checkpoint(path: Path, *, device: str | torch.device | None, weights: str | Path | None, say: Say) -> Network:
    """The network of a checkpoint file, its backbone checked against the one that it was trained on."""
    info, tensors = read_checkpoint(path)
    _check_parts(info, tensors, path.name)  # before the weights, which take seconds
    backbone, _ = backbone_of(info, file=weights, source=path.name, say=say)
    return assemble(backbone, info, tensors, source=path.name).to(choose_device(device))


def backbone_of(info: CheckpointInfo, *, file: str | Path | None, source: str, say: Say) -> tuple[Backbone, Origin]:
    """The backbone of a checkpoint, and which weights it has; `source` names the checkpoint in messages.

    Other weights than those of its training are accepted if they compute the same within the backbone's tolerance: the
    hub and a package may hold the same weights in different bytes.

    Raises:
        KeepADError: The weights cannot be loaded, or they are not those that the checkpoint was trained on.
    """
    backbone, spec, origin = load_backbone(info.backbone, file=file, say=say)
    if info.backbone_digest not in (None, origin.digest):
        difference = math.inf
        if info.backbone_fingerprint is not None:
            difference = relative_difference(info.backbone_fingerprint, fingerprint_of(backbone))
        if not difference <= spec.tolerance:
            raise KeepADError(
                f"{source} was trained on other weights of {info.backbone} than those found ({origin.digest[:12]}… "
                f"instead of {str(info.backbone_digest)[:12]}…); use the weights it was trained on or train it anew."
            )
        say(
            f"weights of {info.backbone}: {origin.source} instead of {info.backbone_source}, which {source} was "
            f"trained on; their features differ by {difference:.1e} of their norm (accepted up to {spec.tolerance:g})"
        )
    if (info.mean, info.std, info.antialias) != (spec.mean, spec.std, spec.antialias):
        raise KeepADError(f"{source} was trained with another preprocessing of {info.backbone}; train it anew.")
    return backbone, origin


def assemble(backbone: Backbone, info: CheckpointInfo, tensors: Mapping[str, Any], *, source: str) -> Network:
    """A network from a backbone and the content of a checkpoint; `source` names it in messages."""
    state = _trained(tensors, source)
    head, shallow, deep = _parts(info, state, backbone.width)
    network = Network(
        backbone,
        head,
        shallow,
        deep,
        placement=info.placement,
        calibration=info.calibration,
        image_size=info.image_size,
        name=info.name,
        provenance=info.provenance,
    )
    expected = trained_tensors(network)
    if set(expected) != set(state) or any(expected[name].shape != state[name].shape for name in expected):
        raise KeepADError(f"{source} does not fit {backbone.name}; it was made for another backbone or is damaged.")
    network.load_state_dict(state, strict=False)
    return network


def _trained(tensors: Mapping[str, Any], source: str) -> dict[str, Tensor]:
    """The tensors of a checkpoint that inference uses."""
    state = {name: torch.as_tensor(value) for name, value in tensors.items() if not name.startswith(HELD_OUT)}
    if not all(bool(tensor.isfinite().all()) for tensor in state.values()):
        raise KeepADError(f"{source} holds values that are not finite; get the checkpoint again.")
    return state


def _parts(
    info: CheckpointInfo, state: Mapping[str, Tensor], width: int
) -> tuple[PrototypeHead, ShallowSelector, DeepSelector]:
    """Head and selectors of a checkpoint for a backbone of that width, still with fresh values."""
    return (
        PrototypeHead(info.placement.head_layers, width, info.scales),
        ShallowSelector(width, cue="shallow.dissimilarity" in state),
        DeepSelector(width, cue="deep.dissimilarity" in state),
    )


def _check_parts(info: CheckpointInfo, tensors: Mapping[str, Any], source: str) -> None:
    """Refuse tensors that fit no backbone, or are not numbers; whether they fit theirs is seen once it is there."""
    state = _trained(tensors, source)
    head = state.get("head.patch")
    width = head.shape[-1] if head is not None and head.ndim == 3 else 0
    with torch.device("meta"):  # shapes only, however large the width says that it is
        parts = zip(("head", "shallow", "deep"), _parts(info, state, width) if width else (), strict=False)
        shapes = {f"{name}.{own}": value.shape for name, part in parts for own, value in part.state_dict().items()}
    if not shapes or shapes != {name: value.shape for name, value in state.items()}:
        raise KeepADError(f"{source} fits no backbone; it is damaged, or no checkpoint of KeepAD.")


def untrained(name: str, *, seed: int = 0, image_size: tuple[int, int] | None = None) -> Network:
    """A network with random weights throughout: right for measuring time, useless for finding defects."""
    backbone, spec = build_backbone(name, seed=seed)
    return with_fresh_parts(backbone, spec, seed=seed, image_size=image_size)


def with_fresh_parts(
    backbone: Backbone,
    spec: BackboneSpec,
    *,
    seed: int = 0,
    placement: Placement | None = None,
    image_size: tuple[int, int] | None = None,
) -> Network:
    """A network whose head and selectors are freshly initialised from `seed`."""
    placement = placement or Placement.for_depth(backbone.depth)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return Network(
            backbone,
            PrototypeHead(placement.head_layers, backbone.width),
            ShallowSelector(backbone.width),
            DeepSelector(backbone.width),
            placement=placement,
            calibration=Calibration(),
            image_size=image_size or spec.image_size,
            name="untrained",
        )


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
        warnings.simplefilter("ignore")  # about old drivers; the question is only whether there is a GPU
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
