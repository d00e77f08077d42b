"""An evaluation of an exported detector is the same call and gives the same numbers."""

from __future__ import annotations

import pytest

from keepad.errors import KeepADError
from keepad.evaluate import Variant, evaluate
from keepad.loading import load
from keepad.presets import POINTS as PRESETS

POINTS = ["dense", "prune70"]


def test_an_engine_is_evaluated_like_torch_and_its_state_is_its_own(detector, dataset, folders, tmp_path, one_thread):
    ours = evaluate(detector, dataset, POINTS, tmp_path / "torch")
    theirs = evaluate(load(folders["onnx"]), dataset, POINTS, tmp_path / "onnx")
    for a, b in zip(ours.content["records"], theirs.content["records"], strict=True):
        for key, value in a.items():
            assert b[key] == (pytest.approx(value, abs=0.05) if isinstance(value, float) else value), key
    assert theirs.content["settings"]["device"] == "onnx fp32 on the CPU"
    assert set(theirs.content["settings"]["versions"]) == {"keepad", "onnxruntime", "python"}
    with pytest.raises(KeepADError, match="checkpoint"):
        evaluate(detector, dataset, POINTS, tmp_path / "onnx")


def test_an_engine_stands_beside_torch_as_a_variant(detector, dataset, folders, tmp_path, one_thread):
    variants = ["dense", Variant("onnx", PRESETS["dense"], detector=load(folders["onnx"]))]
    results = evaluate(detector, dataset.select(classes="cap"), variants, tmp_path / "out")
    assert results.averages["overall"]["onnx"]["delta"]["p_auroc"] == pytest.approx(0, abs=0.05)
    assert results.content["settings"]["points"]["onnx"]["detector"]["runs_on"] == "onnx fp32 on the CPU"
