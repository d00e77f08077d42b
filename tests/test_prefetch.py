"""prefetch: results in order, computed a bounded number of items ahead."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from PIL import Image

from keepad.arrays import Array
from keepad.detector import Detector
from keepad.network import Network
from keepad.prefetch import prefetch


def test_prefetching_keeps_the_order_and_stays_bounded() -> None:
    started = []

    def negate(item: int) -> int:
        started.append(item)
        return -item

    results = []
    for result in prefetch(negate, iter(range(20)), 3):
        results.append(result)
        assert max(started) <= len(results) + 3
    assert results == [-item for item in range(20)]


def test_nothing_ahead_needs_no_thread() -> None:
    own = threading.get_ident()
    assert list(prefetch(lambda item: threading.get_ident(), range(3), 0)) == [own] * 3


def test_an_error_is_raised_in_order_and_no_thread_is_left() -> None:
    def fail_at_two(item: int) -> int:
        if item == 2:
            raise ValueError(item)
        return item

    before = threading.active_count()
    results = prefetch(fail_at_two, range(10), 3)
    assert [next(results), next(results)] == [0, 1]
    with pytest.raises(ValueError, match="2"):
        next(results)
    assert threading.active_count() == before


def test_predict_takes_one_item_at_a_time_from_a_generator(tiny: Network) -> None:
    taken: list[int] = []

    def camera() -> Iterator[Array]:
        for number in range(5):
            taken.append(number)
            yield np.zeros((20, 20, 3), dtype=np.uint8)

    for done, _ in enumerate(Detector(tiny).predict(camera())):
        assert len(taken) == done + 1


def test_predict_decodes_at_most_three_images_of_a_list_ahead(tiny: Network) -> None:
    decoded: set[int] = set()

    class Photo(Image.Image):
        def load(self) -> Any:
            decoded.add(id(self))
            return super().load()

    photos = [Image.new("RGB", (20, 20)) for _ in range(9)]
    for photo in photos:
        photo.__class__ = Photo
    predictions = iter(Detector(tiny).predict(photos))
    next(predictions)
    predictions.close()  # type: ignore[attr-defined]
    assert 1 <= len(decoded) <= 4
