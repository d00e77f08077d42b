"""Order of the timed passes: variants alternate, and the first one rotates."""

from __future__ import annotations

from dataclasses import dataclass

TURN = 4  # batches in a row per turn


@dataclass(frozen=True)
class Turn:
    """Consecutive passes of one variant: index of the repeat, of the batches and of the variant."""

    repeat: int
    batches: tuple[int, ...]
    variant: int


def schedule(variants: int, repeats: int, batches: int) -> list[Turn]:
    """All turns in order; every variant has a few batches in a row, and the variant that begins rotates."""
    groups = [tuple(range(first, min(first + TURN, batches))) for first in range(0, batches, TURN)]
    return [
        Turn(repeat, group, (repeat * len(groups) + number + offset) % variants)
        for repeat in range(repeats)
        for number, group in enumerate(groups)
        for offset in range(variants)
    ]
