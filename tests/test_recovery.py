"""Owners against a brute-force search, and the modes."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from keepad.errors import KeepADError
from keepad.recovery import Known, owners_of, recover, upsample


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


def _known(risk: list[float], live: list[int], scores: list[float]) -> Known:
    return Known(torch.tensor(scores), torch.tensor(live), torch.tensor(risk))


def test_graded_responses_move_by_what_the_routers_knew() -> None:
    # A row of six: 0, 2 and 4 entered the deep router, only 0 left it; 1, 3 and 5 went in the shallow one.
    known = _known([1.0, -1.0, 0.5], [0, 2, 4], [0.0, 0.4, 1.0, 1.0, 0.0, -2.0])
    response = torch.tensor([0.8])
    found = recover(response, torch.tensor([0]), (1, 6), mode="graded", known=known, grades=(0.5, 1.5)).flatten()
    own = math.log(0.8 / 0.2)
    second, fourth = own + 1.5 * (-1.0 - 1.0), own + 1.5 * (0.5 - 1.0)  # dropped by the deep router
    logits = [own, own + 0.5 * 0.4, second, second + 0.5 * 0.0, fourth, fourth + 0.5 * -2.0]
    torch.testing.assert_close(found, torch.sigmoid(torch.tensor(logits)))


def test_graded_without_grades_or_knowledge_is_nearest() -> None:
    survivors, responses = torch.tensor([1, 10]), torch.tensor([0.3, 0.9])
    nearest = recover(responses, survivors, (3, 4), mode="nearest")
    assert torch.equal(recover(responses, survivors, (3, 4), mode="graded"), nearest)
    known = Known(torch.randn(12), torch.tensor([1, 5, 10]), torch.randn(3))
    found = recover(responses, survivors, (3, 4), mode="graded", known=known)
    live = nearest.flatten()[[1, 5, 10]]
    owner = owners_of(torch.tensor([1, 5, 10]), (3, 4), block=None)
    torch.testing.assert_close(found.flatten(), live[owner])


@settings(deadline=None, max_examples=60)
@given(st.integers(1, 8), st.integers(1, 8), st.data())
def test_survivors_keep_their_own_response(rows: int, columns: int, data: st.DataObject) -> None:
    live = sorted(data.draw(st.sets(st.integers(0, rows * columns - 1), min_size=1)))
    survivors = sorted(data.draw(st.sets(st.sampled_from(live), min_size=1)))
    generator = torch.Generator().manual_seed(len(live))
    responses = torch.rand(len(survivors), generator=generator) * 0.9 + 0.05
    known = Known(torch.randn(rows * columns, generator=generator), torch.tensor(live), torch.randn(len(live)))
    found = recover(responses, torch.tensor(survivors), (rows, columns), mode="graded", known=known, grades=(0.5, 1.5))
    torch.testing.assert_close(found.flatten()[survivors], responses)
