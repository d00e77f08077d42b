"""Whether `torch.compile` pays: `python benchmarks/compiled.py --out compiled`.

Blocks 1 to 3 of the default backbone on all tokens, 4 and 5 on what the shallow router leaves at prune70 and 6 to 9 on
what the deep one leaves, as they are and compiled for any number of tokens. Numbers of tokens differ from image to
image, so every one is drawn anew; both sides take turns. Graphs that had to be made again are counted.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from keepad.backbone import Backbone
from keepad.console import command_line
from keepad.loading import load

STAGES = {"before": (1, 3, 1369, 1), "between": (4, 5, 411, 40), "after": (6, 9, 240, 40)}  # tokens, and their spread


class Blocks(torch.nn.Module):
    """Some blocks of a backbone on the live tokens of one image.

    Args:
        backbone: The backbone.
        first: First block.
        last: Last block.
        grid: Rows and columns of the patch grid.
    """

    def __init__(self, backbone: Backbone, first: int, last: int, grid: tuple[int, int]) -> None:
        super().__init__()
        self.backbone, self.first, self.last, self.grid = backbone, first, last, grid

    def forward(self, x: Tensor, index: Tensor) -> Tensor:
        return self.backbone.run(self.backbone.tokens_at(x, index, self.grid), self.first, self.last).x


@torch.inference_mode()
def compared(blocks: Blocks, tokens: int, spread: int, rounds: int) -> dict[str, Any]:
    """Median milliseconds of both, their ratio, what the first call costs, and graphs made after it."""
    from torch._dynamo.utils import counters

    torch.compiler.reset()
    counters.clear()
    compiled = torch.compile(blocks, dynamic=True)
    draw = np.random.default_rng(0)

    def given() -> tuple[Tensor, Tensor]:
        count = tokens - int(draw.integers(0, spread))
        return torch.randn(count + blocks.backbone.prefix, blocks.backbone.width), torch.arange(count)

    started = time.perf_counter()
    compiled(*given())
    first = time.perf_counter() - started
    graphs = counters["stats"]["unique_graphs"]
    seconds: dict[str, list[float]] = {"eager": [], "compiled": []}
    worst = 0.0
    for number in range(rounds + 3):
        fed, made = given(), {}
        for name, function in (("eager", blocks), ("compiled", compiled)):
            started = time.perf_counter()
            made[name] = function(*fed)
            if number >= 3:
                seconds[name].append(time.perf_counter() - started)
        worst = max(worst, float((made["eager"] - made["compiled"]).abs().max()))
    eager, other = (float(np.median(found)) * 1e3 for found in seconds.values())
    return {
        "tokens": tokens,
        "eager_ms": eager,
        "compiled_ms": other,
        "ratio": eager / other,
        "first_call_s": first,
        "graphs_made_again": counters["stats"]["unique_graphs"] - graphs,
        "largest_difference": worst,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("--out", type=Path, required=True, help="results are written to OUT.json and OUT.md")
    parser.add_argument("--rounds", type=int, default=20)
    args = parser.parse_args()
    model = load(device="cpu")
    found = {
        name: compared(Blocks(model.backbone, first, last, model.grid), tokens, spread, args.rounds)
        for name, (first, last, tokens, spread) in STAGES.items()
    }
    command = command_line(["python", *sys.argv])
    content = {"command": command, "torch": torch.__version__, "threads": torch.get_num_threads(), "stages": found}
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.with_suffix(".json").write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    lines = [
        f"Made by `{command}`; torch {torch.__version__}, {torch.get_num_threads()} threads, medians of {args.rounds} "
        "rounds in turns.",
        "",
        "| blocks | tokens | eager ms | compiled ms | times faster | first call s | graphs made again |",
        f"|{'---|' * 7}",
    ]
    for name, one in found.items():
        lines.append(
            f"| {name} | {one['tokens']} | {one['eager_ms']:.1f} | {one['compiled_ms']:.1f} | {one['ratio']:.2f} "
            f"| {one['first_call_s']:.0f} | {one['graphs_made_again']} |"
        )
    args.out.with_suffix(".md").write_text("\n".join(lines) + "\n", encoding="utf-8")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
