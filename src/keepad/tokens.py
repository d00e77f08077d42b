"""Live tokens: features together with their indices on the original patch grid.

A batch is packed: image after image, each as its prefix tokens (CLS, registers) followed by its live patches. Images
may keep different numbers of patches; there is no padding.

Cells of the grid whose pixels are provably alike share one token (see `routing.pixel`). The token is computed once and
weighted by its size, as in ToMe; scores, risks and responses are per cell.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import torch
from torch import Tensor

from keepad.arrays import Array
from keepad.context import Context

Positions: TypeAlias = Tensor | Array


@dataclass(frozen=True)
class Merge:
    """Which cells of the grid share which live token of one image.

    Attributes:
        cells: (m,) grid indices of the live cells, ascending.
        token: (m,) position of each cell's token among the image's live tokens.
        size: (n,) cells per token.
    """

    cells: Tensor
    token: Tensor
    size: Tensor

    @property
    def one_to_one(self) -> bool:
        """Whether no two live cells share a token. Their order may differ: a token lies where its patch was."""
        return len(self.cells) == len(self.size)

    def gather(self, keep: Tensor) -> tuple[Merge, Tensor]:
        """The merge of the cells at positions `keep`, and the positions of the tokens that they need."""
        token = self.token[keep]
        needed = torch.zeros(len(self.size), dtype=torch.bool, device=token.device)
        needed[token] = True
        token, needed = (needed.cumsum(0) - 1)[token], needed.nonzero().squeeze(1)
        size = self.size.new_zeros(len(needed)).index_add_(0, token, self.size.new_ones(len(token)))
        return Merge(self.cells[keep], token, size), needed


@dataclass(frozen=True)
class Tokens:
    """A packed batch of token sequences.

    Attributes:
        x: (T, C) features, T = images * prefix + all live patches.
        index: (P,) grid index (row * columns + column) of every live patch, in the order of the patches in `x`.
        counts: Live patches of each image; they sum to P.
        grid: Rows and columns of the original patch grid.
        prefix: Tokens before the patches of each image (CLS, registers); never pruned, never counted.
        rope: Rotary table with one row per token, (T, D) or (depth, heads, T, D), or None.
        merges: For each image, which cells share its tokens, or None where every cell has its own; empty if all have.
        entry: (M,) dissimilarity of the live cells where they entered the deep router, or None.
        read: (M, k) responses of the live cells in head layers before the deep router, or None.
        read_cls: (B, k) responses of CLS in these layers, or None.
        contexts: For each image, the dropped tokens that its live ones still attend to; empty without context.
    """

    x: Tensor
    index: Tensor
    counts: tuple[int, ...]
    grid: tuple[int, int]
    prefix: int
    rope: Tensor | None = None
    merges: tuple[Merge | None, ...] = ()
    entry: Tensor | None = None
    read: Tensor | None = None
    read_cls: Tensor | None = None
    contexts: tuple[Context, ...] = ()

    @property
    def images(self) -> int:
        return len(self.counts)

    @property
    def uniform(self) -> bool:
        """Whether all images are equally long, so that the batch is a plain (B, L, C) tensor."""
        return self.images == 1 or len(set(self.counts)) == 1

    @property
    def lengths(self) -> tuple[int, ...]:
        """Rows of each image in `x`, prefix included."""
        return tuple(self.prefix + count for count in self.counts)

    @property
    def merged(self) -> bool:
        """Whether cells and tokens differ in any image."""
        return any(merge is not None for merge in self.merges)

    @property
    def size(self) -> Tensor | None:
        """(P,) cells per live patch, or None if one each; attention to a patch is proportional to it."""
        if all(merge is None or merge.one_to_one for merge in self.merges):
            return None
        sizes = zip(self.merges, self.counts, strict=True)
        return torch.cat([self.x.new_ones(count) if merge is None else merge.size for merge, count in sizes])

    def with_features(self, x: Tensor) -> Tokens:
        """The same tokens with other features."""
        return replace(self, x=x)

    def prefix_rows(self) -> Tensor:
        """(B, prefix) rows of `x` that hold the prefix tokens."""
        starts = torch.tensor([0, *self.lengths[:-1]], device=self.x.device).cumsum(0)
        return starts[:, None] + torch.arange(self.prefix, device=self.x.device)

    def patch_rows(self) -> Tensor:
        """(P,) rows of `x` that hold the live patches."""
        offsets = torch.repeat_interleave(
            torch.arange(1, self.images + 1, device=self.x.device) * self.prefix,
            torch.tensor(self.counts, device=self.x.device),
        )
        return torch.arange(len(self.index), device=self.x.device) + offsets

    def patches(self, x: Tensor | None = None) -> Tensor:
        """(P, C) patch rows of `x`, or of any tensor laid out like it."""
        x = self.x if x is None else x
        if self.images == 1:
            return x[self.prefix :]
        if self.uniform:
            return x.view(self.images, -1, x.shape[-1])[:, self.prefix :].flatten(0, 1)
        return x[self.patch_rows()]

    def spread(self, values: Tensor, prefix: float = 1.0) -> Tensor:
        """(T,) one value per row of `x`: those of the live patches, (P,), and `prefix` at the prefix tokens."""
        if self.images == 1:
            return torch.cat([values.new_full((self.prefix,), prefix), values])
        rows = values.new_full((self.x.shape[0],), prefix)
        return rows.index_put((self.patch_rows(),), values)

    def cls(self, x: Tensor | None = None) -> Tensor:
        """(B, C) first prefix token of each image, or the mean of its patches for a backbone without prefix."""
        x = self.x if x is None else x
        if self.prefix == 0:
            sizes = [None] * self.images if self.size is None else self.per_image(self.size)
            parts = zip(x.split(list(self.counts)), sizes, strict=True)
            return torch.stack([part.mean(0) if size is None else size @ part / size.sum() for part, size in parts])
        return x[self.prefix_rows()[:, 0]]

    def per_image(self, values: Tensor) -> tuple[Tensor, ...]:
        """One slice per image of a tensor that has one row per live patch."""
        parts: tuple[Tensor, ...] = values.split(list(self.counts))
        return parts

    def indices(self) -> list[Array]:
        """(n,) grid indices of the live patches of each image, ascending, as NumPy arrays."""
        return [part.cpu().numpy() for part in self.per_image(self.index)]

    def around(self) -> list[int]:
        """Tokens in the context of each image."""
        return [len(context.x) for context in self.contexts] or [0] * self.images

    def merge_of_each(self) -> tuple[Merge | None, ...]:
        """The merge of every image; None where each cell has its own token."""
        return self.merges or (None,) * self.images

    def cells(self) -> tuple[Tensor, ...]:
        """(m,) grid indices of the live cells of each image, ascending: its live patches, unless cells share them."""
        if not self.merged:
            return self.per_image(self.index)
        own = zip(self.merges, self.per_image(self.index), strict=True)
        return tuple(index if merge is None else merge.cells for merge, index in own)

    def per_cell(self, values: Tensor) -> Tensor:
        """(M, ...) values of the live cells of all images, from those of their tokens, (P, ...)."""
        if not self.merged:
            return values
        own = zip(self.merges, self.per_image(values), strict=True)
        return torch.cat([part if merge is None else part[merge.token] for merge, part in own])

    def split_cells(self, values: Tensor) -> tuple[Tensor, ...]:
        """One slice per image of a tensor that has one row per live cell."""
        return (values,) if self.images == 1 else values.split([len(cells) for cells in self.cells()])

    def gather(self, keep: Sequence[Positions], context: bool = False) -> Tokens:
        """The tokens that the cells at `keep[b]` need, positions among the live cells of image b.

        Args:
            keep: Positions of the cells that stay.
            context: Leave the tokens of the other cells behind as context; else they are gone, and any context is.
        """
        kept = [torch.as_tensor(positions, device=self.x.device) for positions in keep]
        contexts = tuple(self._left_behind(kept)) if context else ()
        entry, read = self._kept(self.entry, kept), self._kept(self.read, kept)
        if not self.merged:
            alone = self._gather_patches(kept)
            return replace(alone, entry=entry, read=read, read_cls=self.read_cls, contexts=contexts)
        needed, merges = [], []
        for merge, own in zip(self.merges, kept, strict=True):
            left, tokens = (None, own) if merge is None else merge.gather(own)
            merges.append(left)
            needed.append(tokens)
        return replace(
            self._gather_patches(needed),
            merges=tuple(merges),
            entry=entry,
            read=read,
            read_cls=self.read_cls,
            contexts=contexts,
        )

    def _left_behind(self, keep: Sequence[Tensor]) -> Iterator[Context]:
        """What becomes context of each image, when the cells at `keep[b]` stay."""
        rows = self.per_image(self.patch_rows())
        for own, cells, merge, kept in zip(rows, self.cells(), self.merge_of_each(), keep, strict=True):
            dropped = torch.ones(len(cells), dtype=torch.bool, device=cells.device)
            dropped[kept] = False
            token = (torch.arange(len(cells), device=cells.device) if merge is None else merge.token)[dropped]
            used, token, size = token.unique(return_inverse=True, return_counts=True)
            rope = None if self.rope is None else self.rope[..., own[used], :]
            yield Context(self.x[own[used]], cells[dropped], token, size.to(self.x), None, rope)

    def linked(self) -> Tokens:
        """The tokens, each dropped one with the survivors that carry it."""
        if not self.contexts:
            return self
        sizes = [None] * self.images if self.size is None else self.per_image(self.size)
        own = zip(self.contexts, self.per_image(self.patches()), sizes, strict=True)
        return replace(self, contexts=tuple(context.carried_by(patches, size) for context, patches, size in own))

    def _kept(self, values: Tensor | None, kept: Sequence[Tensor]) -> Tensor | None:
        """Values of the live cells at `kept[b]` of each image, from those of all live cells."""
        if values is None:
            return None
        return torch.cat([part[own] for part, own in zip(self.split_cells(values), kept, strict=True)])

    def _gather_patches(self, keep: Sequence[Tensor]) -> Tokens:
        """The tokens at `keep[b]`, positions among the live patches of image b."""
        prefix_rows, patch_rows = self.prefix_rows(), self.per_image(self.patch_rows())
        rows = torch.cat([part for b, kept in enumerate(keep) for part in (prefix_rows[b], patch_rows[b][kept])])
        return Tokens(
            x=self.x.index_select(0, rows),
            index=torch.cat([index[kept] for index, kept in zip(self.per_image(self.index), keep, strict=True)]),
            counts=tuple(len(kept) for kept in keep),
            grid=self.grid,
            prefix=self.prefix,
            rope=None if self.rope is None else self.rope[..., rows, :],
        )

    def select(self, image: int) -> Tokens:
        """The tokens of one image alone."""
        start = sum(self.lengths[:image])
        stop = start + self.lengths[image]
        return Tokens(
            x=self.x[start:stop],
            index=self.per_image(self.index)[image],
            counts=(self.counts[image],),
            grid=self.grid,
            prefix=self.prefix,
            rope=None if self.rope is None else self.rope[..., start:stop, :],
            merges=self.merges[image : image + 1],
            entry=None if self.entry is None else self.split_cells(self.entry)[image],
            read=None if self.read is None else self.split_cells(self.read)[image],
            read_cls=None if self.read_cls is None else self.read_cls[image : image + 1],
            contexts=self.contexts[image : image + 1],
        )
