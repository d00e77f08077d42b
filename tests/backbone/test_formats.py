"""Weights files of other projects: the same tensors under other names, with towers and heads that do not belong."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from safetensors.torch import save_file
from torch import Tensor

from keepad.backbone import build_backbone, load_backbone
from keepad.backbone.formats import to_timm
from keepad.errors import KeepADError

SIZES: dict[str, Any] = {"embed_dim": 64, "depth": 2, "num_heads": 4, "num_classes": 0, "dynamic_img_size": True}


def vit_of(architecture: str) -> Any:
    torch.manual_seed(0)
    vit = timm.create_model(architecture, **SIZES)
    for parameter in vit.parameters():
        torch.nn.init.normal_(parameter, std=0.1)
    return vit


def same(found: dict[str, Tensor], vit: Any) -> None:
    expected = vit.state_dict()
    assert set(found) == set(expected)
    for name, tensor in expected.items():
        torch.testing.assert_close(found[name], tensor, msg=name)


def split_qkv(state: dict[str, Tensor], names: str) -> dict[str, Tensor]:
    """Query, key and value apart, as `names` with {} says."""
    parts = {}
    for name, tensor in state.items():
        if ".attn.qkv." not in name:
            parts[name] = tensor
            continue
        for part, own in zip(("q", "k", "v"), tensor.chunk(3), strict=True):
            parts[name.replace("attn.qkv.", names.format(part))] = own.clone()
    return parts


def renamed(state: dict[str, Tensor], *pairs: tuple[str, str]) -> dict[str, Tensor]:
    for pattern, replacement in pairs:
        state = {re.sub(pattern, replacement, name): tensor for name, tensor in state.items()}
    return state


def test_timm_with_and_without_classifier() -> None:
    vit = vit_of("vit_base_patch16_clip_quickgelu_224")
    same(to_timm(vit.state_dict(), vit), vit)
    same(to_timm({**vit.state_dict(), "head.weight": torch.ones(10, 64), "head.bias": torch.ones(10)}, vit), vit)


def test_openai_and_open_clip() -> None:
    vit = vit_of("vit_base_patch16_clip_quickgelu_224")
    state = renamed(
        dict(vit.state_dict()),
        (r"^cls_token$", "class_embedding"),
        (r"^pos_embed$", "positional_embedding"),
        (r"^patch_embed\.proj\.", "conv1."),
        (r"^norm_pre\.", "ln_pre."),
        (r"^norm\.", "ln_post."),
        (r"^blocks\.", "transformer.resblocks."),
        (r"\.norm([12])\.", r".ln_\1."),
        (r"\.attn\.qkv\.", ".attn.in_proj_"),
        (r"\.attn\.proj\.", ".attn.out_proj."),
        (r"\.mlp\.fc1\.", ".mlp.c_fc."),
        (r"\.mlp\.fc2\.", ".mlp.c_proj."),
    )
    state["class_embedding"] = state["class_embedding"].flatten()
    state["positional_embedding"] = state["positional_embedding"][0]
    both = {f"visual.{name}": tensor.half().float() for name, tensor in state.items()}
    both |= {"visual.proj": torch.ones(64, 32), "text_projection": torch.ones(8, 32), "logit_scale": torch.ones(())}
    both |= {"transformer.resblocks.0.ln_1.weight": torch.ones(8), "token_embedding.weight": torch.ones(9, 8)}
    both |= {"positional_embedding": torch.ones(7, 8), "ln_final.weight": torch.ones(8)}
    found = to_timm(both, vit)
    assert set(found) == set(vit.state_dict())
    for name, tensor in vit.state_dict().items():
        torch.testing.assert_close(found[name], tensor.half().float(), msg=name)
    trunk = {f"visual.trunk.{name}": tensor for name, tensor in vit.state_dict().items()}
    same(to_timm({**trunk, "text.weight": torch.ones(3), "logit_scale": torch.ones(())}, vit), vit)


def test_hugging_face_clip() -> None:
    vit = vit_of("vit_base_patch16_clip_quickgelu_224")
    state = renamed(
        split_qkv(dict(vit.state_dict()), "self_attn.{}_proj."),
        (r"^cls_token$", "embeddings.class_embedding"),
        (r"^pos_embed$", "embeddings.position_embedding.weight"),
        (r"^patch_embed\.proj\.", "embeddings.patch_embedding."),
        (r"^norm_pre\.", "pre_layrnorm."),
        (r"^norm\.", "post_layernorm."),
        (r"^blocks\.", "encoder.layers."),
        (r"\.norm([12])\.", r".layer_norm\1."),
        (r"\.attn\.proj\.", ".self_attn.out_proj."),
    )
    state["embeddings.class_embedding"] = state["embeddings.class_embedding"].flatten()
    state["embeddings.position_embedding.weight"] = state["embeddings.position_embedding.weight"][0]
    state = {f"vision_model.{name}": tensor for name, tensor in state.items()}
    state |= {"text_model.encoder.layers.0.mlp.fc1.weight": torch.ones(3), "visual_projection.weight": torch.ones(3)}
    same(to_timm(state, vit), vit)


def test_hugging_face_dinov2_with_registers() -> None:
    vit = vit_of("vit_large_patch14_reg4_dinov2")
    state = renamed(
        split_qkv(dict(vit.state_dict()), "attention.attention.{}."),
        (r"attention\.attention\.q\.", "attention.attention.query."),
        (r"attention\.attention\.k\.", "attention.attention.key."),
        (r"attention\.attention\.v\.", "attention.attention.value."),
        (r"^cls_token$", "embeddings.cls_token"),
        (r"^reg_token$", "embeddings.register_tokens"),
        (r"^pos_embed$", "embeddings.position_embeddings"),
        (r"^patch_embed\.proj\.", "embeddings.patch_embeddings.projection."),
        (r"^norm\.", "layernorm."),
        (r"^blocks\.", "encoder.layer."),
        (r"\.attn\.proj\.", ".attention.output.dense."),
        (r"\.ls([12])\.gamma$", r".layer_scale\1.lambda1"),
    )
    state["embeddings.mask_token"] = torch.ones(1, 64)
    same(to_timm(state, vit), vit)
    same(to_timm({f"dinov2.{n}": t for n, t in state.items()} | {"classifier.weight": torch.ones(3, 64)}, vit), vit)


def test_hugging_face_dinov3_has_rotary_positions_and_no_bias_of_keys() -> None:
    vit = vit_of("vit_base_patch16_dinov3")
    state = renamed(
        split_qkv(dict(vit.state_dict()), "attention.{}_proj."),
        (r"^cls_token$", "embeddings.cls_token"),
        (r"^reg_token$", "embeddings.register_tokens"),
        (r"^patch_embed\.proj\.", "embeddings.patch_embeddings."),
        (r"^blocks\.", "layer."),
        (r"\.attn\.proj\.", ".attention.o_proj."),
        (r"\.mlp\.fc1\.", ".mlp.up_proj."),
        (r"\.mlp\.fc2\.", ".mlp.down_proj."),
        (r"\.gamma_([12])$", r".layer_scale\1.lambda1"),
    )
    state |= {f"layer.{block}.attention.q_proj.bias": torch.zeros(64) for block in range(2)}
    same(to_timm({**state, "embeddings.mask_token": torch.ones(1, 1, 64)}, vit), vit)


def test_a_file_of_another_architecture_is_refused_by_name(tmp_path: Path) -> None:
    vit = build_backbone("vit_tiny_patch16_224", seed=0)[0].vit
    state = dict(vit.state_dict())
    deeper = {**state, "blocks.12.norm1.weight": torch.ones(192)}
    save_file(deeper, tmp_path / "deeper.safetensors")
    with pytest.raises(KeepADError, match="does not hold weights of vit_tiny_patch16_224"):
        load_backbone("vit_tiny_patch16_224", file=tmp_path / "deeper.safetensors", say=lambda line: None)
    torch.save({"epoch": 3, "state_dict": {f"module.{n}": t for n, t in state.items()}}, tmp_path / "trained.pth")
    backbone, _, _ = load_backbone("vit_tiny_patch16_224", file=tmp_path / "trained.pth", say=lambda line: None)
    same(dict(backbone.vit.state_dict()), vit)
