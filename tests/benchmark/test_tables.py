"""Tables and files of a run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from keepad.benchmark import BenchmarkPlan, Record, TimedImages, settings_of, tables, to_markdown, write_report
from keepad.errors import KeepADError


def test_report_comes_back_as_it_was_written(
    records: list[Record], plan: BenchmarkPlan, squares: TimedImages, tmp_path: Path
) -> None:
    settings = settings_of(plan, squares, ["keepad", "benchmark", "--out", str(tmp_path / "speed.json")])
    page = write_report(tmp_path / "speed.json", records, settings)
    content = json.loads((tmp_path / "speed.json").read_text())
    assert [Record(**record) for record in content["records"]] == records
    assert content["settings"] == settings
    assert settings["images"] == {"source": "squares", "per_repeat": 3, "names": ["a.png", "b.png", "c.png"]}
    assert page.read_text().splitlines()[0] == "Made by `keepad benchmark --out speed.json`."
    for file in tmp_path.iterdir():
        assert str(tmp_path) not in file.read_text()
    assert {file.name for file in tmp_path.iterdir()} == {"speed.json", "speed.md"}


def test_tables_have_a_row_for_each_record(records: list[Record], plan: BenchmarkPlan, squares: TimedImages) -> None:
    rows = [table.row_count for table in tables(records)]  # for each setting, times and stages
    assert sum(rows[::2]) == sum(rows[1::2]) == len(records)
    page = to_markdown(records, settings_of(plan, squares, ["keepad"]))
    assert sum(line.startswith("| vit_tiny") for line in page.splitlines()) == 2 * len(records)


def test_report_that_cannot_be_written_is_refused(
    records: list[Record], plan: BenchmarkPlan, squares: TimedImages, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(KeepADError, match="could not be written"):
        write_report(tmp_path / "file" / "speed.json", records, settings_of(plan, squares, ["keepad"]))
