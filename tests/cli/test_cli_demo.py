"""keepad demo with the default checkpoint: defects are located and rank above the clean images."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from keepad.cli import app
from keepad.demo import demo_images
from keepad.loading import load

pytestmark = pytest.mark.weights


def test_defects_rank_above_the_clean_images(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["demo", "--out", str(tmp_path)], env={"COLUMNS": "120"})
    assert result.exit_code == 0, result.output
    rows = [json.loads(line) for line in (tmp_path / "predictions.jsonl").read_text().splitlines()]
    scores: dict[bool, list[float]] = {True: [], False: []}
    for row in rows:
        scores["/good/" in Path(row["path"]).as_posix()].append(row["pred_score"])
    assert len(scores[True]) == len(scores[False]) == 12
    assert min(scores[False]) > max(scores[True])
    assert (tmp_path / "report.html").stat().st_size > 100_000
    assert "report.html" in result.output


@pytest.mark.parametrize("point", ["dense", "prune30", "prune50", "prune70"])
def test_defects_are_located(point: str) -> None:
    """One defect per product: the map is higher on it than off it, and some of its tokens survive."""
    model = load(point=point)
    chosen = {demo.product: demo for demo in demo_images() if demo.defect != "good"}
    for demo in chosen.values():
        prediction = model(demo.image)
        on, off = prediction.anomaly_map[demo.mask], prediction.anomaly_map[~demo.mask]
        assert on.mean() > np.quantile(off, 0.95), demo.name
        rows, columns = np.unravel_index(prediction.survivors, prediction.grid)
        touched = np.asarray(demo.mask.reshape(37, 14, 37, 14).any(axis=(1, 3)))
        assert touched[rows, columns].any(), demo.name
