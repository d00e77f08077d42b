"""Shared by the tests of studies: small suites on disk, tiny models for checkpoints, and studies run as commands."""

from __future__ import annotations

import copy
import runpy
import sys

import pytest

from evaluate_trees import draw_suites
from keepad.detector import Detector


@pytest.fixture
def detector(make_tiny):
    """A detector on a tiny random network."""
    return Detector(make_tiny())


@pytest.fixture
def models(detector, monkeypatch):
    """Tiny models, by name, that `load` opens: p2b was trained on parts, b2p on brainmri."""
    opened = {}
    for name, suite in (("p2b", "parts"), ("b2p", "brainmri")):
        opened[name] = copy.deepcopy(detector)
        opened[name].network.name, opened[name].network.provenance = name, {"data": [{"suite": suite}]}

    monkeypatch.setattr("keepad.loading.load", lambda what=None, **_: opened[what])
    return opened


@pytest.fixture
def study(monkeypatch, tmp_path):
    """Runs a study as `python -m keepad.studies.NAME` does, on small suites; the folder that it wrote."""
    data, out = draw_suites(tmp_path / "data"), tmp_path / "out"

    def run(name, *arguments, to=out):
        monkeypatch.setattr(sys, "argv", [name, "--data", str(data), "--out", str(to), *arguments])
        for module in (f"keepad.studies.{name}", "keepad.studies.command"):  # so that they import what was patched
            monkeypatch.delitem(sys.modules, module, raising=False)
        runpy.run_module(f"keepad.studies.{name}", run_name="__main__", alter_sys=True)
        return to

    return run
