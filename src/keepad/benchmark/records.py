"""Records of a plan: every variant against dense in torch, for each backbone, dtype, number of threads and batch."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from keepad.assembly import choose_device, untrained
from keepad.benchmark.matching import matched
from keepad.benchmark.plan import BenchmarkPlan, TimedImages
from keepad.benchmark.timing import Runner, Timing, measure
from keepad.checkpoint import bundled_checkpoints, read_info
from keepad.console import Say, say_on_stderr
from keepad.engines.export import exported
from keepad.engines.network import EngineNetwork, open_network
from keepad.errors import KeepADError
from keepad.images import to_input
from keepad.loading import load_network, parse_engine, set_input
from keepad.network import Network
from keepad.steps import Stages


@dataclass(frozen=True)
class Record:
    """Measurements of one variant in one setting; times are per image.

    Attributes:
        backbone: Name of the backbone.
        weights: "pretrained", or "random" where no checkpoint comes with the package.
        engine: What ran the network, with its precision unless that is fp32 or torch's own.
        dtype: Precision of torch's weights and features.
        batch: Images per pass.
        threads: CPU threads.
        point: Operating point.
        median_ms: Median over the repeats.
        iqr_ms: Interquartile range over the repeats.
        ratio_to_dense: Median of dense in torch over this median; above 1 is faster.
        ratio_per_round: Median of the same ratio taken within each repeat.
        flops: Mean per image, counted from the tokens that ran.
        flops_ratio: Dense FLOPs over these.
        realised: Share of the counted saving that became time, ratio_to_dense / flops_ratio.
        peak_memory_mb: Peak memory of a pass besides weights and input, or None where that is not measurable.
        stages: Milliseconds of each stage.
        keep_shallow: Mean share of patches alive after the shallow router.
        keep: Mean share alive after the deep router.
        keep_pixels: Mean share of patches that entered block 1.
    """

    backbone: str
    weights: str
    engine: str
    dtype: str
    batch: int
    threads: int
    point: str
    median_ms: float
    iqr_ms: float
    ratio_to_dense: float
    ratio_per_round: float
    flops: float
    flops_ratio: float
    realised: float
    peak_memory_mb: float | None
    stages: dict[str, float]
    keep_shallow: float
    keep: float
    keep_pixels: float


def time_plan(
    plan: BenchmarkPlan,
    images: TimedImages,
    *,
    say: Say = say_on_stderr,
    advance: Callable[[], None] = lambda: None,
) -> Iterator[list[Record]]:
    """Records of all variants, one list per setting.

    Args:
        plan: What to time.
        images: The images to time it on.
        say: Called with one line per step of loading and exporting.
        advance: Called after every pass.
    """
    device = choose_device(plan.device)
    for dtype in plan.dtypes:
        _require_dtype(dtype, device)
    for name in (plan.model,) if plan.model else plan.backbones:
        if plan.model or _has_checkpoint(name):
            network, weights = load_network(name, device=device, say=say), "pretrained"
        else:
            say(f"{name}: no checkpoint comes with the package; random weights are timed, and budgets may differ")
            network, weights = untrained(name).to(device), "random"
        if plan.image_size is not None:
            set_input(network, plan.image_size, say)
        yield from time_network(network, plan, images, weights=weights, say=say, advance=advance)


def _has_checkpoint(backbone: str) -> bool:
    return any(read_info(path).backbone == backbone for path in bundled_checkpoints().values())


def time_network(
    network: Network,
    plan: BenchmarkPlan,
    images: TimedImages,
    *,
    weights: str,
    say: Say = say_on_stderr,
    advance: Callable[[], None] = lambda: None,
) -> Iterator[list[Record]]:
    """Records of one network and its exports, one list for each dtype, number of threads and batch size.

    Args:
        network: The network in torch; engines run its exports, made in the user's cache where they are missing.
        plan: What to time.
        images: The images to time it on; int8 takes its scales from them.
        weights: "pretrained" or "random".
        say: Called with one line per step of exporting.
        advance: Called after every pass.

    Raises:
        KeepADError: The device has no bfloat16, or a folder was exported from another checkpoint.
    """
    for dtype in plan.dtypes:
        _require_dtype(dtype, network.device)
        cast = _in_dtype(network, getattr(torch, dtype))
        inputs = [to_input(image, network.image_size) for image in images.images]
        points = dict(zip(plan.operating_points(), matched(network, plan.operating_points(), inputs), strict=True))
        for threads in plan.threads or (torch.get_num_threads(),):
            engines = _open_engines(network, plan, images, threads, say)
            for batch in plan.batches:
                runners = [Runner(engines.get(name, cast), points[point]) for name, point in plan.variants()]
                batches = images.batches(network.image_size, batch)
                with _using_threads(threads):
                    protocol: dict[str, Any] = {"warmup": plan.warmup, "repeats": plan.repeats, "advance": advance}
                    protocol["memory"] = plan.memory
                    timings = measure(runners, batches, network, **protocol)
                setting = {"weights": weights, "dtype": dtype, "batch": batch, "threads": threads}
                yield [_record(network.backbone_name, timing, timings[0], setting) for timing in timings]


def _in_dtype(network: Network, dtype: torch.dtype) -> Network:
    return network if next(network.parameters()).dtype == dtype else copy.deepcopy(network).to(dtype)


def _open_engines(
    network: Network, plan: BenchmarkPlan, images: TimedImages, threads: int, say: Say
) -> dict[str | Path, EngineNetwork]:
    """The exports of a plan, opened, by engine name or folder."""
    opened: dict[str | Path, EngineNetwork] = {}
    for folder in plan.exported:
        opened[folder] = open_network(folder, threads=threads)
        if opened[folder].info.digests != network.digests():
            raise KeepADError(f"{folder} was exported from another checkpoint than {network.name}; name its own.")
    for name in (name for name in plan.engines if name != "torch"):
        folder = exported(network, *parse_engine(name), say=say, images=images.images)
        opened[name] = open_network(folder, threads=threads)
    return opened


def _require_dtype(dtype: str, device: torch.device) -> None:
    if dtype == "bfloat16" and not has_bfloat16(device):
        raise KeepADError(
            f"this {device.type} has no instructions for bfloat16, so its time would mean nothing; use float32."
        )


def has_bfloat16(device: torch.device) -> bool:
    """Whether the device computes in bfloat16; torch emulates it on every other CPU."""
    if device.type == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    supported = getattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", None)
    return device.type == "cpu" and supported is not None and bool(supported())


@contextmanager
def _using_threads(threads: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _record(backbone: str, timing: Timing, dense: Timing, setting: dict[str, Any]) -> Record:
    ms, dense_ms = timing.per_repeat, dense.per_repeat
    median, ratio = float(np.median(ms)), float(np.median(dense_ms) / np.median(ms))
    flops_ratio = dense.flops / timing.flops
    first_quartile, third_quartile = np.percentile(ms, (25, 75))
    return Record(
        backbone=backbone,
        engine=timing.runner.engine,
        point=timing.runner.point.name,
        median_ms=median,
        iqr_ms=float(third_quartile - first_quartile),
        ratio_to_dense=ratio,
        ratio_per_round=float(np.median(dense_ms / ms)),
        flops=timing.flops,
        flops_ratio=flops_ratio,
        realised=ratio / flops_ratio,
        peak_memory_mb=timing.peak_memory_mb,
        stages=dict(zip(Stages.NAMES, (float(part) for part in np.median(timing.stages, axis=0)), strict=True)),
        keep_shallow=timing.keep_shallow,
        keep=timing.keep,
        keep_pixels=timing.keep_pixels,
        **setting,
    )
