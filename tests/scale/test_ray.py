"""keepad score --on ray: the rows of one process, from an actor of a real Ray."""

from __future__ import annotations

from pathlib import Path

import pytest

from keepad.console import no_progress
from keepad.errors import KeepADError
from keepad.scale.run import DetectorOptions, Job, score

ray = pytest.importorskip("ray", reason="Ray is not installed")


def test_an_actor_writes_the_rows_of_one_process(
    photos: Path, tmp_path: Path, exported_options: DetectorOptions
) -> None:
    from pyarrow import parquet

    found = {}
    with pytest.raises(KeepADError, match="lower --workers"):
        score(exported_options, Job(str(photos), str(tmp_path / "many"), "ray", 999), print, no_progress)
    for place in ("ray", "local"):
        job = Job(str(photos), str(tmp_path / place), place, shard=3)
        summary = score(exported_options, job, lambda line: None, no_progress)
        assert (summary.images, summary.errors) == (9, 1)
        tables = [parquet.read_table(part) for part in sorted((tmp_path / place).glob("part-*"))]
        found[place] = [{**row, "ms": 0} for table in tables for row in table.to_pylist()]
    assert found["ray"] == found["local"]
    assert (
        score(exported_options, Job(str(photos), str(tmp_path / "ray"), "ray", shard=3), print, no_progress).before == 9
    )
