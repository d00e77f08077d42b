"""A client of a service under test, images to send it, and ways to make its worker stand still."""

from __future__ import annotations

import io
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from PIL import Image
from starlette.testclient import TestClient

from keepad.arrays import Array
from keepad.serve.app import create_app
from keepad.serve.service import Service

OWN = "http://127.0.0.1:8000"


@contextmanager
def open_client(service: Service, headers: dict[str, str] | None = None) -> Iterator[TestClient]:
    """A client of a service, whose errors are answers."""
    with TestClient(create_app(service), OWN, raise_server_exceptions=False, headers=headers) as client:
        yield client


def pixels(seed: int, size: tuple[int, int] = (60, 70)) -> Array:
    """(H, W, 3) uint8: grey with noise, and a red spot in every third one."""
    generator = np.random.default_rng(seed)
    values = np.full((*size, 3), 120.0) + generator.normal(0, 5, (*size, 3))
    if seed % 3 == 2:
        values[20:36, 20:40] = (250, 0, 0)
    return values.clip(0, 255).astype(np.uint8)


def picture(seed: int = 0, size: tuple[int, int] = (60, 70), kind: str = "PNG") -> bytes:
    """An image file."""
    stream = io.BytesIO()
    Image.fromarray(pixels(seed, size)).save(stream, kind)
    return stream.getvalue()


def form(*files: tuple[str, bytes]) -> list[tuple[str, tuple[str, bytes, str]]]:
    """A multipart form with images."""
    return [("images", (name, data, "image/png")) for name, data in files]


def scores(answer: dict[str, Any]) -> list[float]:
    return [result["pred_score"] for result in answer["results"]]


@contextmanager
def blocked(service: Service) -> Iterator[threading.Event]:
    """A service whose worker stands still until the event is set, or the block ends."""
    free, reached = threading.Event(), threading.Event()

    def wait() -> None:
        reached.set()
        free.wait(20)

    service.worker.run(wait)
    reached.wait(20)
    try:
        yield free
    finally:
        free.set()


def wait_for(condition: Callable[[], bool], seconds: float = 20) -> None:
    """Return once the condition holds; fail if it never does."""
    waited = threading.Event()
    for _ in range(int(seconds / 0.01)):
        if condition():
            return
        waited.wait(0.01)
    raise AssertionError("this never came true")


class Process:
    """`keepad serve` in a process of its own, on a free port of this machine.

    Args:
        options: Further options of the command.
    """

    def __init__(self, *options: str) -> None:
        words = [sys.executable, "-m", "keepad", "serve", "--port", "0", *options]
        self._process = subprocess.Popen(words, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
        self.said: list[str] = []
        assert self._process.stderr is not None
        for line in self._process.stderr:
            self.said.append(line)
            if line.startswith("listening on "):
                self.address = line.split()[2].rstrip("/")
                return
        raise AssertionError(f"the service did not start: {''.join(self.said)}")

    @property
    def port(self) -> int:
        return int(self.address.rpartition(":")[2])

    def terminate(self) -> None:
        """Tell it to stop, as systemd and Kubernetes do."""
        self._process.send_signal(signal.SIGTERM)

    def wait(self, seconds: float = 30) -> int:
        """Exit code; fails if it goes on for longer."""
        return self._process.wait(seconds)

    def close(self) -> str:
        """End it, whatever it does; what it said on standard error beyond the first lines."""
        if self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(30)
            except subprocess.TimeoutExpired:
                self._process.kill()
        assert self._process.stderr is not None
        with self._process.stderr as rest:
            return rest.read()
