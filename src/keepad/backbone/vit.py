"""Backbone: a timm ViT or Eva that embeds images and runs any range of its blocks on live tokens.

timm owns the modules and the weights; the forward pass is written here, because live tokens are packed (see `tokens`).
Attention stays inside each image. Linear layers run on the whole batch on a GPU, and image by image in chunks that fit
the caches on a CPU.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, cast

import torch
import torch.nn.functional as F
from timm.layers.attention import Attention, AttentionRope
from timm.layers.mlp import Mlp
from timm.layers.patch_embed import PatchEmbed
from timm.layers.pos_embed import resample_abs_pos_embed
from timm.models.eva import Eva, EvaAttention, EvaBlock, EvaBlockPostNorm
from timm.models.vision_transformer import Block, ResPostBlock, VisionTransformer
from torch import Tensor, nn

from keepad.backbone.attention import attend, attend_with_context
from keepad.context import Context
from keepad.errors import KeepADError
from keepad.tokens import Tokens

POST_NORM = (ResPostBlock, EvaBlockPostNorm)
_BLOCKS = (Block, ResPostBlock, EvaBlock, EvaBlockPostNorm)
_ATTENTION = (Attention, AttentionRope, EvaAttention)
_CHUNK_ROWS = 1536  # of the MLP on a CPU; smaller chunks are slower
_EPS = 1e-6  # keeps log(presence) finite


class Backbone(nn.Module):
    """A frozen Vision Transformer that runs on live tokens.

    Args:
        vit: A timm `VisionTransformer` or `Eva` made with `dynamic_img_size=True`.
        name: Name in checkpoints and messages.
        mean: Channel means that pixels are normalised with.
        std: Channel standard deviations.
        antialias: Whether position embeddings are resampled with antialiasing, as in the training of the weights.
    """

    def __init__(
        self,
        vit: nn.Module,
        *,
        name: str,
        mean: tuple[float, float, float],
        std: tuple[float, float, float],
        antialias: bool = True,
    ) -> None:
        super().__init__()
        _refuse_unknown_parts(vit, name)
        self.vit = cast(Any, vit.eval().requires_grad_(False))  # timm's modules have no useful static types
        self.name = name
        self.width: int = self.vit.embed_dim
        self.depth = len(self.vit.blocks)
        self.prefix: int = self.vit.num_prefix_tokens
        self.patch: tuple[int, int] = tuple(self.vit.patch_embed.patch_size)
        self.mean, self.std, self.antialias = mean, std, antialias
        self.normalises = False  # whether the patch projection takes pixels in 0..255 and normalises them itself
        self._resampled: dict[tuple[object, ...], Tensor] = {}
        self._mean: Tensor
        self._std: Tensor
        self.register_buffer("_mean", torch.tensor(mean).view(3, 1, 1), persistent=False)
        self.register_buffer("_std", torch.tensor(std).view(3, 1, 1), persistent=False)

    def grid_of(self, height: int, width: int) -> tuple[int, int]:
        """Rows and columns of the patch grid of an input, or a KeepADError if it is no multiple of the patch."""
        rows, columns = self.patch
        if height % rows or width % columns or not height or not width:
            raise KeepADError(
                f"{self.name} takes inputs whose sides are multiples of {rows} pixels, not {height}x{width}; "
                f"choose for instance {max(height // rows, 1) * rows}x{max(width // columns, 1) * columns}."
            )
        return height // rows, width // columns

    def embed_some(self, images: Tensor, live: Sequence[Tensor]) -> Tokens:
        """Tokens that enter block 1 at the grid indices `live[b]` of each image, from (B, 3, H, W) in [0, 1]."""
        grid = self.grid_of(*images.shape[-2:])
        if len(live) > 1 and _frugal(images):
            alone = [self.embed_some(image[None], [index]).x for image, index in zip(images, live, strict=True)]
            return self.tokens_at(torch.cat(alone), torch.cat(list(live)), grid, tuple(len(index) for index in live))
        rows, columns = self.patch
        images = 255 * images if self.normalises else images
        cut = images.reshape(len(images), 3, grid[0], rows, grid[1], columns).permute(0, 2, 4, 1, 3, 5)
        patches = torch.cat([own.flatten(0, 1)[index].flatten(1) for own, index in zip(cut, live, strict=True)])
        return self.embed_patches(patches, torch.cat(list(live)), grid, tuple(len(index) for index in live))

    def embed(self, images: Tensor) -> Tokens:
        """All tokens that enter block 1, from (B, 3, H, W) in [0, 1]."""
        grid = self.grid_of(*images.shape[-2:])
        vit = self.vit
        pixels = 255 * images if self.normalises else (images - self._mean) / self._std
        pixels = pixels.to(vit.patch_embed.proj.weight.dtype)
        x = vit.patch_embed(pixels).flatten(1, 2)
        prefix = [token.expand(len(x), -1, -1) for token in (vit.cls_token, vit.reg_token) if token is not None]
        positions = self.positions(grid)
        if positions is None:
            x = torch.cat([*prefix, x], dim=1)
        elif vit.no_embed_class:
            x = torch.cat([*prefix, x + positions], dim=1)
        else:
            x = torch.cat([*prefix, x], dim=1) + positions
        return self.tokens_of(vit.norm_pre(x), grid)

    def embed_patches(
        self, patches: Tensor, index: Tensor, grid: tuple[int, int], counts: tuple[int, ...] | None = None
    ) -> Tokens:
        """Tokens that enter block 1, of some patches only; each equals that of `embed`.

        Args:
            patches: (P, 3 * height * width) pixels in [0, 1], or in 0..255 where the projection `normalises`, channel
                by channel, image after image.
            index: (P,) grid indices of the patches, ascending in each image.
            grid: Rows and columns of the whole grid.
            counts: Patches of each image; None for a single image.
        """
        vit = self.vit
        weight = vit.patch_embed.proj.weight
        pixels = patches
        if not self.normalises:
            pixels = ((torch.unflatten(patches, 1, (3, -1)) - self._mean[:, :, 0]) / self._std[:, :, 0]).flatten(1)
        pixels = pixels.to(weight.dtype)
        x = vit.patch_embed.norm(F.linear(pixels, weight.flatten(1), vit.patch_embed.proj.bias))
        prefix = [token[0] for token in (vit.cls_token, vit.reg_token) if token is not None]
        positions = self.positions(grid)
        if positions is not None:
            skipped = 0 if vit.no_embed_class else self.prefix  # positions of the prefix tokens come first
            x = x + positions[0, skipped:][index]
            if skipped:
                prefix = [torch.cat(prefix) + positions[0, :skipped]]
        images = [x] if counts is None else list(torch.split(x, list(counts)))
        rows = torch.cat([part for own in images for part in (*prefix, own)])
        return self.tokens_at(vit.norm_pre(rows), index, grid, counts)

    def tokens_at(
        self, x: Tensor, index: Tensor, grid: tuple[int, int], counts: tuple[int, ...] | None = None
    ) -> Tokens:
        """Live tokens, from (T, C) packed features and (P,) grid indices; of a single image if `counts` is None."""
        counts = (x.shape[0] - self.prefix,) if counts is None else counts
        rope = self._rotary(grid, 1)
        if rope is not None:
            first = torch.arange(self.prefix, device=index.device)
            indices = torch.split(index, list(counts)) if len(counts) > 1 else (index,)
            rope = rope[..., torch.cat([part for own in indices for part in (first, own + self.prefix)]), :]
        return Tokens(x, index, counts, grid, self.prefix, rope)

    def rotary_rows(self, index: Tensor, grid: tuple[int, int]) -> Tensor | None:
        """Rotary table of the patches at some grid indices, (n,), or None where the backbone has none."""
        rope = self._rotary(grid, 1)
        return None if rope is None else rope[..., index + self.prefix, :]

    def _rotary(self, grid: tuple[int, int], batch: int) -> Tensor | None:
        """Rotary table of whole images, or None where the backbone has none."""
        rotary = getattr(self.vit, "rope", None)
        return None if rotary is None else _rotary_rows(rotary.get_embed(shape=list(grid)), self.prefix, batch)

    def tokens_of(self, x: Tensor, grid: tuple[int, int]) -> Tokens:
        """Tokens of whole images, from (B, prefix + N, C) features as they leave a block."""
        batch, count = x.shape[0], grid[0] * grid[1]
        return Tokens(
            x=x.reshape(-1, x.shape[-1]),
            index=torch.arange(count, device=x.device).repeat(batch),
            counts=(count,) * batch,
            grid=grid,
            prefix=self.prefix,
            rope=self._rotary(grid, batch),
        )

    def positions(self, grid: tuple[int, int]) -> Tensor | None:
        """Absolute position embedding of a grid, (1, L, C); resampled once per grid size."""
        embedding = self.vit.pos_embed
        if embedding is None:
            return None
        key = (grid, embedding.device, embedding.dtype)
        if key not in self._resampled:
            prefix = 0 if self.vit.no_embed_class else self.prefix
            native = tuple(self.vit.patch_embed.grid_size)
            self._resampled[key] = resample_abs_pos_embed(
                embedding,
                new_size=list(grid),
                old_size=list(native),
                num_prefix_tokens=prefix,
                antialias=self.antialias,
            )
        return self._resampled[key]

    def forget_positions(self) -> None:
        """Drop resampled position embeddings, after the originals were changed."""
        self._resampled.clear()

    def run(self, tokens: Tokens, first: int, last: int, presence: Tensor | None = None) -> Tokens:
        """The tokens after blocks `first` to `last`, counted from 1, both included.

        Args:
            tokens: Tokens that enter block `first`.
            first: First block.
            last: Last block.
            presence: (P,) relaxed mask of the live patches in (0, 1], in training only: its log is added to the
                attention logits of a key, and block outputs are multiplied by it.
        """
        if tokens.images > 1 and tokens.contexts:
            presences = [None] * tokens.images if presence is None else tokens.per_image(presence)
            alone = [self.run(tokens.select(image), first, last, own) for image, own in enumerate(presences)]
            contexts = tuple(own.contexts[0] for own in alone)
            return replace(tokens, x=torch.cat([own.x for own in alone]), contexts=contexts)
        if tokens.images > 1 and presence is None and _frugal(tokens.x):
            out = torch.empty_like(tokens.x)
            for image, part in enumerate(torch.split(out, list(tokens.lengths))):
                part.copy_(self.run(tokens.select(image), first, last).x)
            return tokens.with_features(out)
        # Engines fuse norms only where there is a batch dimension.
        x = tokens.x[None] if torch.compiler.is_exporting() else tokens.x
        rows = None if presence is None else tokens.spread(presence)
        bias = None if rows is None else (rows + _EPS).log()
        if tokens.size is not None:  # proportional attention, as in ToMe
            weight = tokens.spread(tokens.size).log()
            bias = weight if bias is None else bias + weight
        context = tokens.contexts[0] if tokens.contexts else None
        for layer in range(first, last + 1):
            block, before = self.vit.blocks[layer - 1], x
            rope = _rope_of(tokens.rope, layer)
            if context is None:
                x = _run_block(block, x, tokens, rope, bias)
            else:
                around = replace(context, rope=_rope_of(context.rope, layer))
                x = _run_block(block, x, tokens, rope, bias, around)
                context = context.moved((x - before).flatten(0, -2)[self.prefix :])
            if rows is not None:
                x = x * rows[:, None]
        return replace(tokens, x=x.flatten(0, -2), contexts=tokens.contexts if context is None else (context,))

    def norm(self, x: Tensor) -> Tensor:
        """The backbone's final norm, applied to the features of every head layer."""
        normed: Tensor = self._final_norm()(x)
        return normed

    def norm_gain(self) -> Tensor:
        """(C,) weight of the final norm."""
        weight = getattr(self._final_norm(), "weight", None)
        return torch.ones(self.width, device=self._mean.device) if weight is None else weight

    def _final_norm(self) -> nn.Module:
        # timm moves it to `fc_norm` where the model was trained to average its patches.
        norm: nn.Module = self.vit.fc_norm if isinstance(self.vit.norm, nn.Identity) else self.vit.norm
        return norm


