"""The study of audits: folders are classes, and the page has their figures."""

from __future__ import annotations

import sys

import pytest

from evaluate_trees import draw_part
from keepad.data import read_dataset
from keepad.evaluate import evaluate
from keepad.evaluate.selection import groups_of
from keepad.studies.audit import audit_markdown, audit_variants


def test_audited_scores_are_those_of_keepad_audit(detector, tmp_path):
    dataset = read_dataset(draw_part(tmp_path / "data"))
    (samples,) = groups_of(dataset, 12).values()
    variants = audit_variants(detector, samples, ["prune70"])
    results = evaluate(detector, dataset.select(), variants, tmp_path / "out", options(12))
    auditor = variants[1].detector
    expected = {each.path.name: each.pred_score for each in auditor.predict([sample.image for sample in samples])}
    rows = {row["key"].rpartition("/")[2]: row["points"] for row in results.images}
    assert {name: row["prune70, audit"]["score"] for name, row in rows.items()} == pytest.approx(expected)
    assert any(row["prune70, audit"]["score"] != row["prune70, zero-shot"]["score"] for row in rows.values())


def options(limit):
    from keepad.evaluate import Options

    return Options(limit=limit)


def test_the_page_has_a_row_for_every_class_and_suite():
    record = {"suite": "a", "class": "x", "point": "p", "n_good": 3, "n_defect": 1, "p_auroc": None}
    record |= {"i_auroc": 80.0, "keep_good": 10.0, "keep_defect": 20.0}
    other = {**record, "class": "y", "n_defect": 3, "i_auroc": 90.0}
    page = audit_markdown({"command": "c", "model": "m"}, [record, other])
    assert "| a/x | 4 | 25.0 | 80.0 |" in page
    assert "| mean of a | 10 | 40.0 | 85.0 |" in page


@pytest.mark.usefixtures("models")
def test_the_command_audits_every_class(study, monkeypatch, tmp_path):
    monkeypatch.setattr("keepad.references.audit.FEWEST_IMAGES", 4)
    out = study("audit", "--model", "p2b", "--suites", "parts", "--points", "prune70")
    page = (out / "audit.md").read_text()
    assert "## prune70, audit" in page
    assert page.count("| parts/bolt | 6 |") == page.count("| parts/cap | 4 |") == 2
    assert "python -m keepad.studies.audit" in page
    assert sys.argv[0] == "audit"
