"""What a reproduction runs on, and its two transfer directions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from keepad.console import Progress, Say
from keepad.data import Dataset
from keepad.errors import KeepADError

FIRST, SECOND = "first", "second"
SEEDS = (42, 43, 44)


@dataclass(frozen=True)
class Settings:
    """Options of `keepad reproduce`.

    Attributes:
        dataset: All images.
        source: Suites that the first direction is trained on and the second is tested on.
        target: The other way round.
        out: Folder for the page, checkpoints and states.
        recipe: "paper" or "keepad".
        tables: Names of tables and figures.
        backbone: Name of the backbone.
        weights: File with its weights, or None.
        image_size: Height and width of the input; the backbone's own if None.
        chosen: Directions that are run, "first", "second" or both.
        checkpoints: Existing checkpoints of the two directions by name of direction; trained where missing.
        train: Train what is missing; else tables that need it say so.
        time: Time the rows of tables that have a speed.
        seeds: Seeds of the table of seeds.
        limit: Largest number of images per class that are evaluated.
        quick: One epoch on few images: a test of the path, not a result.
        cache: Folder of the feature cache.
        cache_limit: Bytes that it may hold.
        batch: Images in one forward pass.
        command: Words of the command.
        say: Called with one line per step.
        progress: Progress bar.
    """

    dataset: Dataset
    source: tuple[str, ...]
    target: tuple[str, ...]
    out: Path
    recipe: str
    tables: tuple[str, ...]
    backbone: str
    weights: Path | None
    image_size: tuple[int, int] | None
    chosen: tuple[str, ...]
    checkpoints: dict[str, str]
    train: bool
    time: bool
    seeds: tuple[int, ...]
    limit: int | None
    quick: bool
    cache: Path | None
    cache_limit: int
    batch: int
    command: Sequence[str]
    say: Say
    progress: Progress

    def directions(self) -> list[Direction]:
        """Source to target, and back, as far as they are chosen.

        Further suites are tested with the checkpoint of the second, as in the paper.
        """
        known = set(self.dataset.suites)
        for suite in (*self.source, *self.target):
            if suite not in known:
                raise KeepADError(
                    f"there is no suite called {suite!r} in '{self.dataset.root}'; it has {', '.join(sorted(known))}."
                )
        if set(self.source) & set(self.target):
            raise KeepADError("source and target share a suite; a detector must not be tested on what it has seen.")
        others = tuple(s for s in self.dataset.suites if s not in {*self.source, *self.target})
        both = Direction(FIRST, self.source, self.target, ()), Direction(SECOND, self.target, self.source, others)
        if not self.chosen or not {*self.chosen} <= {FIRST, SECOND}:
            raise KeepADError(f"directions are {FIRST} and {SECOND}, not {', '.join(self.chosen) or 'none'}.")
        return [direction for direction in both if direction.name in self.chosen]


@dataclass(frozen=True)
class Direction:
    """One transfer: suites of training, suites of the test, and further suites that are tested."""

    name: str
    source: tuple[str, ...]
    targets: tuple[str, ...]
    others: tuple[str, ...]

    @property
    def title(self) -> str:
        return f"{', '.join(self.source)} → {', '.join(self.targets)}"
