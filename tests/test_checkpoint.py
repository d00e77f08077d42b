"""Checkpoints: round trip, and one sentence for each that cannot be used."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import save
from safetensors.torch import save_file

from keepad.assembly import assemble, with_fresh_parts
from keepad.checkpoint import CheckpointInfo, bundled_checkpoints, read_checkpoint, read_info, write_checkpoint
from keepad.detector import Detector
from keepad.errors import KeepADError
from keepad.loading import DEFAULT_CHECKPOINT, load, load_network, resolve_checkpoint
from keepad.network import Network, trained_tensors


@pytest.fixture
def info(tiny: Network) -> CheckpointInfo:
    return CheckpointInfo(
        name="test",
        backbone=tiny.backbone.name,
        backbone_digest=None,
        image_size=tiny.image_size,
        mean=tiny.backbone.mean,
        std=tiny.backbone.std,
        antialias=True,
        scales=tiny.head.scales,
        placement=tiny.placement,
        calibration=replace(tiny.calibration, patch_weight=0.25, image_threshold=0.6),
        provenance={"data": [{"suite": "none", "images": 3}]},
    )


def test_round_trip_and_equal_bytes(tiny: Network, info: CheckpointInfo, tmp_path: Path) -> None:
    write_checkpoint(tmp_path / "a.safetensors", trained_tensors(tiny), info)
    write_checkpoint(tmp_path / "b.safetensors", trained_tensors(tiny), info)
    assert (tmp_path / "a.safetensors").read_bytes() == (tmp_path / "b.safetensors").read_bytes()
    found, tensors = read_checkpoint(tmp_path / "a.safetensors")
    assert found == info == read_info(tmp_path / "a.safetensors")
    again = assemble(tiny.backbone, found, tensors, source="a")
    image = torch.rand(3, 50, 60)
    tiny.calibration = info.calibration
    assert Detector(again)(image).pred_score == pytest.approx(Detector(tiny)(image).pred_score)
    assert not any(name.startswith("backbone") for name in tensors), "foreign weights are not stored"


def test_a_checkpoint_of_another_width_is_refused(tiny: Network, info: CheckpointInfo, tmp_path: Path) -> None:
    tensors = trained_tensors(tiny)
    narrow = {name: tensor[..., :-1] if tensor.ndim else tensor for name, tensor in tensors.items()}
    with pytest.raises(KeepADError, match="made for another backbone or is damaged"):
        assemble(tiny.backbone, info, narrow, source="narrow.safetensors")
    with pytest.raises(KeepADError, match="not finite"):
        assemble(tiny.backbone, info, {name: tensor * float("nan") for name, tensor in tensors.items()}, source="x")


def test_damaged_and_foreign_files_are_refused(tiny: Network, info: CheckpointInfo, tmp_path: Path) -> None:
    path = tmp_path / "c.safetensors"
    with pytest.raises(KeepADError, match="does not exist"):
        load(path)
    write_checkpoint(path, trained_tensors(tiny), info)
    path.write_bytes(path.read_bytes()[:1000])
    with pytest.raises(KeepADError, match="damaged"):
        load(path)
    save_file({"x": torch.zeros(2)}, path)
    with pytest.raises(KeepADError, match="no KeepAD checkpoint"):
        load(path)
    save_file({"x": torch.zeros(2)}, path, metadata={"keepad": '{"format": 99}'})
    with pytest.raises(KeepADError, match="format 99"):
        load(path)
    save_file({"x": torch.zeros(2)}, path, metadata={"keepad": '{"format": 2}'})
    with pytest.raises(KeepADError, match="cannot be read"):
        load(path)


def test_names(tmp_path: Path) -> None:
    bundled = bundled_checkpoints()
    assert resolve_checkpoint(None) == resolve_checkpoint(DEFAULT_CHECKPOINT) == bundled[DEFAULT_CHECKPOINT]
    assert resolve_checkpoint(read_info(bundled[DEFAULT_CHECKPOINT]).backbone) == bundled[DEFAULT_CHECKPOINT]
    for path in bundled.values():
        assert read_info(resolve_checkpoint(read_info(path).backbone)).backbone == read_info(path).backbone
    with pytest.raises(KeepADError, match="no checkpoint for the backbone clip-vit-b-16"):
        resolve_checkpoint("clip-vit-b-16")
    with pytest.raises(KeepADError, match="no checkpoint called 'defualt'"):
        resolve_checkpoint("defualt")


@pytest.mark.weights
def test_other_weights_of_the_same_backbone_are_refused(tmp_path: Path) -> None:
    from keepad.backbone import spec_of
    from keepad.backbone.weights import load_weights

    state, _ = load_weights(spec_of(read_info(resolve_checkpoint(None)).backbone))
    state["norm.bias"] = state["norm.bias"] + 0.1
    save_file(state, tmp_path / "other.safetensors")
    with pytest.raises(KeepADError, match="was trained on other weights"):
        load(weights=tmp_path / "other.safetensors", say=lambda _: None)


def model_bytes(detector: Detector) -> int:
    """Bytes of the parameters of a detector, its backbone included."""
    assert isinstance(detector.network, Network)
    return sum(parameter.nbytes for parameter in detector.network.parameters())


@pytest.mark.weights
def test_the_bundled_default_loads_and_says_where_it_comes_from() -> None:
    model = load(point="prune70", engine="torch")
    assert model.point.name == "prune70"
    assert model.provenance["data"][0]["licence"]
    assert model.provenance["command"]
    path = resolve_checkpoint(None)
    assert path.stat().st_size < 4e6 < 0.1 * model_bytes(model), "the backbone is not in it"
    assert set(read_checkpoint(path)[1]) == set(trained_tensors(load_network(device="cpu")))


def test_an_unusable_device_is_refused() -> None:
    from keepad.assembly import choose_device

    with pytest.raises(KeepADError, match="cannot be used here"):
        choose_device("cuda:99")


def test_fresh_parts_come_from_the_seed(tiny: Network) -> None:
    from keepad.backbone import spec_of

    spec = spec_of(tiny.backbone.name)
    one, same, other = (with_fresh_parts(tiny.backbone, spec, seed=s, image_size=tiny.image_size) for s in (1, 1, 2))
    assert torch.equal(one.head.patch, same.head.patch)
    assert not torch.equal(one.head.patch, other.head.patch)


def test_a_checkpoint_of_format_2_is_read_under_the_present_names(
    tiny: Network, info: CheckpointInfo, tmp_path: Path
) -> None:
    fields = json.loads(info.to_json())
    fields["format"] = 2
    fields["readings"] = [
        {name.replace("dissimilarity", "unlike"): value for name, value in scale.items()}
        for scale in fields.pop("scales")
    ]
    tensors = {**trained_tensors(tiny), "deep.unlike": torch.tensor(0.5)}
    save_file(tensors, tmp_path / "old.safetensors", metadata={"keepad": json.dumps(fields)})
    read, arrays = read_checkpoint(tmp_path / "old.safetensors")
    assert read == info
    assert set(arrays) == {*trained_tensors(tiny), "deep.dissimilarity"}


def test_without_torch_a_checkpoint_is_refused_in_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("keepad.loading.find_spec", lambda name: None)
    with pytest.raises(KeepADError, match=r"needs torch: pip install 'keepad\[torch\]'"):
        load()


@pytest.mark.parametrize("described", ["[" * 100_000, '{"format": 3}', "[1]", "{"])
def test_a_description_that_lies_is_refused(tmp_path: Path, described: str) -> None:
    path = tmp_path / "hostile.safetensors"
    path.write_bytes(save({"t": np.zeros(1, np.float32)}, metadata={"keepad": described}))
    with pytest.raises(KeepADError, match="cannot be read; get the checkpoint again"):
        read_info(path)
