"""Exported detectors: the same answers as torch, without torch, and sentences where something is wrong."""

from __future__ import annotations

import copy
import json
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from PIL import Image

from keepad.benchmark.timing import Plan, pictures, run_model
from keepad.detector import Stages
from keepad.engines import EngineDetector, is_exported, load_engine
from keepad.engines.export.writing import export, segments_of, verify
from keepad.engines.folder import DESCRIPTION
from keepad.engines.network import filled
from keepad.engines.opening import open_detector
from keepad.errors import KeepADError
from keepad.images import find_images, read_image, to_input
from keepad.presets import POINTS, PixelBudget

EVERY = [POINTS[name] for name in ("dense", "prune30", "prune50", "prune70", "paper70")]


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with three pictures of noise and shapes."""
    folder = tmp_path_factory.mktemp("images")
    draw = np.random.default_rng(5)
    for number in range(3):
        pixels = draw.integers(0, 256, (150, 170, 3), dtype=np.uint8)
        pixels[20 * number : 20 * number + 60, 30:90] = 40 * number
        Image.fromarray(pixels).save(folder / f"{number}.png")
    return folder


@pytest.mark.parametrize("engine", ["openvino", "onnx"])
def test_an_engine_says_what_torch_says_at_every_point(tiny, folders, images, engine):
    detector = load_engine(folders[engine])
    pixels = np.stack([detector._read(path).pixels for path in sorted(images.iterdir())])
    ours, theirs = tiny.find(pixels, EVERY), detector.find(pixels, EVERY)
    for point in EVERY:
        for a, b in zip(ours[point.name], theirs[point.name], strict=True):
            assert a.survivors_shallow.tolist() == b.survivors_shallow.tolist()
            assert a.survivors.tolist() == b.survivors.tolist()
            assert b.score == pytest.approx(a.score, abs=1e-4)
            np.testing.assert_allclose(b.pixel_map, a.pixel_map, atol=1e-3)
    assert len(theirs["prune70"][0].survivors) < 40 < len(theirs["dense"][0].survivors) == 99


@pytest.mark.parametrize("engine", ["openvino", "onnx"])
@pytest.mark.parametrize("pixels", [None, PixelBudget()])
def test_tokens_that_fill_up_change_nothing(folders, images, engine, pixels):
    detector = load_engine(folders[engine])
    points = [replace(POINTS[name], pixels=pixels) for name in ("dense", "prune70")]
    image = np.stack([to_input(read_image(path), detector.image_size) for path in find_images([images])[:1]])
    found = {}
    for multiple in (1, 64):
        detector._multiple = multiple
        found[multiple] = detector.find(image, points)
    for point in points:
        (plain,), (more,) = found[1][point.name], found[64][point.name]
        assert more.score == pytest.approx(plain.score, abs=1e-5)
        np.testing.assert_allclose(more.pixel_map, plain.pixel_map, atol=1e-4)
        np.testing.assert_array_equal(more.survivors, plain.survivors)


def test_only_what_is_said_of_tokens_is_filled_up():
    tokens, place = np.ones((5, 2), np.float32), np.array([0, 0, 1])
    given = {"tokens": tokens, "index": np.arange(4), "mass": np.ones(4, np.float32), "place": place}
    found = filled(8, len(tokens), **given)
    assert [found[name].shape for name in given] == [(8, 2), (7,), (7,), (3,)]
    assert found["mass"].tolist() == [1, 1, 1, 1, 0, 0, 0]
    assert found["tokens"].dtype == np.float32
    assert filled(5, len(tokens), **given) == given


@pytest.mark.parametrize("engine", ["openvino", "onnx"])
def test_images_side_by_side_are_found_as_each_one_alone_and_in_their_order(folders, images, engine):
    detector, point = load_engine(folders[engine], threads=2), replace(POINTS["prune50"], pixels=PixelBudget())
    pixels = np.stack([detector._read(path).pixels for path in sorted(images.iterdir())])
    pixels = np.concatenate([pixels, np.zeros_like(pixels[:1]), pixels[::-1]])  # few tokens and many, in turns
    stages = Stages()
    together = detector.find(pixels, [point, POINTS["dense"]], stages)
    assert len({len(one.thinned.index) for one in together[point.name]}) > 1
    assert set(stages.seconds) == {"routing", "before", "between", "after", "recovery", "scoring"}
    assert min(stages.seconds.values()) > 0
    for name, found in together.items():
        for image, one in zip(pixels, found, strict=True):
            alone = detector.find(image[None], [point, POINTS["dense"]])[name][0]
            assert one.survivors.tolist() == alone.survivors.tolist()
            assert one.score == pytest.approx(alone.score, abs=1e-6)
            np.testing.assert_allclose(one.pixel_map, alone.pixel_map, atol=1e-6)


def test_side_by_side_a_change_of_the_calibration_is_heard(folders, images):
    detector = load_engine(folders["openvino"], threads=2)
    pixels = np.stack([detector._read(path).pixels for path in sorted(images.iterdir())])
    before = [one.score for one in detector.find(pixels, [detector.point])[detector.point.name]]
    detector.calibration = replace(detector.calibration, patch_weight=0.0)
    after = [one.score for one in detector.find(pixels, [detector.point])[detector.point.name]]
    alone = [detector.find(image[None], [detector.point])[detector.point.name][0].score for image in pixels]
    assert after == pytest.approx(alone, abs=1e-6)
    assert after != pytest.approx(before, abs=1e-4)


@pytest.mark.parametrize("engine", ["openvino", "onnx"])
def test_verification_passes_for_the_same_detector_and_fails_loudly_for_another(tiny, folders, images, engine):
    detector = load_engine(folders[engine])
    paths = sorted(images.iterdir())
    found = verify(tiny, detector, paths, EVERY)
    assert [one.point for one in found] == [point.name for point in EVERY]
    detector.calibration = replace(detector.calibration, patch_weight=0.0)
    detector.info.__dict__["placement"] = replace(
        detector.info.placement, base_layers=detector.info.placement.mid_layers
    )
    with pytest.raises(KeepADError, match="differs from torch at dense"):
        verify(tiny, detector, paths, EVERY)


def test_it_runs_where_torch_is_not_installed(folders, images, tmp_path):
    script = """
