"""Short interleaved timings behind decisions at run time: engine="auto", --budget-ms, choose. `keepad benchmark` keeps
the record."""

from __future__ import annotations

import hashlib
import json
import math
import os
import platform
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from keepad.arrays import Array
from keepad.console import Say
from keepad.errors import KeepADError
from keepad.files import cache_folder, replace_text
from keepad.images import spread, to_input
from keepad.presets import POINTS, OperatingPoint, operating_point
from keepad.version import __version__

if TYPE_CHECKING:
    from keepad.inference import AnyNetwork

BUDGET_POINTS = ("dense", "prune30", "prune50", "prune70")  # the most accurate first
_QUANTILE = 0.95
_IMAGES, _ROUNDS = 6, 5


def interleaved(
    runs: Mapping[str, Callable[[Array], object]], batches: Sequence[Array], rounds: int
) -> dict[str, Array]:
    """(rounds * batches,) milliseconds per image of each run, by name; they take turns, after one untimed pass each.

    Args:
        runs: What is timed, called with a batch.
        batches: (B, H, W, 3) uint8 inputs.
        rounds: Turns of each run, every one over all batches.
    """
    ms: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(rounds):
        for name, run in runs.items():
            run(batches[-1])
            for batch in batches:
                start = time.perf_counter()
                run(batch)
                ms[name].append(1e3 * (time.perf_counter() - start) / len(batch))
    return {name: np.array(values) for name, values in ms.items()}


def within_budget(network: AnyNetwork, budget_ms: float, say: Say) -> OperatingPoint:
    """The most accurate operating point that this network runs within the budget on this machine; one line says which.

    A budget is kept by 95 % of the passes, one image each, from pixels at input size to map and score. Times are
    measured once, in seconds, and kept in the user's cache by machine, threads, version and checkpoint. What the pixel
    router would save depends on the image, so it is left out of the times.

    Args:
        network: The network.
        budget_ms: Milliseconds per image.
        say: Called with the line.

    Raises:
        KeepADError: No point is that fast.
    """
    if not (math.isfinite(budget_ms) and budget_ms > 0):
        raise KeepADError(f"a budget is a number of milliseconds above 0, not {budget_ms:g}.")
    times = measured_times(network, say)
    for name in BUDGET_POINTS:
        if times[name] <= budget_ms:
            dense = "" if name == "dense" else f"; dense takes {times['dense']:.0f} ms"
            say(
                f"budget: {name} on {network.runs_on} takes {times[name]:.0f} ms on this machine (95th percentile)"
                f"{dense}"
            )
            return operating_point(name)
    fastest = min(times, key=lambda name: times[name])
    raise KeepADError(
        f"no operating point keeps {budget_ms:g} ms on this machine: the fastest, {fastest} on {network.runs_on}, "
        f"takes {times[fastest]:.0f} ms (95th percentile); allow more, or name a faster engine."
    )


def cpu_name() -> str:
    """The processor, as it calls itself."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor())


def measured_times(network: AnyNetwork, say: Say) -> dict[str, float]:
    """95th percentile of the milliseconds of each point of a budget, by name, as measured before or now."""
    points = [replace(POINTS[name], pixels=None) for name in BUDGET_POINTS]
    measured_for = {
        "machine": [cpu_name(), platform.node(), _threads()],
        "network": [network.runs_on, network.precision, network.digests(), list(network.image_size)],
        "versions": {name: version(name) for name in network.packages} | {"keepad": __version__},
        "points": [asdict(point) for point in points],
    }
    measured_for = json.loads(json.dumps(measured_for))
    key = hashlib.sha256(json.dumps(measured_for, sort_keys=True).encode()).hexdigest()[:16]
    file = cache_folder() / "latency" / f"{key}.json"
    try:
        known = json.loads(file.read_text(encoding="utf-8"))
        times = {name: float(known["ms"][name]) for name in BUDGET_POINTS}
        if known["for"] == measured_for and all(0 < ms < math.inf for ms in times.values()):
            return times
    except (OSError, ValueError, KeyError, TypeError):
        pass  # not measured yet
    from keepad.demo import demo_images  # drawing them takes a second

    say(f"timing {', '.join(BUDGET_POINTS)} on {network.runs_on}, once")
    batches = [to_input(demo.image, network.image_size)[None] for demo in spread(demo_images(), _IMAGES)]
    runs = {point.name: _run(network, point) for point in points}
    times = {
        name: float(np.quantile(ms, _QUANTILE, method="higher"))
        for name, ms in interleaved(runs, batches, _ROUNDS).items()
    }
    try:
        replace_text(file, json.dumps({"for": measured_for, "ms": times}, indent=1))
    except OSError as error:
        say(f"the times cannot be kept in {file.parent} ({error.strerror or error}) and will be measured again")
    return times


def _run(network: AnyNetwork, point: OperatingPoint) -> Callable[[Array], object]:
    return lambda batch: network.infer(batch, [point])


def _threads() -> list[object]:
    """What decides the number of threads: processors of this process, OMP_NUM_THREADS, torch's own number."""
    affinity = getattr(os, "sched_getaffinity", None)
    processors = os.cpu_count() if affinity is None else len(affinity(0))
    torch = sys.modules.get("torch")
    return [processors, os.environ.get("OMP_NUM_THREADS"), None if torch is None else torch.get_num_threads()]
