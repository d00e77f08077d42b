"""Shared by the tests of evaluations: small data sets, a tiny detector, and a network on one thread."""

from __future__ import annotations

import pytest
import torch

from evaluate_trees import draw_suites
from keepad.data import read_dataset
from keepad.detector import Detector


@pytest.fixture(scope="module", name="one_thread")
def _one_thread():
    """On so small a network, threads cost more than they gain."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def detector(make_tiny):
    """A detector on a tiny random network; a copy for each module of tests."""
    return Detector(make_tiny())


@pytest.fixture
def folder(tmp_path):
    """Images that a test may change."""
    return draw_suites(tmp_path / "images")


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    """The same images for all tests."""
    return read_dataset(draw_suites(tmp_path_factory.mktemp("data") / "images"))
