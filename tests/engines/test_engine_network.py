"""EngineNetwork: the results of torch, without torch, for single images and for batches."""

from __future__ import annotations

import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import cast

import numpy as np
import pytest

from keepad.arrays import Array
from keepad.detector import Detector
from keepad.engines import open_network
from keepad.engines.network import Lanes
from keepad.engines.sessions import MULTIPLES
from keepad.engines.steps import EngineTokens, Segments
from keepad.images import find_images, read_image, to_input
from keepad.network import Network
from keepad.presets import POINTS, PixelBudget
from keepad.serve.worker import Worker
from keepad.steps import Stages

ENGINES = ("openvino", "onnx")
EVERY_POINT = [POINTS[name] for name in ("dense", "prune30", "prune50", "prune70", "paper70")]


@pytest.fixture
def pixels(tiny: Network, image_folder: Path) -> Array:
    """(3, H, W, 3) the images at input size."""
    return np.stack([to_input(read_image(path), tiny.image_size) for path in find_images([image_folder])])


@pytest.mark.parametrize("engine", ENGINES)
def test_results_equal_those_of_torch_at_every_point(
    tiny: Network, folders: dict[str, Path], pixels: Array, engine: str
) -> None:
    expected, actual = tiny.infer(pixels, EVERY_POINT), open_network(folders[engine]).infer(pixels, EVERY_POINT)
    for point in EVERY_POINT:
        for a, b in zip(expected[point.name], actual[point.name], strict=True):
            assert a.survivors_shallow.tolist() == b.survivors_shallow.tolist()
            assert a.survivors.tolist() == b.survivors.tolist()
            assert b.score == pytest.approx(a.score, abs=1e-4)
            np.testing.assert_allclose(b.anomaly_map, a.anomaly_map, atol=1e-3)
    assert len(actual["prune70"][0].survivors) < 40 < len(actual["dense"][0].survivors) == 99


