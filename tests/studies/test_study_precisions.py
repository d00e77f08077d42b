"""The study of precisions: its variants, its changes by view, and exports that do not belong to a checkpoint."""

from __future__ import annotations

import copy
from types import SimpleNamespace

import pytest

from keepad.errors import KeepADError
from keepad.presets import POINTS
from keepad.studies.precisions import TORCH, VIEWS, changes_table, check_origin, precision_variants


def test_torch_and_exports_pass_over_every_view():
    export = object()
    variants = precision_variants(POINTS["prune70"], {"openvino int8": export})
    assert len(variants) == 2 * len(VIEWS) + 1
    by_name = {variant.name: variant for variant in variants}
    assert by_name["torch fp32"].view is by_name["torch fp32"].detector is None
    assert by_name["openvino int8, mirrored"].detector is export
    assert by_name["openvino int8, mirrored"].view.flip == (1,)
    assert by_name["torch fp32, one grey level off"].view.noise == 1


def test_changes_are_against_torch_on_the_same_view():
    aurocs = {
        TORCH: (80, 90),
        f"{TORCH}, mirrored": (70, 80),
        f"{TORCH}, upside down": (75, 85),
        f"{TORCH}, turned around": (75, 85),
        f"{TORCH}, one grey level off": (80.3, 90),
        "openvino int8": (81, 90),
        "openvino int8, mirrored": (70, 79),
        "openvino int8, upside down": (75, 85),
        "openvino int8, turned around": (76, 85),
    }
    points = {name: {"i_auroc": image, "p_auroc": pixel} for name, (image, pixel) in aurocs.items()}
    rows = changes_table(points).splitlines()[2:]
    assert rows == [
        "| torch fp32 | 80.0 |  | 90.0 |  |",
        "| torch fp32, one grey level off | 80.3 (+0.3) |  | 90.0 (+0.0) |  |",
        "| openvino int8 | 81.0 (+1.0) | +1.00, +0.00, +0.00, +1.00: +0.50 "
        "| 90.0 (+0.0) | +0.00, -1.00, +0.00, +0.00: -0.25 |",
    ]


def test_an_export_of_another_checkpoint_is_refused(detector):
    def export_of(digest):
        return SimpleNamespace(name="m2i", digests=lambda: {"checkpoint": f"{digest} openvino int8"})

    digest = detector.digests()["checkpoint"]
    check_origin(detector, {"openvino int8": export_of(digest)})
    with pytest.raises(KeepADError, match="another checkpoint; export it again"):
        check_origin(detector, {"openvino int8": export_of(digest[::-1])})


def test_it_writes_the_changes_of_every_model(models, study, monkeypatch):
    for name in ("p2b", "b2p"):
        export = copy.deepcopy(models[name])
        digests = models[name].digests()
        monkeypatch.setattr(
            export.network, "digests", lambda own=digests: {**own, "checkpoint": own["checkpoint"] + " x"}
        )
        models[f"{name}-int8"] = export
    for export in (models["p2b-int8"], models["b2p-int8"]):
        monkeypatch.setattr(type(export), "runs_on", property(lambda self: "onnx int8 on the CPU"))
    out = study("precisions", "--exports", "p2b-int8,b2p-int8", "--limit", "1")
    page = (out / "changes.md").read_text()
    assert "## p2b, on brainmri" in page
    assert "## b2p, on parts" in page
    (row,) = [line for line in page.split("## b2p")[1].splitlines() if line.startswith("| onnx int8 |")]
    assert "+0.00, +0.00, +0.00, +0.00: +0.00" in row  # the same network
