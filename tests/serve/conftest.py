"""A service on the small random network, and a client that talks to it as one on the same machine would."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from starlette.testclient import TestClient

from keepad.detector import Detector
from keepad.network import Network
from keepad.serve.service import Service
from keepad.serve.settings import Limits, ServeSettings
from serving import open_client


@pytest.fixture(scope="session")
def detector(make_tiny: Callable[[], Network]) -> Detector:
    """The network at prune50, with a threshold about half of the images reach; nobody changes it."""
    detector = Detector(make_tiny(), "prune50")
    detector.set_threshold(0.5)
    return detector


@pytest.fixture(scope="session")
def client(detector: Detector) -> Iterator[TestClient]:
    """A client of a service that many tests share."""
    with open_client(Service(detector, ServeSettings(), lambda line: None)) as opened:
        yield opened


@pytest.fixture
def make_service(detector: Detector) -> Iterator[Callable[..., Service]]:
    """Makes services, which end with the test."""
    made: list[Service] = []

    def make(limits: Limits | None = None, token: str | None = None, **more: Any) -> Service:
        settings = ServeSettings(token=token, limits=limits or Limits(seconds=20))
        made.append(Service(detector, settings, lambda line: None, **more))
        return made[-1]

    yield make
    for service in made:
        service.close()
