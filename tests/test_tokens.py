"""Packed tokens: rows, prefix, gathering and merging, on sequences small enough to write out."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from keepad.tokens import Merge, Tokens


def tokens(counts: tuple[int, ...] = (3, 2), prefix: int = 1) -> Tokens:
    """Features that name their image and grid index: 100 * image + index, and -image - 1 for prefix tokens."""
    rows: list[int] = []
    index: list[int] = []
    for image, count in enumerate(counts):
        cells = [2 * number + 1 for number in range(count)]
        rows += [-image - 1] * prefix + [100 * image + cell for cell in cells]
        index += cells
    return Tokens(torch.tensor(rows).float()[:, None], torch.tensor(index), counts, (3, 4), prefix)


def test_rows_of_prefix_and_patches() -> None:
    packed = tokens()
    assert packed.lengths == (4, 3)
    assert packed.prefix_rows().tolist() == [[0], [4]]
    assert packed.patch_rows().tolist() == [1, 2, 3, 5, 6]
    assert packed.patches().flatten().tolist() == [1, 3, 5, 101, 103]
    assert packed.cls().flatten().tolist() == [-1, -2]
    assert [part.tolist() for part in packed.indices()] == [[1, 3, 5], [1, 3]]


@pytest.mark.parametrize("counts", [(4,), (3, 3), (3, 2)])
def test_patches_of_uniform_and_ragged_batches(counts: tuple[int, ...]) -> None:
    packed = tokens(counts, prefix=2)
    assert packed.uniform == (len(set(counts)) == 1)
    expected = [100 * image + 2 * number + 1 for image, count in enumerate(counts) for number in range(count)]
    assert packed.patches().flatten().tolist() == expected
    spread = packed.spread(torch.arange(len(expected)).float(), prefix=-7)
    assert spread[packed.patch_rows()].tolist() == list(range(len(expected)))
    assert (spread[packed.prefix_rows()] == -7).all()


@pytest.mark.parametrize("kind", [np.array, torch.tensor])
def test_gather_keeps_prefix_positions_and_entry(kind) -> None:
    packed = Tokens(**{**vars(tokens()), "entry": torch.tensor([0.1, 0.3, 0.5, 0.7, 0.9])})
    kept = packed.gather([kind([0, 2]), kind([1])])
    assert kept.x.flatten().tolist() == [-1, 1, 5, -2, 103]
    assert [part.tolist() for part in kept.indices()] == [[1, 5], [3]]
    assert kept.counts == (2, 1)
    assert kept.entry is not None
    torch.testing.assert_close(kept.entry, torch.tensor([0.1, 0.5, 0.9]))
    assert kept.select(1).x.flatten().tolist() == [-2, 103]
    assert kept.select(1).entry == pytest.approx(0.9)


def test_without_a_prefix_cls_is_the_mean_weighted_by_size() -> None:
    packed = tokens((2,), prefix=0)
    assert packed.cls().item() == pytest.approx(2.0)
    merge = Merge(torch.arange(4), torch.tensor([0, 1, 1, 1]), torch.tensor([1.0, 3.0]))
    merged = Tokens(**{**vars(packed), "merges": (merge,)})
    assert merged.cls().item() == pytest.approx((1 + 3 * 3) / 4)


def test_cells_share_tokens_until_one_of_them_is_left() -> None:
    merge = Merge(torch.tensor([1, 2, 3, 5]), torch.tensor([0, 0, 1, 2]), torch.tensor([2.0, 1.0, 1.0]))
    packed = Tokens(**{**vars(tokens((3,))), "merges": (merge,)})
    assert packed.merged
    assert packed.size is not None
    assert packed.size.tolist() == [2, 1, 1]
    assert packed.per_cell(packed.patches()).flatten().tolist() == [1, 1, 3, 5]
    kept = packed.gather([np.array([1, 3])])
    assert kept.cells()[0].tolist() == [2, 5]
    assert kept.patches().flatten().tolist() == [1, 5]
    assert kept.size is None, "one cell per token again"
