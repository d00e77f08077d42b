"""Timings of networks at operating points, interleaved in one process so that noise reaches all of them.

A pass starts from uint8 pixels at input size and ends with maps and scores; reading and resizing images is outside,
casting to float and moving to the device inside, for torch as for engines. In each repeat every batch goes through
every variant; a turn is one untimed pass and then a few timed ones, so that a variant finds caches and threads as it
leaves them itself, as where it runs alone.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch

from keepad.arrays import Array
from keepad.benchmark.flops import count_flops
from keepad.benchmark.memory import peak_memory_mb
from keepad.benchmark.schedule import schedule
from keepad.engines.network import EngineNetwork
from keepad.inference import NO_REFERENCES, Inference, References
from keepad.network import Network
from keepad.presets import OperatingPoint
from keepad.references.bank import Bank
from keepad.steps import Stages


@dataclass(frozen=True)
class Runner:
    """A network of torch or of an engine at an operating point, with references or without."""

    network: Network | EngineNetwork
    point: OperatingPoint
    bank: Bank | None = None

    @property
    def engine(self) -> str:
        """What runs the network: "torch", or an engine with its precision unless that is fp32."""
        if not isinstance(self.network, EngineNetwork):
            return "torch"
        engine, precision = self.network.info.engine, self.network.info.precision
        return engine if precision == "fp32" else f"{engine}:{precision}"

    def run(self, pixels: Array) -> list[Inference]:
        """Inferences of a batch, (B, H, W, 3) uint8."""
        return self.network.infer(pixels, [self.point], None, self._references)[self.point.name]

    @property
    def _references(self) -> References:
        return NO_REFERENCES if self.bank is None else {self.point.name: self.bank}

    def timed(self, pixels: Array) -> tuple[float, Stages, list[Inference]]:
        """Seconds of a pass, the same by stage, and its inferences."""
        stages = Stages(wait=self._synchronise())
        if stages.wait is not None:
            stages.wait()
        start = time.perf_counter()
        inferences = self.network.infer(pixels, [self.point], stages, self._references)[self.point.name]
        return time.perf_counter() - start, stages, inferences

    def _synchronise(self) -> Callable[[], None] | None:
        if isinstance(self.network, EngineNetwork) or self.network.device.type != "cuda":
            return None
        device = self.network.device
        return lambda: torch.cuda.synchronize(device)


@dataclass(frozen=True)
class Timing:
    """Measurements of one runner.

    Attributes:
        runner: The runner.
        ms: (repeats, batches) milliseconds per image.
        stages: (repeats, stages) the same by stage, mean over the batches.
        flops: Mean per image.
        keep_shallow: Mean share of patches after the shallow router.
        keep: Mean share after the deep router.
        keep_pixels: Mean share that entered block 1.
        peak_memory_mb: Peak memory of a pass over the first batch, or None.
    """

    runner: Runner
    ms: Array
    stages: Array
    flops: float
    keep_shallow: float
    keep: float
    keep_pixels: float
    peak_memory_mb: float | None

    @property
    def per_repeat(self) -> Array:
        """(repeats,) milliseconds per image."""
        means: Array = self.ms.mean(1)
        return means


def measure(
    runners: Sequence[Runner],
    batches: Sequence[Array],
    sizes: Network,
    *,
    warmup: int,
    repeats: int,
    memory: bool = True,
    advance: Callable[[], None] = lambda: None,
) -> list[Timing]:
    """Timings of the runners, in their order, from interleaved passes.

    Args:
        runners: What is timed.
        batches: (B, H, W, 3) uint8 inputs, all of one B.
        sizes: The network in torch, whose layers give the FLOPs.
        warmup: Untimed passes of each runner.
        repeats: Timed repeats.
        memory: Measure peak memory, too.
        advance: Called after every pass.
    """
    for turn in schedule(len(runners), warmup, 1):
        runners[turn.variant].run(batches[turn.repeat % len(batches)])
        advance()
    seconds = np.zeros((len(runners), repeats, len(batches)))
    stages = np.zeros((len(runners), repeats, len(Stages.NAMES)))
    costs: list[list[tuple[float, ...]]] = [[] for _ in runners]
    with _without_garbage_collection():
        for turn in schedule(len(runners), repeats, len(batches)):
            runner = runners[turn.variant]
            runner.run(batches[turn.batches[-1]])
            advance()
            for batch in turn.batches:
                seconds[turn.variant, turn.repeat, batch], marks, inferences = runner.timed(batches[batch])
                stages[turn.variant, turn.repeat] += [marks.seconds.get(stage, 0.0) for stage in Stages.NAMES]
                if turn.repeat == 0:  # later repeats keep the same tokens
                    costs[turn.variant] += [_costs(sizes, inference, runner.point) for inference in inferences]
                advance()
    to_ms = 1e3 / len(batches[0])
    timings = []
    for i, runner in enumerate(runners):
        flops, keep_shallow, keep, keep_pixels = (float(mean) for mean in np.mean(costs[i], axis=0))
        peak = peak_memory_mb(runner.network, batches[0], runner.point) if memory else None
        ms, stages_ms = seconds[i] * to_ms, stages[i] * to_ms / len(batches)
        timings.append(Timing(runner, ms, stages_ms, flops, keep_shallow, keep, keep_pixels, peak))
        advance()
    return timings


def _costs(sizes: Network, inference: Inference, point: OperatingPoint) -> tuple[float, ...]:
    """FLOPs of a pass, and the shares of patches after the shallow router, after the deep one, and before both."""
    patches = inference.patch_map.size
    embedded = patches if inference.pixel_routing is None else len(inference.pixel_routing.index)
    counts = (len(inference.survivors_shallow), len(inference.survivors), embedded)
    return count_flops(sizes, inference, point).total, *(count / patches for count in counts)


@contextmanager
def _without_garbage_collection() -> Iterator[None]:
    """A collection during a pass would count for the variant that happens to run."""
    enabled = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