@pytest.mark.parametrize("engine", ENGINES)
def test_smoothed_scores_and_absolute_evidence_choose_as_torch_does(
    tiny: Network, folders: dict[str, Path], pixels: Array, engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    network = open_network(folders[engine])
    rows = ((0.3, 0.2, 0.05), (0.7, 0.1, 0.05))
    calibration = replace(tiny.calibration, landmarks=2, score_smoothing=1.0, evidence=rows)
    monkeypatch.setattr(tiny, "calibration", calibration)
    network.calibration = calibration
    points = [POINTS["prune30"], POINTS["prune70"]]
    expected, actual = tiny.infer(pixels, points), network.infer(pixels, points)
    for point in points:
        for a, b in zip(expected[point.name], actual[point.name], strict=True):
            assert a.evidence == pytest.approx(b.evidence, abs=1e-4)
            np.testing.assert_array_equal(a.survivors_shallow, b.survivors_shallow)
            np.testing.assert_array_equal(a.survivors, b.survivors)


@pytest.mark.parametrize("engine", ENGINES)
def test_survivors_attend_to_dropped_tokens_as_in_torch(
    tiny: Network, folders: dict[str, Path], pixels: Array, engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    network, points = open_network(folders[engine]), [POINTS["dense"], POINTS["prune50"], POINTS["prune70"]]
    without = tiny.infer(pixels, points)
    calibration = replace(tiny.calibration, context=True)
    monkeypatch.setattr(tiny, "calibration", calibration)
    network.calibration = calibration
    expected, actual = tiny.infer(pixels, points), network.infer(pixels, points)
    for point in points:
        for a, b, plain in zip(expected[point.name], actual[point.name], without[point.name], strict=True):
            assert a.context == b.context
            assert a.survivors.tolist() == b.survivors.tolist()
            assert b.score == pytest.approx(a.score, abs=1e-4)
            np.testing.assert_allclose(b.anomaly_map, a.anomaly_map, atol=1e-3)
            changed = not np.allclose(a.patch_map, plain.patch_map, atol=1e-6)
            assert changed == (point.name != "dense")
            assert (a.context > 0) == (point.name != "dense")


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("budget", [None, PixelBudget()])
def test_padding_tokens_change_nothing(
    folders: dict[str, Path], pixels: Array, engine: str, budget: PixelBudget | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    network = open_network(folders[engine])
    points = [replace(POINTS[name], pixels=budget) for name in ("dense", "prune70")]
    results = {}
    for multiple in (1, 64):
        monkeypatch.setitem(MULTIPLES, engine, multiple)
        results[multiple] = network.infer(pixels[:1], points)
    for point in points:
        (plain,), (padded,) = results[1][point.name], results[64][point.name]
        assert padded.score == pytest.approx(plain.score, abs=1e-5)
        np.testing.assert_allclose(padded.anomaly_map, plain.anomaly_map, atol=1e-4)
        np.testing.assert_array_equal(padded.survivors, plain.survivors)


def test_only_inputs_with_a_row_per_token_are_padded() -> None:
    tokens = EngineTokens(
        x=np.ones((5, 2), np.float32),
        index=np.arange(4),
        cells=np.array([0, 1, 3]),
        token=np.array([0, 0, 1]),
        size=np.ones(4, np.float32),
        entry=np.zeros(3, np.float32),
    )
    padded = tokens.inputs(8)
    shapes = {"tokens": (8, 2), "index": (7,), "size": (7,), "cells": (3,), "token": (3,), "entry": (3,)}
    assert {name: values.shape for name, values in padded.items()} == shapes
    assert padded["size"].tolist() == [1, 1, 1, 1, 0, 0, 0]
    assert padded["tokens"].dtype == np.float32
    assert tokens.inputs(5)["tokens"] is tokens.x


@pytest.mark.parametrize("engine", ENGINES)
def test_a_concurrent_batch_equals_its_images_alone_in_their_order(
    folders: dict[str, Path], pixels: Array, engine: str
) -> None:
    network = open_network(folders[engine], threads=2)
    points = [replace(POINTS["prune50"], pixels=PixelBudget()), POINTS["dense"]]
    batch = np.concatenate([pixels, np.zeros_like(pixels[:1]), pixels[::-1]])  # images of few tokens and of many
    stages = Stages()
    together = network.infer(batch, points, stages)
    routings = [result.pixel_routing for result in together["prune50"]]
    assert len({len(routing.index) for routing in routings if routing is not None}) > 1
    assert set(stages.seconds) == {"routing", "early", "middle", "late", "recovery", "scoring"}
    assert min(stages.seconds.values()) > 0
    for number, image in enumerate(batch):
        alone = network.infer(image[None], points)
        for name, results in together.items():
            (expected,) = alone[name]
            assert results[number].survivors.tolist() == expected.survivors.tolist()
            assert results[number].score == pytest.approx(expected.score, abs=1e-6)
            np.testing.assert_allclose(results[number].anomaly_map, expected.anomaly_map, atol=1e-6)


def test_calls_from_several_threads_give_what_they_give_alone(folders: dict[str, Path], pixels: Array) -> None:
    network, point = open_network(folders["openvino"], threads=2), POINTS["prune50"]

    def score(image: Array) -> float:
        return network.infer(image[None], [point])[point.name][0].score

    images = [*pixels, *pixels[::-1]] * 3
    expected = [score(image) for image in images]
    with ThreadPoolExecutor(5) as pool:
        assert list(pool.map(score, images)) == pytest.approx(expected, abs=1e-6)


def test_a_service_gives_each_lane_an_image_as_soon_as_there_is_one(folders: dict[str, Path], pixels: Array) -> None:
    network = open_network(folders["openvino"], threads=2)
    detector, batches = Detector(network, "prune50"), list[int]()
    worker = Worker(8, lambda batch: batches.append(batch.images), network.lanes)
    inputs = [detector.prepare(image) for image in pixels] * 3
    waiting = [worker.submit(detector, detector.point, image) for image in inputs]
    call = worker.run(lambda: detector(pixels[0]).pred_score)
    scores = [future.result(60).pred_score for future in waiting]
    assert worker.close(60)
    assert batches == [1] * len(inputs)
    assert scores == pytest.approx([detector(image).pred_score for image in inputs], abs=1e-6)
    assert call.result(0) == pytest.approx(scores[0], abs=1e-6)


def test_a_concurrent_batch_uses_a_changed_calibration(folders: dict[str, Path], pixels: Array) -> None:
    network, point = open_network(folders["openvino"], threads=2), POINTS["prune50"]

    def scores(batch: Array) -> list[float]:
        return [result.score for result in network.infer(batch, [point])[point.name]]

    before = scores(pixels)
    network.calibration = replace(network.calibration, patch_weight=0.0)
    after = scores(pixels)
    assert after == pytest.approx([scores(image[None])[0] for image in pixels], abs=1e-6)
    assert after != pytest.approx(before, abs=1e-4)


def test_predictions_do_not_depend_on_the_batch_size(folders: dict[str, Path], image_folder: Path) -> None:
    detector = Detector(open_network(folders["onnx"]), "prune70")
    alone, together = list(detector.predict(image_folder)), list(detector.predict(image_folder, batch_size=3))
    for a, b in zip(alone, together, strict=True):
        assert a.pred_score == b.pred_score
        np.testing.assert_array_equal(a.anomaly_map, b.anomaly_map)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", ["dense", "prune30", "prune70"])
def test_the_pixel_router_keeps_the_patches_that_torch_keeps(
    tiny: Network, folders: dict[str, Path], engine: str, name: str
) -> None:
    image = np.full((1, *tiny.image_size, 3), 120, dtype=np.uint8)
    image[0, 40:60, 50:90] = np.random.default_rng(0).integers(0, 256, (20, 40, 3))
    point = replace(POINTS[name], pixels=PixelBudget())
    (expected,) = tiny.infer(image, [point])[name]
    (actual,) = open_network(folders[engine]).infer(image, [point])[name]
    assert expected.pixel_routing is not None
    assert actual.pixel_routing is not None
    assert actual.pixel_routing.index.tolist() == expected.pixel_routing.index.tolist()
    assert len(actual.pixel_routing.index) < 60
    assert actual.survivors.tolist() == expected.survivors.tolist()
    assert actual.score == pytest.approx(expected.score, abs=1e-4)
    np.testing.assert_allclose(actual.anomaly_map, expected.anomaly_map, atol=1e-3)


def test_the_folder_holds_calibration_and_provenance(
    tiny: Network, folders: dict[str, Path], image_folder: Path
) -> None:
    network = open_network(folders["onnx"])
    assert network.info.digests == tiny.digests()
    assert network.digests()["checkpoint"].startswith(f"{tiny.digests()['checkpoint']} onnx fp32 ")
    detector = Detector(network)
    assert detector.calibration == tiny.calibration
    assert detector.provenance == tiny.provenance
    assert detector.runs_on == "onnx fp32 on the CPU"
    assert detector(image_folder / "0.png").point == "prune50"


def test_it_runs_where_torch_is_not_installed(folders: dict[str, Path], image_folder: Path, tmp_path: Path) -> None:
    script = """
import sys
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition('.')[0] in ('torch', 'timm', 'onnx'):
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Missing())
from keepad.cli import main
main()
"""
    out = tmp_path / "out"
    options = ["--model", str(folders["openvino"]), "--out", str(out)]
    command = [sys.executable, "-c", script, "predict", str(image_folder), *options]
    process = subprocess.run(command, capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stderr
    lines = [json.loads(line) for line in (out / "predictions.jsonl").read_text().splitlines()]
    assert [Path(line["path"]).name for line in lines] == ["0.png", "1.png", "2.png"]
    detector = Detector(open_network(folders["openvino"]))
    expected = [prediction.pred_score for prediction in detector.predict(image_folder)]
    assert [line["pred_score"] for line in lines] == expected


def test_a_pass_shares_the_threads_while_others_came_lately() -> None:
    now = 0.0
    lanes = Lanes(lambda threads: cast(Segments, threads), 4, lambda: now)

    def one(seconds: float) -> object:
        nonlocal now
        with lanes.taken() as threads:
            now += seconds
        return threads

    assert [one(0.1) for _ in range(3)] == [4, 4, 4]  # one after the other: all threads
    with lanes.taken() as first:
        assert (first, one(0.1)) == (4, 2)
    assert one(0.1) == 2  # alone, but another one was there a moment ago
    assert [one(0.1) for _ in range(12)][-1] == 4
    with lanes.taken(4) as batch:  # images of one batch say how many they are
        assert batch == 1
    assert one(0.1) == 4
