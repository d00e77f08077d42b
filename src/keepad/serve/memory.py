"""How glibc gives memory to a process with many threads that runs for months."""

from __future__ import annotations

import ctypes
import sys

# From glibc's malloc.h.
_M_MMAP_THRESHOLD, _M_ARENA_MAX = -3, -8
_ARENAS = 2
_MAPPED_FROM = 2**20


def limit_fragmentation() -> bool:
    """Whether memory is now given from few arenas, and large blocks go back to the system as soon as they are free.

    glibc gives every new thread an arena of its own, up to eight for each core, and raises the size from which a block
    is mapped by itself to whatever was freed last. Images are decoded, run and described in threads that come and go,
    so megabytes were taken now from one arena, now from another, and what was free in one did not serve the next:
    +20 % over 3,000 requests, where it is +1 % with these two settings, and half of either alone (see
    `benchmarks/serve.py`). Must be called before there are threads. Elsewhere than on glibc it does nothing.
    """
    if not sys.platform.startswith("linux"):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):  # musl has one arena, and no such function
        return False
    return bool(mallopt(_M_ARENA_MAX, _ARENAS)) and bool(mallopt(_M_MMAP_THRESHOLD, _MAPPED_FROM))
