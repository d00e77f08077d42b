"""keepad demo with the default checkpoint: defects are located and rank above the clean images."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from keepad.cli import app
from keepad.demo import DemoImage, demo_images
from keepad.detector import Detector
from keepad.loading import load

pytestmark = pytest.mark.weights


def test_defects_rank_above_the_clean_images(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["demo", "--out", str(tmp_path)], env={"COLUMNS": "120"})
    assert result.exit_code == 0, result.output
    rows = [json.loads(line) for line in (tmp_path / "predictions.jsonl").read_text().splitlines()]
    good = ["/good/" in Path(row["path"]).as_posix() for row in rows]
    assert (good.count(True), good.count(False)) == (12, 12)
    scores = np.array([row["pred_score"] for row in rows])
    assert scores[np.logical_not(good)].min() > scores[good].max()
    assert (tmp_path / "report.html").stat().st_size > 100_000
    assert "report.html" in result.output


@pytest.fixture(scope="module")
def detector() -> Detector:
    return load()


@pytest.fixture(scope="module")
def defective() -> list[DemoImage]:
    """One image of each product."""
    return list({demo.product: demo for demo in demo_images() if demo.defect != "good"}.values())


@pytest.mark.parametrize("point", ["dense", "prune30", "prune50", "prune70"])
def test_defects_are_located(detector: Detector, defective: list[DemoImage], point: str) -> None:
    """The map is higher on a defect than off it, and some of its tokens survive."""
    for demo in defective:
        prediction = detector(demo.image, point=point)
        anomaly_map = prediction.map_at()
        on, off = anomaly_map[demo.mask], anomaly_map[~demo.mask]
        assert on.mean() > np.quantile(off, 0.95), demo.name
        rows, columns = (
            pixels * cells // size
            for pixels, cells, size in zip(demo.mask.nonzero(), prediction.grid, demo.mask.shape, strict=True)
        )
        assert np.isin(rows * prediction.grid[1] + columns, prediction.survivors).any(), demo.name
