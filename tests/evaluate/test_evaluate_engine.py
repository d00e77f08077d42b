"""An evaluation of an exported detector is the same command and gives the same numbers."""

from __future__ import annotations

import pytest

from keepad.engines import load_engine
from keepad.errors import KeepADError
from keepad.evaluate import evaluate

POINTS = ["dense", "prune70"]


def test_an_engine_is_evaluated_like_torch_and_its_state_is_its_own(tiny, dataset, folders, tmp_path, one_thread):
    ours = evaluate(tiny, dataset, POINTS, tmp_path / "torch")
    theirs = evaluate(load_engine(folders["onnx"], threads=1), dataset, POINTS, tmp_path / "onnx")
    for a, b in zip(ours.content["records"], theirs.content["records"], strict=True):
        for key, value in a.items():
            assert b[key] == (pytest.approx(value, abs=0.05) if isinstance(value, float) else value), key
    assert theirs.content["settings"]["device"] == "onnx fp32 on the CPU"
    assert set(theirs.content["settings"]["versions"]) == {"keepad", "onnxruntime", "python"}
    with pytest.raises(KeepADError, match="checkpoint"):
        evaluate(tiny, dataset, POINTS, tmp_path / "onnx")
