"""Which blocks of patches may share a token: patches and defect tokens that enter the first block.

    python -m keepad.studies.pixel_blocks --data ../shared/data --out docs/pixels/blocks.md

From pixels and masks alone, without a network.
"""

from __future__ import annotations

from argparse import ArgumentParser
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from keepad.backbone import DEFAULT_BACKBONE, build_backbone
from keepad.benchmark.flops import BackboneShape, backbone_flops, shape_of
from keepad.console import command_line, progress
from keepad.data import Sample, load_mask, read_dataset
from keepad.evaluate.markdown import table
from keepad.files import replace_text
from keepad.images import read_image, to_input
from keepad.metrics import Survival, defect_tokens
from keepad.presets import PIXELS, PixelBudget
from keepad.routing.pixel import route_pixels
from keepad.studies.command import run_study, study_command

BUDGETS = (
    PixelBudget(((2, 20),)),
    PixelBudget(((4, 24), (2, 20))),
    PixelBudget(((8, 24), (4, 24), (2, 20))),
    PixelBudget(((16, 24), (8, 24), (4, 24), (2, 20))),
    PixelBudget(((8, 32), (4, 24), (2, 20))),
    PixelBudget(((8, 24), (4, 24), (2, 24))),
)
COLUMNS = ("budget", "enter", "FLOPs", "defect tokens", "defects lost")


@dataclass(frozen=True)
class Input:
    """Input of the network: size and patch in pixels, and the sizes of its layers."""

    size: tuple[int, int]
    patch: tuple[int, int]
    shape: BackboneShape

    @property
    def grid(self) -> tuple[int, int]:
        return self.size[0] // self.patch[0], self.size[1] // self.patch[1]

    def flops(self, patches: int) -> int:
        """FLOPs of the patch embedding and the first block."""
        return sum(backbone_flops(self.shape, patches, [patches]))


def budget_rows(samples: Sequence[Sample], network_input: Input, title: str) -> list[list[str]]:
    """A row of `COLUMNS` for every budget, over the images of a suite."""
    entering = [list[int]() for _ in BUDGETS]
    survival = [Survival() for _ in BUDGETS]
    with progress(title, len(samples)) as advance:
        for sample in samples:
            pixels = to_input(read_image(sample.image), network_input.size)
            defect = None
            if sample.mask is not None:
                defect = defect_tokens(load_mask(sample, network_input.size), network_input.grid)
            for position, budget in enumerate(BUDGETS):
                index = route_pixels(pixels, network_input.patch, budget).index
                entering[position].append(len(index))
                if defect is not None:
                    survival[position].update(index, defect)
            advance()
    rows = []
    cells = network_input.grid[0] * network_input.grid[1]
    for budget, patches, survived in zip(BUDGETS, entering, survival, strict=True):
        name = ", ".join(f"{side}x{side}: {levels:g}" for side, levels in budget.blocks)
        flops = np.mean([network_input.flops(count) for count in patches]) / network_input.flops(cells)
        rate = survived.compute().overall
        retained = "–" if rate.dtr is None else f"{100 * rate.dtr:.2f} %"
        shares = [f"{100 * np.mean(patches) / cells:.1f} %", f"{100 * flops:.1f} %", retained, str(rate.missed)]
        rows.append([f"{name} (adopted)" if budget == PIXELS else name, *shares])
    return rows


def main() -> None:
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="a folder with all suites")
    parser.add_argument("--out", type=Path, required=True, help="page to write")
    args = parser.parse_args()
    backbone, spec = build_backbone(DEFAULT_BACKBONE, seed=0)
    network_input = Input(spec.image_size, backbone.patch, shape_of(backbone))
    blocks = [
        f"Made by `{command_line(study_command())}`; do not edit.",
        "# Which blocks of patches may share a token",
        "From pixels and masks alone. `enter`: patches that enter the first block; `FLOPs`: of that block and the "
        "patch embedding, against all patches; `defect tokens`: those that enter; `defects lost`: none of theirs does.",
    ]
    dataset = read_dataset(args.data).select(split="test")
    for suite in dataset.suites:
        samples = dataset.select(suites=suite).samples
        if any(sample.mask for sample in samples):
            rows = budget_rows(samples, network_input, suite)
            blocks += [f"## {suite}, {len(samples)} images", table(COLUMNS, rows)]
    replace_text(args.out, "\n\n".join(blocks) + "\n")


if __name__ == "__main__":
    run_study(main)
