"""Fixtures of the watch: a webhook, a broker and a detector."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from keepad.detector import Detector
from keepad.network import Network
from receivers import Broker, Receiver


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    made = Receiver()
    yield made
    made.close()


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    program = shutil.which("mosquitto") or shutil.which("mosquitto", path="/usr/sbin")
    if program is None:
        if os.environ.get("KEEPAD_TEST_DATA") == "required":
            pytest.fail("mosquitto is not installed; apt-get install mosquitto brings it")
        pytest.skip("mosquitto is not installed")
    made = Broker(program, tmp_path)
    yield made
    made.stop()


@pytest.fixture
def detector(tiny: Network) -> Detector:
    return Detector(tiny, point="prune70")
