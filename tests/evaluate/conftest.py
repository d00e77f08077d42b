"""What the tests of an evaluation share: small data sets, and a network that does not wait for threads."""

from __future__ import annotations

import pytest
import torch
from evaluate_trees import draw_suites

from keepad.data import read_dataset


@pytest.fixture(scope="module", name="one_thread")
def _one_thread():
    """On so small a network, threads wait for each other longer than they work."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def folder(tmp_path):
    """Images that a test may change."""
    return draw_suites(tmp_path / "images")


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    """The same images for all tests."""
    return read_dataset(draw_suites(tmp_path_factory.mktemp("data") / "images"))
