"""Measurements are keyed by the code that made them: by what it does, not by how it is laid out."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import keepad
from keepad.errors import KeepADError
from keepad.evaluate import Options, evaluate
from keepad.evaluate import fingerprint as module
from keepad.evaluate.fingerprint import MEASURED_BY, code_digest

PACKAGE = Path(keepad.__file__).parent


@pytest.fixture
def package(tmp_path):
    """The files of the package, with one line of code in each, which a test may change."""
    for file in PACKAGE.rglob("*.py"):
        copy = tmp_path / "keepad" / file.relative_to(PACKAGE)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_text('"""A docstring."""\n\nVALUE = 1\n')
    return tmp_path / "keepad"


def digest_of(package):
    code_digest.cache_clear()
    return code_digest(package)


def test_the_code_counts_and_not_the_folder_it_is_in(tmp_path):
    copy = shutil.copytree(PACKAGE, tmp_path / "keepad", ignore=lambda *_: {"__pycache__", "checkpoints", "assets"})
    assert digest_of(copy) == digest_of(PACKAGE)


@pytest.mark.parametrize("name", MEASURED_BY)
def test_every_module_that_measures_is_there_and_counts(package, name):
    before, folder = digest_of(package), package / name
    file = max(folder.rglob("*.py")) if folder.is_dir() else folder.with_suffix(".py")
    file.write_text(file.read_text() + "NEW = 1\n")
    assert digest_of(package) != before


@pytest.mark.parametrize("name", ["cli/evaluate.py", "output/drawing.py", "evaluate/markdown.py", "console.py"])
def test_what_only_shows_numbers_does_not_count(package, name):
    before, file = digest_of(package), package / name
    file.write_text(file.read_text() + "NEW = 1\n")
    assert digest_of(package) == before


def test_comments_docstrings_and_layout_do_not_count(package):
    before, file = digest_of(package), package / "scoring.py"
    file.write_text('"""Another docstring."""\nVALUE   =   1  # a comment\n\n')
    assert digest_of(package) == before
    file.write_text('"""Another docstring."""\nVALUE = 2\n')
    assert digest_of(package) != before


def test_state_of_other_code_is_refused(detector, dataset, tmp_path, monkeypatch):
    evaluate(detector, dataset, ["dense"], tmp_path / "out", Options(limit=1))
    monkeypatch.setattr(module, "code_digest", lambda package: "other")
    with pytest.raises(KeepADError, match="with other code of KeepAD; choose another folder, or start over"):
        evaluate(detector, dataset, ["dense"], tmp_path / "out", Options(limit=1))