def _refuse_unknown_parts(vit: Any, name: str) -> None:
    """Raise for blocks that this forward pass does not implement."""
    # Subclasses and other embeddings (distilled, hybrid) put other tokens before the patches.
    if type(vit) not in (VisionTransformer, Eva) or type(vit.patch_embed) is not PatchEmbed:
        raise KeepADError(
            f"{name} is a {type(vit).__name__}; only timm's plain VisionTransformer and Eva models can be used."
        )
    for block in vit.blocks:
        if type(block) not in _BLOCKS or type(block.attn) not in _ATTENTION:
            raise KeepADError(
                f"{name} is built of {type(block).__name__} with {type(getattr(block, 'attn', block)).__name__}, which "
                "KeepAD cannot run on pruned tokens; choose a ViT with plain attention blocks."
            )


def _rotary_rows(rope: Tensor, prefix: int, batch: int) -> Tensor:
    """Rotary table of a packed batch of whole images, (T, D) or (depth, heads, T, D); identity for prefix tokens."""
    sin, cos = rope.chunk(2, -1)
    pad = (0, 0, prefix, 0)
    rows = torch.cat([F.pad(sin, pad), F.pad(cos, pad, value=1.0)], dim=-1)
    return torch.cat([rows] * batch, dim=-2)


def _rope_of(rope: Tensor | None, layer: int) -> Tensor | None:
    """Rotary table of a block, counted from 1, from one that all blocks or each of them have."""
    return rope if rope is None or rope.ndim == 2 else rope[layer - 1]