import sys
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition('.')[0] in ('torch', 'timm', 'safetensors'):
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Missing())
from keepad.cli import main
main()
"""
    out = tmp_path / "out"
    command = [
        sys.executable,
        "-c",
        script,
        "predict",
        str(images),
        "--model",
        str(folders["openvino"]),
        "--out",
        str(out),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in (out / "predictions.jsonl").read_text().splitlines()]
    assert [Path(line["path"]).name for line in lines] == ["0.png", "1.png", "2.png"]
    detector = load_engine(folders["openvino"])
    assert [line["pred_score"] for line in lines] == [one.pred_score for one in detector.predict(images)]


def test_batches_change_nothing(folders, images):
    detector = load_engine(folders["onnx"], "prune70")
    alone, together = list(detector.predict(images)), list(detector.predict(images, batch_size=3))
    for a, b in zip(alone, together, strict=True):
        assert a.pred_score == b.pred_score
        np.testing.assert_array_equal(a.anomaly_map, b.anomaly_map)


def test_thresholds_and_provenance_travel_with_the_folder(tiny, folders, images):
    detector = load_engine(folders["onnx"])
    assert detector.calibration == tiny.calibration
    assert detector.provenance == tiny.provenance
    assert detector.runs_on == "onnx fp32 on the CPU"
    assert detector(sorted(images.iterdir())[0]).point == "prune50"


def test_a_damaged_or_foreign_folder_is_refused(folders, tmp_path):
    broken = shutil.copytree(folders["onnx"], tmp_path / "broken")
    (broken / "middle.onnx").write_bytes(b"nothing")
    with pytest.raises(KeepADError, match=r"middle\.onnx is missing or not the file that was exported"):
        load_engine(broken)
    (broken / DESCRIPTION).write_text("{}")
    with pytest.raises(KeepADError, match="is damaged; export it again"):
        load_engine(broken)
    (broken / DESCRIPTION).write_text('{"format": 99}')
    with pytest.raises(KeepADError, match="another version of KeepAD"):
        load_engine(broken)
    with pytest.raises(KeepADError, match="is no exported detector"):
        load_engine(tmp_path)
    assert not is_exported(tmp_path)
    with pytest.raises(KeepADError, match="was exported for onnx; leave --engine out, or export it for openvino"):
        open_detector(folders["onnx"], engine="openvino")
    with pytest.raises(KeepADError, match="no engine called 'warp'"):
        open_detector(folders["onnx"], engine="warp")


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"engine": "warp"}, "no engine called 'warp'"),
        ({"engine": "onnx", "precision": "bf16"}, "onnx cannot be exported as 'bf16'; choose fp32 or int8"),
        ({"precision": "int8"}, "int8 needs source images"),
    ],
)
def test_what_cannot_be_exported_is_told(tiny, tmp_path, options, sentence):
    with pytest.raises(KeepADError, match=sentence):
        export(tiny, tmp_path / "out", **options)
    assert not (tmp_path / "out").exists()


def test_engines_take_turns_with_torch_and_are_measured_against_its_dense(tiny, folders, images):
    plan = Plan(points=("prune70",), engines=("onnx",), pixel_router="off", threads=(1,), warmup=0, repeats=1, images=2)
    asked = []

    def engine(name: str, threads: int) -> EngineDetector:
        asked.append((name, threads))
        return load_engine(folders[name], threads=threads)

    (group,) = run_model(tiny, plan, pictures(images, 2), weights="random", engine=engine)
    assert asked == [("onnx", 1)]
    assert [(one.engine, one.point) for one in group] == [("torch", "dense"), ("onnx", "dense"), ("onnx", "prune70")]
    dense, same, pruned = group
    assert same.flops == dense.flops > pruned.flops
    assert pruned.ratio_to_dense == pytest.approx(dense.median_ms / pruned.median_ms)
    assert pruned.keep < pruned.keep_shallow < pruned.keep_pixels == 1


def test_folders_of_the_same_checkpoint_take_turns_and_those_of_another_are_refused(tiny, folders, images):
    folder = str(folders["openvino"])
    plan = Plan(points=("prune70",), engines=(folder,), threads=(1,), warmup=0, repeats=1, images=1)
    (group,) = run_model(tiny, plan, pictures(images, 1), weights="random")
    assert [one.engine for one in group] == ["torch", "openvino", "openvino"]
    other = copy.deepcopy(tiny)
    other.head.patch.data += 1
    with pytest.raises(KeepADError, match="was exported from another checkpoint"):
        next(run_model(other, plan, pictures(images, 1), weights="random"))


@pytest.mark.parametrize("engine", ["openvino", "onnx"])
@pytest.mark.parametrize("name", ["dense", "prune30", "prune70"])
def test_the_pixel_router_thins_what_an_engine_embeds(tiny, folders, engine, name):
    pixels = np.full((1, *tiny.image_size, 3), 120, dtype=np.uint8)
    pixels[0, 40:60, 50:90] = np.random.default_rng(0).integers(0, 256, (20, 40, 3))
    point = replace(POINTS[name], pixels=PixelBudget())
    (ours,) = tiny.find(pixels, [point])[name]
    (theirs,) = load_engine(folders[engine]).find(pixels, [point])[name]
    assert theirs.thinned.index.tolist() == ours.thinned.index.tolist()
    assert len(theirs.thinned.index) < 60
    assert theirs.survivors.tolist() == ours.survivors.tolist()
    assert theirs.score == pytest.approx(ours.score, abs=1e-4)
    np.testing.assert_allclose(theirs.pixel_map, ours.pixel_map, atol=1e-3)


def test_integers_keep_the_verdict_and_leave_decisions_in_floating_point(tiny, images, tmp_path):
    paths = sorted(images.iterdir())
    told: list[str] = []
    folder = export(tiny, tmp_path / "int8", engine="onnx", precision="int8", images=paths, say=told.append)
    detector = load_engine(folder)
    assert detector.info.floating == ()
    alike = [float(line.split()[-1]) for line in told if "cosine of int8 to float" in line]
    assert len(alike) == len(segments_of(tiny)) - 1  # scores stay in single precision
    assert min(alike) >= 0.99  # how close depends on what integer instructions the CPU has
    assert detector.runs_on == "onnx int8 on the CPU"
    (dense,) = verify(tiny, detector, paths, [POINTS["dense"]])
    assert 0 < dense.score < 0.05  # other numbers than in floating point, but the same verdict
    scores = onnx.load(str(folder / "scores.onnx")).graph
    assert not any(node.op_type == "DequantizeLinear" for node in scores.node)
    graph = onnx.load(str(folder / "middle.onnx")).graph
    quantised = {node.output[0] for node in graph.node if node.op_type == "DequantizeLinear"}
    scored = [node for node in graph.node if node.op_type == "MatMul" and node.name.startswith("node_matmul")]
    assert quantised
    assert scored
    assert not any(name in quantised for node in scored for name in node.input)
