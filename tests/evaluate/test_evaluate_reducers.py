"""Reducers as operating points of an evaluation and of a benchmark: at the FLOPs of their namesakes, in torch only."""

from __future__ import annotations

import pytest

from keepad.benchmark import BenchmarkPlan, time_network, timed_images
from keepad.detector import Detector
from keepad.engines import open_network
from keepad.errors import KeepADError
from keepad.evaluate import Options, evaluate

pytestmark = pytest.mark.usefixtures("one_thread")


def test_reducers_are_evaluated_at_the_flops_of_their_namesake(detector, dataset, tmp_path):
    parts = dataset.select(suites="parts")
    results = evaluate(detector, parts, ["dense", "prune70", "tome70", "evit70"], tmp_path, Options(batch_size=2))
    flops = {
        name: sum(row["points"][name]["gflops"] for row in results.images)
        for name in ("dense", "prune70", "tome70", "evit70")
    }
    assert flops["tome70"] == pytest.approx(flops["prune70"], rel=0.01)
    assert flops["evit70"] == pytest.approx(flops["prune70"], rel=0.01)
    assert flops["dense"] > 1.2 * flops["prune70"]
    survival = results.content["survival"]["overall"]
    assert "alone" not in survival["evit70"]
    assert survival["tome70"]["alone"]["all"]["dtr"] < survival["tome70"]["final"]["all"]["dtr"]
    assert results.content["settings"]["points"]["tome70"]["reducer"]["ratio"] > 0.5
    again = evaluate(detector, parts, ["dense", "prune70", "tome70", "evit70"], tmp_path, Options(batch_size=2))
    assert again.computed == 0


def test_an_engine_refuses_a_reducer(folders, dataset, tmp_path):
    engine = Detector(open_network(folders["onnx"]))
    with pytest.raises(KeepADError, match="ats50 changes what happens inside blocks, so it runs in torch"):
        evaluate(engine, dataset.select(suites="parts"), ["ats50"], tmp_path)
    with pytest.raises(KeepADError, match="tome30 changes what happens inside blocks"):
        BenchmarkPlan(points=("tome30",), engines=("onnx",))


def test_reducers_are_timed_beside_their_namesake(make_tiny):
    plan = BenchmarkPlan(points=("prune50", "zerotprune50"), warmup=0, repeats=1, images=2)
    (records,) = time_network(make_tiny(), plan, timed_images(None, 2), weights="random")
    by_point = {record.point: record for record in records}
    assert by_point["zerotprune50"].flops == pytest.approx(by_point["prune50"].flops, rel=0.01)
    assert by_point["zerotprune50"].stages["late"] > 0
