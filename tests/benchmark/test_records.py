"""Records of a run, and the passes behind them. No test asserts a time."""

from __future__ import annotations

import copy
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

import keepad.benchmark.records
from keepad.arrays import Array
from keepad.benchmark import (
    BenchmarkPlan,
    Record,
    Runner,
    TimedImages,
    measure,
    settings_of,
    time_network,
    time_plan,
)
from keepad.benchmark.schedule import TURN
from keepad.detector import Detector
from keepad.errors import KeepADError
from keepad.network import Network
from keepad.presets import POINTS
from keepad.steps import Stages

KEYS = {
    "backbone",
    "weights",
    "engine",
    "dtype",
    "batch",
    "threads",
    "point",
    "median_ms",
    "iqr_ms",
    "ratio_to_dense",
    "ratio_per_round",
    "flops",
    "flops_ratio",
    "realised",
    "peak_memory_mb",
    "stages",
    "keep_shallow",
    "keep",
    "keep_pixels",
}


def short(**options: Any) -> BenchmarkPlan:
    """A plan with one thread, one repeat and no warm-up."""
    return BenchmarkPlan(**{"threads": (1,), "warmup": 0, "repeats": 1, **options})


def test_records_have_exactly_these_keys(records: list[Record]) -> None:
    assert len(records) == 2 * len(BenchmarkPlan().points)
    for record in records:
        assert set(asdict(record)) == KEYS
        assert tuple(record.stages) == Stages.NAMES
        assert record.median_ms > 0
        assert record.iqr_ms >= 0
        assert sum(record.stages.values()) > 0
        assert record.peak_memory_mb is None or record.peak_memory_mb >= 0


def test_torch_marks_every_stage(records: list[Record]) -> None:
    for record in records:
        assert min(record.stages.values()) > 0, record.stages


def test_ratios_are_to_dense(records: list[Record]) -> None:
    for record in records:
        if record.point == "dense":
            assert (record.ratio_to_dense, record.ratio_per_round, record.flops_ratio, record.realised) == (1, 1, 1, 1)
            assert (record.keep_shallow, record.keep) == (1, 1)
        else:
            assert record.flops_ratio > 1
            assert record.keep < record.keep_shallow < 1
        assert record.realised == pytest.approx(record.ratio_to_dense / record.flops_ratio)


def test_more_pruning_costs_fewer_flops(records: list[Record]) -> None:
    flops = [record.flops for record in records if record.batch == 1]
    assert flops == sorted(flops, reverse=True)


def test_batch_size_does_not_change_the_flops(records: list[Record], plan: BenchmarkPlan) -> None:
    # Three images in batches of two repeat the first, so only dense has the same mean over images.
    single, double = (next(r for r in records if r.batch == batch and r.point == "dense") for batch in plan.batches)
    assert single.flops == double.flops


def test_pixel_router_is_timed_against_the_same_points_without_it(tiny: Network) -> None:
    flat = TimedImages("flat", ("a.png",), (Image.new("RGB", (96, 96), "grey"),))
    (group,) = time_network(tiny, short(points=("prune70",), pixel_router="both"), flat, weights="random")
    kept = {record.point: record.keep_pixels for record in group}
    assert list(kept) == ["dense", "prune70", "dense + pixels", "prune70 + pixels"]
    assert kept["dense"] == kept["prune70"] == 1
    assert kept["dense + pixels"] == kept["prune70 + pixels"] < 1
    flops = {record.point: record.flops for record in group}
    assert flops["prune70 + pixels"] < flops["prune70"]


def test_dense_is_always_timed_and_nothing_twice(tiny: Network, squares: TimedImages) -> None:
    (group,) = time_network(tiny, short(points=("prune70", "prune70")), squares, weights="random")
    assert [record.point for record in group] == ["dense", "prune70"]


def test_bfloat16_runs_where_the_device_has_it(
    tiny: Network, squares: TimedImages, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keepad.benchmark.records, "has_bfloat16", lambda device: True)
    single = TimedImages("squares", squares.names[:1], squares.images[:1])
    plan = short(points=("prune50",), dtypes=("bfloat16",))
    (group,) = time_network(tiny, plan, single, weights="random")
    assert {record.dtype for record in group} == {"bfloat16"}
    assert {parameter.dtype for parameter in tiny.parameters()} == {torch.float32}


def test_dtype_without_instructions_is_refused(squares: TimedImages, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keepad.benchmark.records, "has_bfloat16", lambda device: False)
    with pytest.raises(KeepADError, match="no instructions for bfloat16"):
        next(time_plan(BenchmarkPlan(dtypes=("bfloat16",), device="cpu"), squares))


def test_threads_are_restored(tiny: Network, squares: TimedImages) -> None:
    before = torch.get_num_threads()
    (group,) = time_network(tiny, short(points=("dense",), threads=(before + 1,)), squares, weights="random")
    assert group[0].threads == before + 1
    assert torch.get_num_threads() == before


