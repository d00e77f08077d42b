"""How glibc gives memory to a service, which has many threads and runs for months."""

from __future__ import annotations

import ctypes
import os
import sys

# From glibc's malloc.h, and the values that the service wants. Blocks of a usual image are smaller than what is mapped
# by itself: mapping each anew costs 4 to 10 % of an image's time.
_WANTED = {
    -8: 2,  # M_ARENA_MAX
    -3: 8 << 20,  # M_MMAP_THRESHOLD
    -1: 16 << 20,  # M_TRIM_THRESHOLD
}
_OPERATORS = ("MALLOC_ARENA_MAX", "MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_", "GLIBC_TUNABLES")


def share_arenas() -> bool:
    """Whether all threads now share two arenas of malloc, which give back what lies free at their end.

    glibc gives every new thread an arena of its own, up to eight for each core. Images are decoded, run and described
    in threads that come and go, so megabytes were taken now from one arena, now from another, and what was free in one
    did not serve the next: over 3,000 requests to two lanes the service grew by 20 %, with two arenas by 2 %. It also
    raises its thresholds to the largest block that was ever freed, so that one large upload makes every arena keep up
    to 64 MB; they are fixed here. OpenVINO itself is flat once it has kernels for all shapes.

    Must be called before there are threads. It leaves alone what the operator has set, and systems other than glibc.
    """
    if not sys.platform.startswith("linux") or any(name in os.environ for name in _OPERATORS):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):  # musl has one arena, and no such function
        return False
    return all(bool(mallopt(what, value)) for what, value in _WANTED.items())
