"""Tests of the real images: left out with one line where the images are missing, refused where they are required."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = """
import pytest

def test_plain(): pass

@pytest.mark.shared
def test_marked(): pass

def test_fixture(shared_data): assert (shared_data / "index.csv").is_file()
"""
LINE = "2 tests left out: they need the real images in ../shared/data"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project with three small tests and the plugin under test, nothing beside it."""
    tests = tmp_path / "project" / "tests"
    tests.mkdir(parents=True)
    for plugin in ("left_out.py", "shared_data.py"):
        shutil.copy(Path(__file__).with_name(plugin), tests)
    (tests / "conftest.py").write_text('pytest_plugins = ["left_out", "shared_data"]\n')
    (tests / "test_small.py").write_text(TESTS)
    (tests.parent / "pytest.ini").write_text("[pytest]\nmarkers = shared\naddopts = -q -p no:cacheprovider\n")
    return tests.parent


def run(project: Path, *arguments: str, required: bool = False) -> tuple[int, str]:
    """Exit code and output of pytest in that project."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST", "KEEPAD"))}
    if required:
        environment["KEEPAD_TEST_DATA"] = "required"
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *arguments],
        cwd=project,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


def add_images(project: Path) -> None:
    folder = project.parent / "shared" / "data"
    folder.mkdir(parents=True)
    (folder / "index.csv").touch()


@pytest.mark.parametrize("arguments", [(), ("-q",), ("-n", "2")])
def test_without_images_one_line_says_how_many_tests_are_left_out(project: Path, arguments: tuple[str, ...]) -> None:
    code, output = run(project, *arguments)
    assert code == 0
    assert output.splitlines().count(LINE) == 1
    if not arguments:
        assert "1 passed, 2 deselected" in output


@pytest.mark.parametrize("required", [False, True])
def test_with_images_every_test_runs(project: Path, required: bool) -> None:
    add_images(project)
    code, output = run(project, required=required)
    assert code == 0
    assert "3 passed" in output
    assert "left out" not in output


@pytest.mark.parametrize("arguments", [(), ("-n", "2")])
def test_required_images_that_are_missing_fail_the_run_with_one_sentence(
    project: Path, arguments: tuple[str, ...]
) -> None:
    code, output = run(project, *arguments, required=True)
    assert code != 0
    assert output.count("KEEPAD_TEST_DATA=required, but ../shared/data/index.csv, which 2 tests need, is missing") == 1
    assert "passed" not in output
    assert "Traceback" not in output


def test_tests_that_were_not_selected_are_not_missed(project: Path) -> None:
    code, output = run(project, "-k", "plain", required=True)
    assert code == 0
    assert "left out" not in output