def test_every_pass_advances_the_progress(tiny: Network, squares: TimedImages) -> None:
    plan = short(points=("prune50",), batches=(1, 2), warmup=1)
    done = Counter[str]()
    list(time_network(tiny, plan, squares, weights="random", advance=lambda: done.update(["pass"])))
    assert done["pass"] == plan.passes(len(squares.images))


def test_a_turn_begins_with_an_untimed_pass(tiny: Network, monkeypatch: pytest.MonkeyPatch) -> None:
    count = TURN + 1
    greys = TimedImages("greys", ("",) * count, tuple(Image.new("RGB", (8, 8), (i,) * 3) for i in range(count)))
    sequences: list[list[int]] = []

    def recording() -> Network:
        network, sequence = copy.deepcopy(tiny), list[int]()
        sequences.append(sequence)

        def infer(pixels: Array, *rest: Any) -> Any:
            sequence.append(int(pixels[0, 0, 0, 0]))
            return tiny.infer(pixels, *rest)

        monkeypatch.setattr(network, "infer", infer)
        return network

    runners = [Runner(recording(), POINTS["dense"]) for _ in range(2)]
    measure(runners, greys.batches(tiny.image_size, 1), tiny, warmup=1, repeats=1)
    for sequence in sequences:
        assert sequence == [0, TURN - 1, *range(TURN), TURN, TURN, 0]  # the last pass measures memory


def test_a_runner_with_a_bank_matches_references(tiny: Network, squares: TimedImages) -> None:
    (batch, *_), point = squares.batches(tiny.image_size, 1), POINTS["prune50"]
    bank = Detector(tiny, point).teach([Image.fromarray(batch[0])], say=lambda line: None).bank
    assert bank is not None
    with_bank, without = Runner(tiny, point, bank), Runner(tiny, point)
    assert with_bank.run(batch)[0].match is not None
    assert with_bank.timed(batch)[2][0].match is not None
    assert without.run(batch)[0].match is None


def test_a_checkpoint_can_be_timed_instead_of_a_backbone(
    tiny: Network, squares: TimedImages, monkeypatch: pytest.MonkeyPatch
) -> None:
    names: list[str] = []

    def load_network(name: str, **rest: object) -> Network:
        names.append(name)
        return tiny

    monkeypatch.setattr(keepad.benchmark.records, "load_network", load_network)
    plan = short(model="mine.safetensors", points=("dense",))
    (group,) = time_plan(plan, squares)
    assert names == ["mine.safetensors"]
    assert group[0].weights == "pretrained"
    assert settings_of(plan, squares, ["keepad"])["model"] == "mine.safetensors"


def test_backbones_without_checkpoint_have_random_weights(
    squares: TimedImages, monkeypatch: pytest.MonkeyPatch, tiny: Network
) -> None:
    monkeypatch.setattr(keepad.benchmark.records, "untrained", lambda name: tiny)
    lines: list[str] = []
    (group,) = time_plan(short(backbones=("vit_tiny_patch16_224",), points=("dense",)), squares, say=lines.append)
    assert group[0].weights == "random"
    assert len(lines) == 1
    assert "random weights" in lines[0]


def test_engines_alternate_with_torch_and_are_compared_with_its_dense(
    tiny: Network, squares: TimedImages, folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    requests: list[tuple[str, str]] = []

    def exported(network: Network, engine: str, precision: str, **rest: object) -> Path:
        requests.append((engine, precision))
        return folders[engine]

    monkeypatch.setattr(keepad.benchmark.records, "exported", exported)
    plan = short(points=("prune70",), engines=("onnx",), pixel_router="off")
    (group,) = time_network(tiny, plan, squares, weights="random")
    assert requests == [("onnx", "fp32")]
    assert [(record.engine, record.point) for record in group] == [
        ("torch", "dense"),
        ("onnx", "dense"),
        ("onnx", "prune70"),
    ]
    dense, same, pruned = group
    assert same.flops == dense.flops > pruned.flops
    assert pruned.ratio_to_dense == pytest.approx(dense.median_ms / pruned.median_ms)
    assert pruned.keep < pruned.keep_shallow < pruned.keep_pixels == 1


def test_exported_folders_of_the_same_checkpoint_are_timed_and_others_refused(
    tiny: Network, squares: TimedImages, folders: dict[str, Path]
) -> None:
    plan = short(points=("prune70",), exported=(folders["openvino"],))
    (group,) = time_network(tiny, plan, squares, weights="random")
    assert [record.engine for record in group] == ["torch", "torch", "openvino", "openvino"]
    other = copy.deepcopy(tiny)
    other.head.patch.data += 1
    with pytest.raises(KeepADError, match="was exported from another checkpoint"):
        next(time_network(other, plan, squares, weights="random"))
