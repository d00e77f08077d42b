"""State dicts of other projects in timm's names: of Hugging Face, and those that timm itself converts."""

from __future__ import annotations

import contextlib
import io
import re
from collections.abc import Mapping
from typing import Any

import torch
from timm.models import eva, vision_transformer
from timm.models.eva import Eva
from torch import Tensor

State = dict[str, Tensor]

_WRAPPERS = ("state_dict", "model", "teacher", "module")
# Parts of names in Hugging Face's ViTs (CLIP, DINOv2, DINOv3, ViT) and what stands for them in timm, in this order.
_HUGGING_FACE = (
    (r"^(vision_model|vit|dinov2|dinov2_with_registers|dinov3|model)\.", ""),
    (r"^embeddings\.(class_embedding|cls_token)$", "cls_token"),
    (r"^embeddings\.register_tokens$", "reg_token"),
    (r"^embeddings\.(position_embedding\.weight|position_embeddings)$", "pos_embed"),
    (r"^embeddings\.(patch_embeddings\.projection|patch_embeddings|patch_embedding)\.", "patch_embed.proj."),
    (r"^pre_layrnorm\.", "norm_pre."),
    (r"^(post_layernorm|layernorm)\.", "norm."),
    (r"^(encoder\.layers|encoder\.layer|layer)\.", "blocks."),
    (r"\.(layer_norm1|layernorm_before)\.", ".norm1."),
    (r"\.(layer_norm2|layernorm_after)\.", ".norm2."),
    (r"\.(attention\.attention|attention|self_attn)\.(query|q_proj)\.", ".attn.q."),
    (r"\.(attention\.attention|attention|self_attn)\.(key|k_proj)\.", ".attn.k."),
    (r"\.(attention\.attention|attention|self_attn)\.(value|v_proj)\.", ".attn.v."),
    (r"\.(attention\.output\.dense|attention\.o_proj|self_attn\.out_proj)\.", ".attn.proj."),
    (r"\.(intermediate\.dense|mlp\.up_proj)\.", ".mlp.fc1."),
    (r"(?<!attention)\.(output\.dense|mlp\.down_proj)\.", ".mlp.fc2."),
    (r"\.layer_scale([12])\.lambda1$", r".ls\1.gamma"),
)
# Tensors beside the vision tower: classifiers, text towers, and what only pretraining uses.
_OTHERS = (
    *(
        "head.",
        "head_dist.",
        "classifier.",
        "pooler.",
        "lm_head.",
        "visual_projection.",
        "text_projection",
        "text_model.",
    ),
    *("logit_scale", "mask_token", "proj", "transformer.", "token_embedding.", "positional_embedding", "ln_final."),
    *("embeddings.mask_token", "embeddings.position_ids", "rope_embeddings.", "dino_head.", "ibot_head."),
)


def unwrapped(content: Mapping[str, Any]) -> Mapping[str, Any]:
    """The state dict in the content of a file: training checkpoints hold it under a name, beside other things."""
    for name in _WRAPPERS:
        if isinstance(content.get(name), Mapping):
            return unwrapped(content[name])
    return content


def to_timm(state: State, vit: Any) -> State:
    """The tensors of `vit` under timm's names, from a state dict in any of the formats; others are left as they are.

    Classifiers and text towers are left out. Position embeddings get the grid of `vit`.
    """
    state = {name.removeprefix("module."): tensor for name, tensor in state.items()}
    if any(re.match(r"(.*\.)?(encoder\.)?layers?\.0\.", name) for name in state) and not _has(state, "blocks.0."):
        state = _from_hugging_face(state, vit)
    convert = eva.checkpoint_filter_fn if isinstance(vit, Eva) else vision_transformer.checkpoint_filter_fn
    with contextlib.redirect_stdout(io.StringIO()):  # timm prints what it leaves out
        state = convert(state, vit)
    wanted = vit.state_dict()
    kept = {name: tensor for name, tensor in state.items() if name in wanted or not name.startswith(_OTHERS)}
    return {
        name: tensor.float().contiguous() if tensor.is_floating_point() else tensor for name, tensor in kept.items()
    }


def _from_hugging_face(state: State, vit: Any) -> State:
    tower = {name: tensor for name, tensor in state.items() if not name.startswith(_OTHERS)}
    renamed: State = {}
    for name, tensor in tower.items():
        for pattern, replacement in _HUGGING_FACE:
            name = re.sub(pattern, replacement, name)
        renamed[name] = tensor
    _join_qkv(renamed, vit)
    if "cls_token" in renamed:
        renamed["cls_token"] = renamed["cls_token"].reshape(1, 1, -1)
    if "pos_embed" in renamed:
        renamed["pos_embed"] = renamed["pos_embed"].reshape(1, -1, renamed["pos_embed"].shape[-1])
    if isinstance(vit, Eva):
        renamed = {re.sub(r"\.ls([12])\.gamma$", r".gamma_\1", name): tensor for name, tensor in renamed.items()}
    return {name: tensor for name, tensor in renamed.items() if not name.startswith(_OTHERS)}


def _join_qkv(state: State, vit: Any) -> None:
    """Replace query, key and value of each block by timm's one layer, where `vit` has one; a missing bias is zero."""
    wanted = vit.state_dict()
    for name in [name for name in state if ".attn.q.weight" in name]:
        block = name.removesuffix("q.weight")
        for kind in ("weight", "bias"):
            parts = [state.pop(f"{block}{part}.{kind}", None) for part in "qkv"]
            known = next((part for part in parts if part is not None), None)
            if known is None:
                continue
            joined = torch.cat([torch.zeros_like(known) if part is None else part for part in parts])
            if f"{block}qkv.{kind}" in wanted or kind == "weight" or bool(joined.any()):
                state[f"{block}qkv.{kind}"] = joined


def _has(state: State, part: str) -> bool:
    return any(part in name for name in state)
