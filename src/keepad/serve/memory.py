"""How glibc gives memory to a service, which has many threads and runs for months."""

from __future__ import annotations

import ctypes
import os
import sys

# From glibc's malloc.h.
_M_MMAP_THRESHOLD, _M_ARENA_MAX = -3, -8
_ARENAS = 2
_MAPPED_FROM = 2**20
_OPERATORS = ("MALLOC_ARENA_MAX", "MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES")


def limit_fragmentation() -> bool:
    """Whether memory is now given from few arenas, and large blocks go back to the system as soon as they are free.

    glibc gives every new thread an arena of its own, up to eight for each core, and raises the size from which a block
    is mapped by itself to whatever was freed last. Images are decoded, run and described in threads that come and go,
    so megabytes were taken now from one arena, now from another, and what was free in one did not serve the next. Over
    3,000 requests to two lanes that grew the service by 20 %; with both settings by 1.4 %; fewer arenas alone left half
    of the growth. OpenVINO itself is flat once it has kernels for all shapes, with or without its cache of primitives.

    Must be called before there are threads. It leaves alone what the operator has set, and systems other than glibc.
    """
    if not sys.platform.startswith("linux") or any(name in os.environ for name in _OPERATORS):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):  # musl has one arena, and no such function
        return False
    return bool(mallopt(_M_ARENA_MAX, _ARENAS)) and bool(mallopt(_M_MMAP_THRESHOLD, _MAPPED_FROM))
