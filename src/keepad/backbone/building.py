"""Named backbones and any other timm ViT: built with random weights, or loaded with pretrained ones."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import timm
import torch

from keepad.backbone.formats import to_timm
from keepad.backbone.locations import cached_file
from keepad.backbone.registry import BACKBONES, DEFAULT_BACKBONE, BackboneSpec, Triple
from keepad.backbone.vit import Backbone
from keepad.backbone.weights import Origin, load_weights
from keepad.console import Say, say_on_stderr
from keepad.errors import KeepADError

_NATIVE_SIDE = 518


def spec_of(name: str) -> BackboneSpec:
    """The spec of a named backbone, or of any other timm ViT or Eva, for instance `vit_tiny_patch16_224`."""
    if name in BACKBONES:
        return BACKBONES[name]
    architecture, _, tag = name.partition(".")
    if not timm.is_model(architecture):
        near = difflib.get_close_matches(name, [*BACKBONES, *timm.list_models("*vit*")], n=3)
        hint = f"; did you mean {', '.join(near)}?" if near else "; `keepad models` lists the named ones."
        raise KeepADError(f"there is no backbone called {name!r}{hint}")
    try:
        config = timm.get_pretrained_cfg(name)
    except RuntimeError as error:
        known = ", ".join(timm.list_pretrained(f"{architecture}.*")) or architecture
        raise KeepADError(f"timm has no weights called {name!r}; choose one of {known}.") from error
    return BackboneSpec(
        name=name,
        architecture=architecture,
        tag=tag or (config.tag if config else None) or None,
        what=f"timm {name}",
        megabytes=None,
        licence=(config.license if config else None) or "see timm",
        image_size=(0, 0),  # set by build_backbone, once the patch size is known
        mean=_triple(config.mean if config else (0.5, 0.5, 0.5)),
        std=_triple(config.std if config else (0.5, 0.5, 0.5)),
    )


def _triple(values: Sequence[float]) -> Triple:
    red, green, blue = values
    return red, green, blue


def build_backbone(name: str, *, seed: int | None = None) -> tuple[Backbone, BackboneSpec]:
    """A backbone with random weights, from `seed` if it is set, and its spec."""
    spec = spec_of(name)
    with torch.random.fork_rng(enabled=seed is not None):
        if seed is not None:
            torch.manual_seed(seed)
        try:
            vit = timm.create_model(spec.architecture, pretrained=False, num_classes=0, dynamic_img_size=True)
        except TypeError as error:
            raise KeepADError(
                f"{name} has a fixed input size; only timm's plain ViT and Eva models can be used."
            ) from error
    backbone = Backbone(vit, name=spec.name, mean=spec.mean, std=spec.std, antialias=spec.antialias)
    if spec.image_size == (0, 0):
        rows, columns = backbone.patch
        size = (_NATIVE_SIDE // rows * rows, _NATIVE_SIDE // columns * columns)
        spec = replace(spec, image_size=size)
    return backbone, spec


def load_backbone(
    name: str = DEFAULT_BACKBONE, *, file: str | Path | None = None, say: Say = say_on_stderr
) -> tuple[Backbone, BackboneSpec, Origin]:
    """A backbone with its pretrained weights, its spec, and which weights they are."""
    backbone, spec = build_backbone(name)
    state, origin = load_weights(spec, file=file, convert=lambda tensors: to_timm(tensors, backbone.vit), say=say)
    try:
        backbone.vit.load_state_dict(state)
    except RuntimeError as error:
        reason = str(error).splitlines()[1].strip().rstrip(".")
        raise KeepADError(
            f"{file or cached_file(spec)} does not hold weights of {name} ({reason}); use another weights file."
        ) from error
    return backbone, spec, origin
