"""Live tokens: features together with where they came from on the original patch grid.

A batch is packed: image after image, each as its prefix tokens (CLS, registers) followed by its live patches. Images
may keep different numbers of patches, and no row is ever padding.

Cells of the grid that the pixels prove alike share a token: it is computed once, and everything that is said of tokens
is said of each of the cells, as if there were one for each.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor


@dataclass(frozen=True)
class Shares:
    """Which cells of the grid the live tokens of one image answer for, where several cells may share one.

    Attributes:
        cells: (m,) grid indices of the live cells, ascending.
        place: (m,) position of each cell's token among the image's live tokens.
        mass: (n,) cells that share each token.
    """

    cells: Tensor
    place: Tensor
    mass: Tensor

    @property
    def one_each(self) -> bool:
        """Whether no two live cells share a token. Their order may differ: a token lies where it was cut."""
        return len(self.cells) == len(self.mass)

    def keep(self, kept: Tensor) -> tuple[Shares, Tensor]:
        """What is left when only the cells at `kept` stay, and the positions of the tokens that they need."""
        place = self.place[kept]
        needed = torch.zeros(len(self.mass), dtype=torch.bool, device=place.device)
        needed[place] = True
        place, needed = (needed.cumsum(0) - 1)[place], needed.nonzero().squeeze(1)
        mass = self.mass.new_zeros(len(needed)).index_add_(0, place, self.mass.new_ones(len(place)))
        return Shares(self.cells[kept], place, mass), needed


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
        shares: For each image, which cells share its tokens, or None where every cell has its own; empty if all have.
    """

    x: Tensor
    index: Tensor
    counts: tuple[int, ...]
    grid: tuple[int, int]
    prefix: int
    rope: Tensor | None = None
    shares: tuple[Shares | None, ...] = ()

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
    def shared(self) -> bool:
        """Whether cells and tokens differ in any image."""
        return any(one is not None for one in self.shares)

    @property
    def mass(self) -> Tensor | None:
        """(P,) cells that each live patch answers for, or None if one each; attention counts a patch so often."""
        if all(one is None or one.one_each for one in self.shares):
            return None
        parts = zip(self.shares, self.counts, strict=True)
        return torch.cat([self.x.new_ones(count) if one is None else one.mass for one, count in parts])

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
            mass = [None] * self.images if self.mass is None else self.per_image(self.mass)
            parts = zip(x.split(list(self.counts)), mass, strict=True)
            return torch.stack([part.mean(0) if one is None else one @ part / one.sum() for part, one in parts])
        return x[self.prefix_rows()[:, 0]]

    def per_image(self, values: Tensor) -> tuple[Tensor, ...]:
        """One slice an image of a tensor that has one row a live patch."""
        return values.split(list(self.counts))

    def cells(self) -> tuple[Tensor, ...]:
        """(m,) grid indices of the live cells of each image, ascending: its live patches, unless cells share them."""
        if not self.shared:
            return self.per_image(self.index)
        own = zip(self.shares, self.per_image(self.index), strict=True)
        return tuple(index if one is None else one.cells for one, index in own)

    def on_cells(self, values: Tensor) -> Tensor:
        """(M, ...) values of the live cells of all images, from those of their tokens, (P, ...)."""
        if not self.shared:
            return values
        own = zip(self.shares, self.per_image(values), strict=True)
        return torch.cat([part if one is None else part[one.place] for one, part in own])

    def per_image_cells(self, values: Tensor) -> tuple[Tensor, ...]:
        """One slice an image of a tensor that has one row a live cell."""
        return values.split([len(cells) for cells in self.cells()])

    def gather(self, keep: Sequence[Tensor]) -> Tokens:
        """What the cells at `keep[b]` need, positions among the live cells of image b."""
        if not self.shared:
            return self._gathered(keep, ())
        needed, shares = [], []
        for one, kept in zip(self.shares, keep, strict=True):
            left, tokens = (None, kept) if one is None else one.keep(kept)
            shares.append(left)
            needed.append(tokens)
        return self._gathered(needed, tuple(shares))

    def _gathered(self, keep: Sequence[Tensor], shares: tuple[Shares | None, ...]) -> Tokens:
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
            shares=shares,
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
            shares=self.shares[image : image + 1],
        )
