"""Prefetching: results computed in the background before they are needed."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")
U = TypeVar("U")


def prefetch(function: Callable[[T], U], items: Iterable[T], depth: int) -> Generator[U, None, None]:
    """Results of `function` in order, computed in a background thread up to `depth` items ahead; in this one for 0."""
    if not depth:  # a thread for nothing would be started and waited for, at every image of a service
        for item in items:
            yield function(item)
        return
    waiting: deque[Future[U]] = deque()
    with ThreadPoolExecutor(1) as pool:
        try:
            for item in items:
                waiting.append(pool.submit(function, item))
                if len(waiting) > depth:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            for future in waiting:
                future.cancel()
