"""keepad watch and keepad score as they are typed: files, sentences and exit codes."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from keepad import loading
from keepad.cli import app
from keepad.detector import Detector
from keepad.errors import KeepADError
from keepad.network import Network
from keepad.scale import run
from keepad.scale.run import DetectorOptions, Job, ScoreSummary
from receivers import png


@pytest.fixture
def photos(tmp_path: Path, tiny: Network, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Three images, one of them broken, and the small random network in place of the checkpoint."""
    monkeypatch.setattr(loading, "load", lambda what=None, *, point="prune50", **_: Detector(tiny, point=point))
    (tmp_path / "photos").mkdir()
    for number in range(3):
        (tmp_path / "photos" / f"{number}.png").write_bytes(png(number)[: 100 if number == 2 else None])
    return tmp_path / "photos"


def test_watch_prints_results_and_ends_when_nothing_comes(photos: Path, tmp_path: Path) -> None:
    options = ["--journal", str(tmp_path / "j.sqlite"), "--idle", "0.2", "--settle", "0", "--unreadable", "0"]
    result = CliRunner().invoke(app, ["watch", str(photos), "--threshold", "0.5", *options])
    assert result.exit_code == 0, result.output
    rows = [json.loads(line) for line in result.stdout.splitlines() if line.startswith("{")]
    assert [Path(row["uri"]).name for row in rows] == ["0.png", "1.png", "2.png"]
    assert [row["error"] is None for row in rows] == [True, True, False]
    again = CliRunner().invoke(app, ["watch", str(photos), *options])
    assert [line for line in again.stdout.splitlines() if line.startswith("{")] == []
    with pytest.raises(KeepADError, match="cannot go to"):
        CliRunner().invoke(app, ["watch", str(photos), "--to", "nowhere"], catch_exceptions=False)


def test_score_writes_shards_and_exits_with_1_for_errors(photos: Path, tmp_path: Path) -> None:
    words = ["score", str(photos), "--to", str(tmp_path / "out"), "--format", "jsonl", "--shard", "2", "-p", "dense"]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 1, result.output
    assert "scored: 3 images, 1 of them errors" in result.stdout
    assert sorted(path.name for path in (tmp_path / "out").glob("part-*")) == ["part-000000.jsonl", "part-000001.jsonl"]
    assert "3 were there" in CliRunner().invoke(app, words).stdout


_SIGNALLED = """
import os, signal, sys
from keepad.watch.session import stopping_on_signals

number = signal.Signals(int(sys.argv[1]))
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell in the background has it ignored
with stopping_on_signals() as stop:
    os.kill(os.getpid(), number)
    assert stop.wait(5)
    print("asked", flush=True)
    os.kill(os.getpid(), number)
    stop.clear()
    stop.wait(5)
print("still there")
"""


def test_engine_ray_means_on_ray(photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[DetectorOptions, Job]] = []

    def score(options: DetectorOptions, job: Job, *_: object) -> ScoreSummary:
        asked.append((options, job))
        return ScoreSummary()

    monkeypatch.setattr(run, "score", score)
    words = ["score", str(photos), "--to", str(tmp_path / "out"), "--engine", "ray", "--workers", "2"]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 0, result.output
    ((options, job),) = asked
    assert (options.engine, job.on, job.workers) == ("auto", "ray", 2)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_first_signal_asks_and_the_second_ends(number: signal.Signals) -> None:
    # In a process of its own: the second signal ends it, and other tests may have changed handlers of this one.
    result = subprocess.run([sys.executable, "-c", _SIGNALLED, str(int(number))], capture_output=True, text=True)
    assert result.stdout == "asked\n"
    assert result.returncode == -number
