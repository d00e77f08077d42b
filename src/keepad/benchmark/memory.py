"""Peak memory of a pass besides weights and uint8 input: tensors for torch, growth of the process for engines."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from keepad.arrays import Array
from keepad.engines.network import EngineNetwork
from keepad.network import Network
from keepad.presets import OperatingPoint, PixelBudget

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # parameters of glibc's mallopt


def peak_memory_mb(network: Network | EngineNetwork, pixels: Array, point: OperatingPoint) -> float | None:
    """Megabytes that a pass over (B, H, W, 3) uint8 pixels holds at its peak, or None where that is not measurable."""
    if isinstance(network, EngineNetwork):
        return _peak_of_engine(network, pixels, point)
    device = network.device
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        network.infer(pixels, [point])
        return (torch.cuda.max_memory_allocated(device) - before) / 1e6
    return peak_of_tensors(lambda: network.infer(pixels, [point])) if device.type == "cpu" else None


def _peak_of_engine(network: EngineNetwork, pixels: Array, point: OperatingPoint) -> float | None:
    """Growth of the process in a pass.

    An engine keeps its buffers, so fresh sessions are measured; before that, images of one colour (few tokens) make
    them lay out their weights.
    """
    growth = None
    for _ in range(2):  # in the first round the engine compiles kernels that all of its sessions share
        fresh = network.reopened()
        fresh.infer(np.zeros_like(pixels), [replace(point, pixels=PixelBudget())])
        growth = _growth(lambda fresh=fresh: fresh.infer(pixels, [point]))  # type: ignore[misc]
    return growth


def peak_of_tensors(run: Callable[[], object]) -> float:
    """Megabytes of CPU tensors that `run` held at its peak, from torch's own list of allocations."""
    os.environ.setdefault("KINETO_LOG_LEVEL", "6")  # the profiler logs for its own developers
    cpu = torch.profiler.ProfilerActivity.CPU
    with torch.inference_mode(), torch.profiler.profile(activities=[cpu], profile_memory=True) as profile:
        run()
    profiler: Any = profile.profiler
    changes = [event for event in profiler.kineto_results.events() if event.name() == "[memory]"]
    sizes = [event.nbytes() for event in sorted(changes, key=lambda event: event.start_ns())]
    return float(np.cumsum([0, *sizes]).max()) / 1e6


def _growth(run: Callable[[], object]) -> float | None:
    """Megabytes by which `run` made the process grow at its peak; None outside Linux with glibc.

    The kernel keeps the peak resident size (VmHWM) and lets the process reset it, so no sampling is needed. Freed
    memory is returned first, else a pass that reuses it would seem to need none; and larger arrays get pages of their
    own for this pass, else a fragmented heap would seem to need more.
    """
    try:
        libc = ctypes.CDLL(None)
        libc.mallopt(_MMAP_THRESHOLD, 1 << 16)
        try:
            libc.malloc_trim(0)
            Path("/proc/self/clear_refs").write_text("5")
            resident = _status("VmRSS")
            run()
            return max(0, _status("VmHWM") - resident) * 1024 / 1e6
        finally:  # the upper end of glibc's dynamic thresholds
            libc.mallopt(_MMAP_THRESHOLD, 1 << 25)
            libc.mallopt(_TRIM_THRESHOLD, 1 << 26)
    except (OSError, AttributeError, TypeError):  # no /proc, no permission to reset, or another C library
        return None


def _status(field: str) -> int:
    """Kilobytes in a field of /proc/self/status."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{field}:"))
