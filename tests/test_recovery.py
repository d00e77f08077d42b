"""Owners against a brute-force search, and the three modes."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from keepad.errors import KeepADError
from keepad.recovery import owners_of, recover, upsample


def brute_owner(cell: int, survivors: list[int], columns: int, block: int | None) -> int:
    def distance(other: int) -> tuple[int, int]:
        return (other // columns - cell // columns) ** 2 + (other % columns - cell % columns) ** 2, other

    def block_of(place: int) -> tuple[int, int]:
        assert block
        return place // columns // block, place % columns // block

    mates = [s for s in survivors if block and block_of(s) == block_of(cell)]
    return min(mates or survivors, key=distance)


@settings(deadline=None, max_examples=150)
@given(st.integers(1, 13), st.integers(1, 13), st.data(), st.sampled_from([None, 2, 3]))
def test_owner_is_the_nearest_survivor(rows: int, columns: int, data: st.DataObject, block: int | None) -> None:
    survivors = sorted(data.draw(st.sets(st.integers(0, rows * columns - 1), min_size=1)))
    owner = owners_of(torch.tensor(survivors), (rows, columns), block=block)
    found = [survivors[position] for position in owner.tolist()]
    assert found == [brute_owner(cell, survivors, columns, block) for cell in range(rows * columns)]


def test_same_block_first_differs_from_nearest_where_it_should() -> None:
    # The cell at row 1, column 1 has a survivor of its own block at distance sqrt(2), a foreign one at distance 1.
    survivors, responses = torch.tensor([0, 6]), torch.tensor([0.1, 0.9])
    same = recover(responses, survivors, (4, 4), mode="same_block_first")
    nearest = recover(responses, survivors, (4, 4), mode="nearest")
    assert same[1, 1] == pytest.approx(0.1)
    assert nearest[1, 1] == pytest.approx(0.9)
    zero = recover(responses, survivors, (4, 4), mode="zero")
    assert zero.flatten().nonzero().flatten().tolist() == [0, 6]


def test_a_full_grid_is_returned_as_it_is() -> None:
    responses = torch.rand(12)
    for mode in ("same_block_first", "nearest", "zero"):
        assert torch.equal(recover(responses, torch.arange(12), (3, 4), mode=mode), responses.view(3, 4))


def test_an_unknown_mode_is_refused() -> None:
    with pytest.raises(KeepADError, match="same_block_first, nearest, zero"):
        recover(torch.rand(1), torch.tensor([0]), (2, 2), mode="linear")


def test_upsampling_keeps_constants_and_smoothing_spreads() -> None:
    flat = upsample(torch.full((1, 3, 5), 0.4), (42, 70))
    torch.testing.assert_close(flat, torch.full((1, 42, 70), 0.4))
    torch.testing.assert_close(upsample(torch.full((1, 3, 5), 0.4), (42, 70), smoothing=4), flat)
    spike = torch.zeros(1, 5, 5)
    spike[0, 2, 2] = 1
    assert upsample(spike, (70, 70), smoothing=8).max() < upsample(spike, (70, 70)).max()
