"""Tensors of a ViT out of an exported ONNX graph, as a timm state dict. The names are data of the registry."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from onnx import numpy_helper
from torch import Tensor

from keepad.arrays import Array
from keepad.backbone.registry import TensorNames


def read_onnx(path: Path, names: TensorNames) -> dict[str, Tensor]:
    """timm state dict of the ViT in an ONNX file.

    Exporters keep the names of biases, norms and embeddings, but store the matrices of linear layers transposed under
    numbers; each is named after the bias that is added to its product.
    """
    graph = onnx.load(str(path)).graph
    arrays = {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer}
    tensors = {name: array for name, array in arrays.items() if name.startswith(names.prefix)}
    tensors.update(_matrices(graph, arrays))
    state = {_renamed(name, names): _tensor(array) for name, array in tensors.items()}
    _join_qkv(state)
    state["cls_token"] = state["cls_token"].reshape(1, 1, -1)
    width = state["cls_token"].shape[-1]
    state["pos_embed"] = torch.cat([_tensor(arrays[name]).reshape(1, -1, width) for name in names.positions], dim=1)
    return state


def _matrices(graph: Any, arrays: dict[str, Array]) -> Iterator[tuple[str, Array]]:
    """Name and (out, in) matrix of every linear layer with a bias."""
    consumers = {name: node for node in graph.node for name in node.input}
    for node in graph.node:
        if node.op_type not in ("MatMul", "MatMulInteger") or node.input[1] not in arrays:
            continue
        stored = node.input[1]
        matrix = arrays[stored]
        if node.op_type == "MatMulInteger":  # symmetric int8 with one scale per output channel
            matrix = matrix.astype(np.float32) * arrays[stored.replace("_quantized", "_scale")]
        follower = consumers.get(node.output[0])
        while follower is not None and follower.op_type in ("Cast", "Mul"):  # the product of integers is scaled
            follower = consumers.get(follower.output[0])
        biases = [name for name in follower.input if name in arrays] if follower is not None else []
        if biases:  # CLIP's projection has none, and is not part of the ViT
            yield biases[0].removesuffix("bias") + "weight", matrix.T


def _renamed(name: str, names: TensorNames) -> str:
    name = name.removeprefix(names.prefix)
    for part, timm_part in names.renamed:
        name = name.replace(part, timm_part)
    return name


def _join_qkv(state: dict[str, Tensor]) -> None:
    """Replace query, key and value of each block by timm's one layer."""
    for name in [name for name in state if ".attn.q." in name]:
        parts = [state.pop(name.replace(".attn.q.", f".attn.{part}.")) for part in "qkv"]
        state[name.replace(".attn.q.", ".attn.qkv.")] = torch.cat(parts)


def _tensor(array: Array) -> Tensor:
    return torch.from_numpy(np.array(array, order="C"))  # a copy: the graph's memory is read-only
