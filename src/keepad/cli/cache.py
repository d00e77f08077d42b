"""keepad cache: size of the feature cache, and emptying it."""

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
    """Print folder and size of the feature cache, or empty it."""
    from keepad.console import stdout
    from keepad.data.listing import counted
    from keepad.training.feature_cache import clear as drop
    from keepad.training.feature_cache import features_folder, size_of

    folder = folder or features_folder()
    size = drop(folder) if clear else size_of(folder)
    amount = f"{counted(size.images, 'image')}, {size.bytes / 1e9:.2f} GB"
    # No wrapping, so that the path can be copied.
    stdout.print(
        f"Dropped from {folder}: {amount}" if clear else f"Features in {folder}: {amount}",
        soft_wrap=True,
        markup=False,
        highlight=False,
    )
