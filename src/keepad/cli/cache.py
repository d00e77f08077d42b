"""keepad cache: what the feature cache holds, and emptying it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def cache(
    clear: Annotated[bool, typer.Option("--clear", help="Drop all features; training computes them again.")] = False,
    folder: Annotated[
        Path | None, typer.Option("--cache", metavar="DIR", help="Another folder of features; yours if left out.")
    ] = None,
) -> None:
    """Say where features for training are kept and how large they are, or drop them."""
    from keepad.console import stdout
    from keepad.data.listing import counted
    from keepad.training.feature_cache import clear as drop
    from keepad.training.feature_cache import features_folder, size_of

    folder = folder or features_folder()
    size = drop(folder) if clear else size_of(folder)
    amount = f"{counted(size.pictures, 'picture')}, {size.bytes / 1e9:.2f} GB"
    # Whoever reads a path wants to copy it whole.
    stdout.print(
        f"Dropped from {folder}: {amount}" if clear else f"Features in {folder}: {amount}",
        soft_wrap=True,
        markup=False,
        highlight=False,
    )
