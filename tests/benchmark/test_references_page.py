"""The page of benchmarks/references.py: which times are divided by which."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

BENCHMARK = runpy.run_path(str(Path(__file__).parents[2] / "benchmarks" / "references.py"))


def measured(cls: str, scale: float) -> dict[str, Any]:
    """A class whose runs take known times; every second image takes ten times as long."""
    ms = {"torch: prune70": 10.0, "torch: prune70 with references": 11.0, "torch: dense": 40.0}
    ms |= {"torch: dense with references": 55.0, "int8: prune70": 4.0, "int8: prune70 with references": 5.0}
    ms |= {"int8: dense": 20.0, "int8: dense with references": 30.0}
    runs = {
        name: {
            "ms": [[scale * value, 10 * scale * value]],
            "keep": 0.2,
            "bank": 400 if name.endswith("references") else None,
        }
        for name, value in ms.items()
    }
    return {"suite": "parts", "class": cls, "images": 2, "references": 16, "runs": runs}


def test_ratios_are_image_by_image_and_to_the_run_that_is_named() -> None:
    settings = {"command": "c", "model": "m", "cpu": "p", "cores": 2, "threads": 2, "load": 0.0}
    settings |= {"point": "prune70", "networks": ["torch", "int8"], "repeats": 1}
    page = BENCHMARK["to_markdown"]({"settings": settings, "classes": [measured("bolt", 1), measured("cap", 3)]})
    rows = {
        line.split("|")[1].strip(): [cell.strip() for cell in line.split("|")[2:-1]]
        for line in page.splitlines()[8:]
        if "|" in line
    }
    assert rows["torch: prune70 with references"][2:] == ["400", "1.10", "1.00"]
    assert rows["torch: dense with references"][3:] == ["1.38", "5.00"]
    assert rows["int8: prune70"][2:] == ["", "1.00", "0.80"]
    # With over without, dense over pruned with references, for each network; then dense in torch over pruned int8.
    assert rows["parts/cap"] == rows["all"] == ["1.10", "5.00", "1.25", "6.00", "11.00"]
