"""Live tokens: features together with where they came from on the original patch grid.

A batch is packed: image after image, each as its prefix tokens (CLS, registers) followed by its live patches. Images
may keep different numbers of patches, and no row is ever padding.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor


@dataclass(frozen=True)
class Tokens:
    """A packed batch of token sequences.

    Attributes:
        x: (T, C) features, T = images * prefix + all live patches.
        index: (P,) grid index (row * columns + column) of every live patch, in the order of the patches in `x`.
        counts: Live patches of each image; they sum to P.
        grid: Rows and columns of the original patch grid.
        prefix: Tokens before the patches of each image; never pruned, never counted.
        rope: Rotary table with one row a token, (T, D) or (depth, heads, T, D), or None.
        mass: (P,) cells of the grid that each live patch stands for, itself included; None if one each. Attention
            counts a patch so often, so that those it stands for are heard as if they were there.
    """

    x: Tensor
    index: Tensor
    counts: tuple[int, ...]
    grid: tuple[int, int]
    prefix: int
    rope: Tensor | None = None
    mass: Tensor | None = None

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
        """(T,) one value a row of `x`: those of the live patches, (P,), and `prefix` at the prefix tokens."""
        if self.images == 1:
            return torch.cat([values.new_full((self.prefix,), prefix), values])
        rows = values.new_full((self.x.shape[0],), prefix)
        return rows.index_put((self.patch_rows(),), values)

    def cls(self, x: Tensor | None = None) -> Tensor:
        """(B, C) first prefix token of each image, or the mean of its patches for a backbone without prefix."""
        x = self.x if x is None else x
        if self.prefix == 0:
            return torch.stack([part.mean(0) for part in x.split(list(self.counts))])
        return x[self.prefix_rows()[:, 0]]

    def per_image(self, values: Tensor) -> tuple[Tensor, ...]:
        """One slice an image of a tensor that has one row a live patch."""
        return values.split(list(self.counts))

    def gather(self, keep: Sequence[Tensor]) -> Tokens:
        """The tokens at `keep[b]`, positions among the live patches of image b.

        Where some of an image's go, those that are left count alike from then on: no one stands for the others.
        """
        prefix_rows, patch_rows = self.prefix_rows(), self.per_image(self.patch_rows())
        rows = torch.cat([part for b, kept in enumerate(keep) for part in (prefix_rows[b], patch_rows[b][kept])])
        return Tokens(
            x=self.x.index_select(0, rows),
            index=torch.cat([index[kept] for index, kept in zip(self.per_image(self.index), keep, strict=True)]),
            counts=tuple(len(kept) for kept in keep),
            grid=self.grid,
            prefix=self.prefix,
            rope=None if self.rope is None else self.rope[..., rows, :],
            mass=self._mass_of(keep),
        )

    def _mass_of(self, keep: Sequence[Tensor]) -> Tensor | None:
        if self.mass is None or all(len(kept) < count for kept, count in zip(keep, self.counts, strict=True)):
            return None
        parts = zip(self.per_image(self.mass), keep, strict=True)
        return torch.cat([m[kept] if len(kept) == len(m) else torch.ones_like(m[kept]) for m, kept in parts])

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
            mass=None if self.mass is None else self.per_image(self.mass)[image],
        )
