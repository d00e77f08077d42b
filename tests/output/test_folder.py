"""Summary of a run over a folder; the files it writes are tested in tests/cli/test_cli_predict.py."""

from __future__ import annotations

from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from keepad.output.folder import RunSummary
from predictions import make_prediction


def summary_of(*scores: float | None, **more: Any) -> RunSummary:
    """Rows `images/0.png` and so on; None is an image that failed."""
    rows = []
    for number, score in enumerate(scores):
        path = Path("images") / f"{number}.png"
        values = make_prediction(pred_score=score or 0.0, path=path, **more).to_dict()
        rows.append({**values, "error": f"'{path}' is damaged." if score is None else None})
    return RunSummary(Path("predictions.jsonl"), None, rows)


def printed(summary: RunSummary, **options: Any) -> str:
    text = StringIO()
    Console(file=text, width=120).print(summary.table(**options))
    return text.getvalue()


def test_errors_are_sentences_and_not_counted_as_done() -> None:
    summary = summary_of(0.2, None, 0.9)
    assert summary.errors == [f"'{Path('images') / '1.png'}' is damaged."]
    assert summary.done == 2


def test_the_table_is_sorted_by_score_and_limited() -> None:
    text = printed(summary_of(0.2, None, 0.9, 0.5), limit=2, relative_to=Path("images"))
    assert "3 images, 1 errors" in text
    assert text.index("2.png") < text.index("3.png")
    assert "0.png" not in text
    assert "images/" not in text
    assert "the 2 highest of 3 scores" in text


@pytest.mark.parametrize(("threshold", "label"), [(None, " - "), (0.4, "anomalous"), (0.6, "normal")])
def test_the_table_has_label_keep_rates_and_evidence(threshold: float | None, label: str) -> None:
    text = printed(summary_of(0.5, image_threshold=threshold, final=[0, 1], timings={"late": 0.012}))
    for words in ("0.500", label, "100% → 12%", "0.600", "12 "):
        assert words in text
