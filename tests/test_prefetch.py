"""Work that runs ahead."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import numpy as np
import pytest

from keepad.network import KeepAD
from keepad.prefetch import prefetch


def test_reading_ahead_keeps_the_order_and_stays_bounded():
    started = []

    def slow(item: int) -> int:
        started.append(item)
        return -item

    taken = []
    for result in prefetch(slow, iter(range(20)), 3):
        taken.append(result)
        assert max(started) <= len(taken) + 3
    assert taken == [-item for item in range(20)]


def test_an_error_comes_out_in_its_turn_and_nothing_is_left_running():
    def picky(item: int) -> int:
        if item == 2:
            raise ValueError(item)
        return item

    before = threading.active_count()
    results = prefetch(picky, range(10), 3)
    assert [next(results), next(results)] == [0, 1]
    with pytest.raises(ValueError, match="2"):
        next(results)
    assert threading.active_count() == before


def test_predict_reads_a_list_ahead_but_never_holds_a_generator_back(tiny: KeepAD, monkeypatch: pytest.MonkeyPatch):
    image = np.zeros((20, 20, 3), dtype=np.uint8)
    given: list[int] = []

    def camera() -> Iterator[np.ndarray]:
        for number in range(5):
            given.append(number)
            yield image

    for done, _ in enumerate(tiny.predict(camera())):
        assert len(given) == done + 1

    read: list[int] = []
    original = type(tiny)._read
    monkeypatch.setattr(tiny, "_read", lambda source: read.append(1) or original(tiny, source))
    predictions = tiny.predict([image] * 9)
    next(predictions)
    predictions.close()
    assert 1 <= len(read) <= 4  # the first one and at most three ahead
