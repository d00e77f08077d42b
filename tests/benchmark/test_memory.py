"""Peak memory of a pass."""

from __future__ import annotations

import pytest
import torch

from keepad.benchmark.memory import peak_of_tensors


def test_peak_is_what_is_held_at_once_not_in_sequence() -> None:
    def run() -> None:
        for _ in range(3):
            both = [torch.zeros(250_000), torch.zeros(250_000)]  # two megabytes
            del both

    run()
    assert peak_of_tensors(run) == pytest.approx(2.0, abs=0.01)