def _run_block(
    block: Any,
    x: Tensor,
    tokens: Tokens,
    rope: Tensor | None,
    bias: Tensor | None,
    context: Context | None = None,
) -> Tensor:
    """x: (T, C) -> (T, C), with LayerScale and norm order of the family; a single image may have a context."""
    if context is None:
        rows = x if isinstance(block, POST_NORM) else block.norm1(x)
        attended = attend(block.attn, rows, tokens, rope, bias)
    else:
        around = context.x if x.ndim == 2 else context.x[None]
        rows = torch.cat([x, around], dim=-2)
        rows = rows if isinstance(block, POST_NORM) else block.norm1(rows)
        attended = attend_with_context(block.attn, rows, context, rope, bias)
    if isinstance(block, POST_NORM):
        x = x + block.norm1(attended)
        return in_chunks(lambda rows: rows + block.norm2(run_mlp(block.mlp, rows)), x)
    x = x + scale_branch(block, 1, attended)
    return in_chunks(lambda rows: rows + scale_branch(block, 2, run_mlp(block.mlp, block.norm2(rows))), x)


def run_mlp(mlp: Any, x: Tensor) -> Tensor:
    """The block's own MLP; its hidden layer dominates peak memory, so it is activated in place."""
    output: Tensor
    if type(mlp) is not Mlp or type(mlp.act) is not nn.GELU or not _frugal(x):
        output = mlp(x)
    else:
        hidden = torch.ops.aten.gelu_(mlp.fc1(x), approximate=mlp.act.approximate)
        output = mlp.fc2(mlp.norm(hidden))
    return output


def _frugal(x: Tensor) -> bool:
    """Whether to process images and chunks of rows in turn: on a CPU, outside of training and export.

    One image uses all cores of a CPU, and intermediate tensors then fit its caches.
    """
    return x.device.type == "cpu" and not torch.is_grad_enabled() and not torch.compiler.is_compiling()


def in_chunks(function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """A row-wise function applied to (T, C) in chunks."""
    if not _frugal(x) or len(x) <= _CHUNK_ROWS:
        return function(x)
    out = torch.empty_like(x)
    chunks = -(-len(x) // _CHUNK_ROWS)
    for source, target in zip(x.chunk(chunks), out.chunk(chunks), strict=True):
        target.copy_(function(source))
    return out


def scale_branch(block: Any, branch: int, x: Tensor) -> Tensor:
    """LayerScale of a branch: a module in ViT, a bare parameter (or None) in Eva."""
    if isinstance(block, Block):
        scaled: Tensor = (block.ls1 if branch == 1 else block.ls2)(x)
        return scaled
    gamma = block.gamma_1 if branch == 1 else block.gamma_2
    return x if gamma is None else gamma * x
