"""The command that documents show."""

from __future__ import annotations

from keepad.console import command_line


def test_absolute_paths_lose_their_folders() -> None:
    words = ["/usr/bin/keepad", "evaluate", "--data=/data/data set", "--images", "/data/parts", "--out", "runs/a"]
    assert command_line(words) == "keepad evaluate '--data=data set' --images parts --out runs/a"
