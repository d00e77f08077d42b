"""keepad score: the numbers of predict, row by row, and a run that goes on whatever is killed."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from keepad.console import no_progress
from keepad.errors import KeepADError
from keepad.images import find_images
from keepad.scale import shards, storage, workers
from keepad.scale.plan import Request, open_plan
from keepad.scale.run import DetectorOptions, Job, ScoreSummary, score
from keepad.scale.shards import COLUMNS
from keepad.scale.workers import Pool


def scored(options: DetectorOptions, job: Job) -> ScoreSummary:
    return score(options, job, lambda line: None, no_progress)


def rows(folder: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for part in sorted(folder.glob("part-*")):
        if part.suffix == ".parquet":
            found += pytest.importorskip("pyarrow.parquet").read_table(part).to_pylist()
        else:
            found += [json.loads(line) for line in part.read_text().splitlines()]
    return found


def same(one: Sequence[dict[str, Any]], other: Sequence[dict[str, Any]]) -> bool:
    """Whether rows are equal but for the time that they took."""
    return [{**row, "ms": 0} for row in one] == [{**row, "ms": 0} for row in other]


@pytest.mark.parametrize(("format_", "batch"), [("parquet", 1), ("jsonl", 3)])
def test_the_rows_are_those_of_predict(
    photos: Path, tmp_path: Path, tiny_options: DetectorOptions, format_: str, batch: int
) -> None:
    out = tmp_path / "out"
    summary = scored(tiny_options, Job(str(photos), str(out), format=format_, shard=4, batch_size=batch))
    assert (summary.images, summary.errors, summary.before) == (9, 1, 0)
    found = rows(out)
    assert len(list(out.glob("part-*"))) == 3
    assert all(list(row) == list(COLUMNS) for row in found)
    errors = dict[str, str]()
    detector = tiny_options.open()
    predicted = {
        str(prediction.path): prediction
        for prediction in detector.predict(
            find_images(photos), batch_size=batch, on_error=lambda path, error: errors.update({str(path): str(error)})
        )
    }
    assert {row["uri"] for row in found} == predicted.keys() | errors.keys()
    for row in found:
        if row["uri"] in errors:
            assert row["error"] == errors[row["uri"]]
            assert row["score"] is row["keep"] is row["ms"] is None
        else:
            # Batches of other images round differently.
            assert row["score"] == pytest.approx(predicted[row["uri"]].pred_score, abs=0 if batch == 1 else 1e-5)
            assert row["keep"] == predicted[row["uri"]].keep_final
            assert row["ms"] > 0


def test_a_run_that_is_killed_goes_on_with_what_is_missing(
    photos: Path, tmp_path: Path, tiny_options: DetectorOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = Job(str(photos), str(tmp_path / "whole"), shard=2, maps=True)
    scored(tiny_options, job)
    broken = Job(str(photos), str(tmp_path / "out"), shard=2, maps=True)
    write, calls = storage.write_bytes, list[str]()

    def dying(uri: str, content: bytes) -> None:
        calls.append(uri)
        if len(calls) == 6:
            Path(uri).parent.mkdir(parents=True, exist_ok=True)
            Path(f"{uri}.abc.part").write_bytes(content[:10])
            raise KeyboardInterrupt
        write(uri, content)

    monkeypatch.setattr(shards, "write_bytes", dying)
    assert scored(tiny_options, broken).interrupted
    monkeypatch.setattr(shards, "write_bytes", write)
    (photos / "part0" / "late.png").write_bytes((photos / "part0" / "0.png").read_bytes())  # the plan is fixed
    summary = scored(tiny_options, broken)
    assert summary.before > 0
    assert summary.images + summary.before == 9
    assert same(rows(tmp_path / "out"), rows(tmp_path / "whole"))
    assert not list((tmp_path / "out").rglob("*.part"))
    assert not list((tmp_path / "out").glob(".keepad.lock"))
    maps = sorted((tmp_path / "out" / "maps").rglob("*.png"))
    assert len(maps) == 8
    assert np.asarray(Image.open(maps[0])).dtype == np.uint16
    assert scored(tiny_options, broken).images == 0


def test_maps_are_those_of_predict(photos: Path, tmp_path: Path, tiny_options: DetectorOptions) -> None:
    prediction = tiny_options.open()(photos / "part0" / "0.png")
    with Image.open(BytesIO(shards.encoded_map(prediction.anomaly_map))) as opened:
        read = np.asarray(opened)
    assert np.abs(read / 65535 - prediction.anomaly_map).max() <= 0.5 / 65535 + 1e-7


def _start_dying(pool: Pool) -> None:
    """Kills the worker at the sixth message of all."""
    hear, heard = pool._hear, list[int]()

    def killing(worker: Any, *rest: Any) -> None:
        heard.append(1)
        if len(heard) == 6:
            os.kill(worker.process.pid, signal.SIGKILL)
            worker.process.join()
        hear(worker, *rest)

    pool.__dict__["_hear"] = killing


def test_workers_that_are_killed_are_replaced(
    photos: Path, tmp_path: Path, exported_options: DetectorOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Pool.run

    def running(self: Pool, *arguments: Any) -> None:
        _start_dying(self)
        run(self, *arguments)

    monkeypatch.setattr(Pool, "run", running)
    out = tmp_path / "out"
    summary = scored(exported_options, Job(str(photos), str(out), shard=3, workers=2))
    assert (summary.images, summary.errors) == (9, 1)
    scored(exported_options, Job(str(photos), str(tmp_path / "alone"), shard=3))
    assert same(rows(out), rows(tmp_path / "alone"))


def test_an_image_that_kills_every_worker_is_an_error(
    photos: Path, tmp_path: Path, tiny_options: DetectorOptions
) -> None:
    plan = open_plan(str(tmp_path / "out"), Request(str(photos), "0" * 16, "jsonl", 4), lambda line: None)
    closed: Any = _Closed()
    pool, worker = Pool(plan, tiny_options.open, 1), workers._Worker(_Dead(), closed, shard=1, image=2)
    for _ in range(3):
        waiting = list[int]()
        pool._bury(worker, waiting)
        assert waiting == [1]
    assert pool._deadly == {1: [2]}
    shard = plan.shard(1)
    images, errors = shards.score_shard(tiny_options.open(), shard, "m", deadly=pool._deadly[1])
    assert (images, errors) >= (4, 1)
    assert "ended every process that tried it" in rows(tmp_path / "out")[2]["error"]
    worker.image = -1
    pool._bury(worker, [])
    pool._bury(worker, [])
    with pytest.raises(KeepADError, match="lower --workers"):
        pool._bury(worker, [])


class _Dead:
    exitcode = -9

    def join(self) -> None:
        pass


class _Closed:
    def close(self) -> None:
        pass


def test_shards_in_a_bucket(photos: Path, tiny_options: DetectorOptions, tmp_path: Path) -> None:
    system = pytest.importorskip("fsspec").filesystem("memory")
    for path in find_images(photos):
        system.pipe_file(f"/in/{path.name}", path.read_bytes())
    job = Job("memory://in", "memory://out/run", shard=5, format="jsonl")
    assert scored(tiny_options, job).images == 9
    assert scored(tiny_options, job).before == 9
    text = (
        system.cat_file("/out/run/part-000000.jsonl").decode() + system.cat_file("/out/run/part-000001.jsonl").decode()
    )
    found = [json.loads(line) for line in text.splitlines()]
    scored(tiny_options, Job(str(photos), str(tmp_path / "out"), format="jsonl"))
    by_name = {Path(row["uri"]).name: row["score"] for row in rows(tmp_path / "out")}
    assert {row["uri"].rpartition("/")[2]: row["score"] for row in found} == by_name


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"on": "moon"}, "local or ray"),
        ({"workers": 0}, "at least one worker"),
        ({"format": "xml"}, "parquet or jsonl"),
        ({"shard": 0}, "at least one image"),
        ({"source": "nowhere"}, "There is no"),
    ],
)
def test_wrong_options_are_a_sentence(
    photos: Path, tmp_path: Path, tiny_options: DetectorOptions, changes: dict[str, Any], words: str
) -> None:
    fields = {"source": str(photos), "to": str(tmp_path / "out"), **changes}
    with pytest.raises(KeepADError, match=words):
        scored(tiny_options, Job(**fields))


def test_a_folder_takes_one_run(photos: Path, tmp_path: Path, tiny_options: DetectorOptions) -> None:
    out = str(tmp_path / "out")
    scored(tiny_options, Job(str(photos), out, shard=5))
    with pytest.raises(KeepADError, match="another shard size"):
        scored(tiny_options, Job(str(photos), out, shard=4))
    with pytest.raises(KeepADError, match="another model or profile"):
        scored(DetectorOptions(point="dense"), Job(str(photos), out, shard=5))
    (tmp_path / "out" / "_keepad" / "run.json").write_text("[" * 100_000)
    with pytest.raises(KeepADError, match="is damaged"):
        scored(tiny_options, Job(str(photos), out, shard=5))
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "part-000000.parquet").write_bytes(b"")
    with pytest.raises(KeepADError, match="something else"):
        scored(tiny_options, Job(str(photos), str(tmp_path / "other")))
