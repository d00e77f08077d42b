"""Recovery: every grid position takes the response of an owner among the survivors. Features are never copied."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import Tensor

from keepad.errors import KeepADError

RECOVERIES = ("same_block_first", "nearest", "zero", "graded")
_EDGE = 1e-4  # responses are kept so far from 0 and 1 that their logits stay finite


@dataclass(frozen=True)
class Known:
    """What the routers knew of one image's tokens when they dropped some.

    Attributes:
        scores: (N,) scores of the shallow router, standardised; None where it did not run.
        live: (n,) grid indices of the tokens that entered the deep router, ascending.
        risk: (n,) their risks, standardised; None where the deep router did not run.
    """

    scores: Tensor | None
    live: Tensor
    risk: Tensor | None


def owners_of(survivors: Tensor, grid: tuple[int, int], *, block: int | None = 2) -> Tensor:
    """Position within `survivors` of the owner of each grid cell, (rows * columns,).

    A survivor owns itself. Any other cell belongs to the nearest survivor of its own block (unless `block` is None),
    else to the nearest survivor anywhere; Euclidean on the grid, ties to the lower grid index.

    Args:
        survivors: (k,) grid indices, ascending, at least one.
        grid: Rows and columns.
        block: Side of the blocks.
    """
    cells = grid[0] * grid[1]
    place = torch.full((cells + 1,), -1, dtype=torch.long, device=survivors.device)  # the last one stands for "outside"
    place[survivors] = torch.arange(len(survivors), device=survivors.device)
    if block is None:
        owner = place[:cells].clone()
    else:
        mates = place[_block_mates(grid, block, survivors.device)]  # (cells, block * block), nearest mate first
        first = (mates >= 0).to(torch.uint8).argmax(1, keepdim=True)
        owner = mates.gather(1, first).squeeze(1)
    orphans = (owner < 0).nonzero().squeeze(1)
    if len(orphans):
        owner[orphans] = _nearest(orphans, survivors, grid)
    return owner


def _nearest(cells: Tensor, survivors: Tensor, grid: tuple[int, int]) -> Tensor:
    """Position of the nearest survivor of each cell: along every row first, then over the rows.

    That is cells * rows candidates instead of cells * survivors. Distance and grid index share one integer, which
    settles ties.
    """
    rows, columns = grid
    device = survivors.device
    far = rows + columns  # a row without survivors lies farther away than any real one
    row, column = torch.arange(rows, device=device), torch.arange(columns, device=device)
    alive = torch.zeros(rows * columns, dtype=torch.bool, device=device)
    alive[survivors] = True
    alive = alive.view(grid)
    left = torch.where(alive, column, -far).cummax(1).values
    right = torch.where(alive, column, columns + far).flip(1).cummin(1).values.flip(1)
    closest = torch.where(column - left <= right - column, left, right)  # in each row, from each column

    picked = closest[:, cells % columns].T  # (cells, rows)
    across = picked - (cells % columns)[:, None]
    down = row - (cells // columns)[:, None]
    index = row * columns + picked.clamp(0, columns - 1)
    code = (across.square() + down.square()) * (rows * columns) + index
    place = torch.empty(rows * columns, dtype=torch.long, device=device)
    place[survivors] = torch.arange(len(survivors), device=device)
    return place[code.amin(1) % (rows * columns)]


@lru_cache(maxsize=32)
def _block_mates(grid: tuple[int, int], block: int, device: torch.device) -> Tensor:
    """Cells of the block of each cell, (cells, block * block), nearest first, ties to the lower index."""
    rows, columns = grid
    cell = torch.arange(rows * columns, device=device)
    row, column = cell // columns, cell % columns
    step = torch.arange(block, device=device)
    mate_row = (row // block * block)[:, None, None] + step[:, None]
    mate_column = (column // block * block)[:, None, None] + step[None]
    distance = (mate_row - row[:, None, None]).square() + (mate_column - column[:, None, None]).square()
    mate = mate_row * columns + mate_column
    outside = (mate_row >= rows) | (mate_column >= columns)
    mate = mate.masked_fill(outside, rows * columns).flatten(1)  # that number stands for outside
    key = distance.masked_fill(outside, 2 * block * block).flatten(1) * (rows * columns + 1) + mate
    return mate.gather(1, key.argsort(1))


def recover(
    responses: Tensor,
    survivors: Tensor,
    grid: tuple[int, int],
    *,
    mode: str,
    block: int = 2,
    known: Known | None = None,
    grades: tuple[float, float] = (0.0, 0.0),
) -> Tensor:
    """Responses on the whole grid, (rows, columns), from those of the survivors, (k,).

    Args:
        responses: (k,) responses of the survivors.
        survivors: (k,) their grid indices, ascending.
        grid: Rows and columns.
        mode: One of RECOVERIES; "graded" is "nearest" where nothing is known of the tokens that went.
        block: Side of the blocks of "same_block_first".
        known: What the routers knew, for "graded".
        grades: How much a deviation of the shallow score, and of the risk, moves a copied response, in logits.
    """
    if mode not in RECOVERIES:
        raise KeepADError(f"there is no recovery called {mode!r}; choose one of {', '.join(RECOVERIES)}.")
    if len(survivors) == grid[0] * grid[1]:
        return responses.view(grid)
    if mode == "zero":
        return responses.new_zeros(grid[0] * grid[1]).scatter(0, survivors, responses).view(grid)
    if mode == "graded" and known is not None:
        return _graded(responses, survivors, grid, known, grades).view(grid)
    return responses[owners_of(survivors, grid, block=block if mode == "same_block_first" else None)].view(grid)


def _graded(
    responses: Tensor, survivors: Tensor, grid: tuple[int, int], known: Known, grades: tuple[float, float]
) -> Tensor:
    """(N,) responses of the nearest survivors, moved by how much less suspicious a token was than its owner.

    A copy alone paints a defect over all that was dropped around it, although the routers dropped it because it looked
    unlike that defect. Survivors keep their own responses.
    """
    shallow_grade, deep_grade = grades
    logit = torch.logit(responses.clamp(_EDGE, 1 - _EDGE))
    values = logit
    if len(survivors) < len(known.live):
        owner = owners_of(survivors, grid, block=None)[known.live]
        values = logit[owner]
        if known.risk is not None:
            place = torch.searchsorted(known.live, survivors)
            values = values + deep_grade * (known.risk - known.risk[place][owner])
    owner = owners_of(known.live, grid, block=None)
    values = values[owner]
    if known.scores is not None:
        values = values + shallow_grade * (known.scores - known.scores[known.live][owner])
    return torch.sigmoid(values)


def upsample(maps: Tensor, size: tuple[int, int], *, smoothing: float = 0.0) -> Tensor:
    """Patch maps (B, rows, columns) at pixel size (B, H, W), bilinear.

    Args:
        maps: Responses.
        size: Height and width.
        smoothing: Sigma of a Gaussian in patches, applied before: on the small map it costs nothing.
    """
    patches = smooth(maps[:, None], smoothing) if smoothing > 0 else maps[:, None]
    pixels = F.interpolate(patches, size=size, mode="bilinear", align_corners=False)
    return pixels.squeeze(1).clamp(0, 1)  # interpolation may pass 1 by a rounding error


def smooth(pixels: Tensor, sigma: float) -> Tensor:
    """Separable Gaussian on (B, 1, rows, columns), cut at four sigma, edges repeated."""
    radius = max(1, int(4 * sigma + 0.5))
    offset = torch.arange(-radius, radius + 1, dtype=pixels.dtype, device=pixels.device)
    kernel = torch.exp(-0.5 * (offset / sigma).square())
    kernel = kernel / kernel.sum()
    pixels = F.conv2d(F.pad(pixels, (radius, radius, 0, 0), mode="replicate"), kernel.view(1, 1, 1, -1))
    return F.conv2d(F.pad(pixels, (0, 0, radius, radius), mode="replicate"), kernel.view(1, 1, -1, 1))
