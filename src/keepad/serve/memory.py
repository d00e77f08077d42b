"""How glibc gives memory to a service, which has many threads and runs for months."""

from __future__ import annotations

import ctypes
import os
import sys

_M_ARENA_MAX = -8  # from glibc's malloc.h
_ARENAS = 2
_OPERATORS = ("MALLOC_ARENA_MAX", "GLIBC_TUNABLES")


def share_arenas() -> bool:
    """Whether all threads now share two arenas of malloc.

    glibc gives every new thread an arena of its own, up to eight for each core. Images are decoded, run and described
    in threads that come and go, so megabytes were taken now from one arena, now from another, and what was free in one
    did not serve the next: over 3,000 requests to two lanes the service grew by 20 %. A fixed M_MMAP_THRESHOLD of 1 MB
    keeps it flatter still, but maps the buffers of every image anew, which costs 4 to 6 % of its time. OpenVINO itself
    is flat once it has kernels for all shapes, with or without its cache of primitives.

    Must be called before there are threads. It leaves alone what the operator has set, and systems other than glibc.
    """
    if not sys.platform.startswith("linux") or any(name in os.environ for name in _OPERATORS):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):  # musl has one arena, and no such function
        return False
    return bool(mallopt(_M_ARENA_MAX, _ARENAS))
