"""Leaves out the tests of the real images where ../shared/data is missing; KEEPAD_TEST_DATA=required forbids that."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from left_out import leave_out, refuse

FOLDER = Path(__file__).resolve().parents[2] / "shared" / "data"


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of the real images; tests that use it do not run without them."""
    return FOLDER


@pytest.hookimpl(trylast=True)  # after -m and -k, so that only tests that would have run count
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if (FOLDER / "index.csv").is_file():
        return
    shared = [item for item in items if item.get_closest_marker("shared") or "shared_data" in _fixtures(item)]
    if not shared:
        return
    if os.environ.get("KEEPAD_TEST_DATA") == "required":
        refuse(
            config,
            items,
            f"KEEPAD_TEST_DATA=required, but ../shared/data/index.csv, which {len(shared)} tests need, is missing; "
            "put the images there or unset the variable.",
        )
        return
    leave_out(config, items, shared, "they need the real images in ../shared/data")


def _fixtures(item: pytest.Item) -> list[str]:
    return getattr(item, "fixturenames", [])
