"""Order of the timed passes."""

from __future__ import annotations

from collections import Counter

import pytest

from keepad.benchmark.schedule import TURN, Turn, schedule


def test_variants_alternate_and_the_first_one_rotates() -> None:
    assert schedule(3, 2, 1) == [
        *(Turn(0, (0,), 0), Turn(0, (0,), 1), Turn(0, (0,), 2)),
        *(Turn(1, (0,), 1), Turn(1, (0,), 2), Turn(1, (0,), 0)),
    ]


def test_a_turn_is_a_few_batches_in_a_row() -> None:
    assert schedule(2, 1, TURN + 1) == [
        *(Turn(0, tuple(range(TURN)), 0), Turn(0, tuple(range(TURN)), 1)),
        *(Turn(0, (TURN,), 1), Turn(0, (TURN,), 0)),
    ]


def test_rotation_continues_over_turns_and_repeats() -> None:
    turns = schedule(4, 5, 3 * TURN)
    first = [turn.variant for turn in turns[::4]]
    assert first == [i % 4 for i in range(15)]


@pytest.mark.parametrize(("variants", "repeats", "batches"), [(1, 1, 1), (4, 5, 8), (2, 3, 2)])
def test_each_repeat_has_each_batch_once_per_variant(variants: int, repeats: int, batches: int) -> None:
    turns = schedule(variants, repeats, batches)
    passes = Counter((turn.repeat, batch, turn.variant) for turn in turns for batch in turn.batches)
    assert set(passes.values()) == {1}
    assert len(passes) == variants * repeats * batches
