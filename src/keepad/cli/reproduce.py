"""keepad reproduce: the paper's tables and figures in one command."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from keepad.cli.options import WeightsOption, parts_of


def reproduce(
    data: Annotated[
        Path, typer.Option("--data", "-d", help="A folder with a data set or with several, or an index file.")
    ],
    source: Annotated[str, typer.Option("--source", help="Suites of the first direction's training, with commas.")],
    target: Annotated[
        str, typer.Option("--target", help="Suites of its test; the second direction is the other way round.")
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder for the page, checkpoints and states.")],
    recipe: Annotated[str, typer.Option("--recipe", help="paper for the published form, keepad, or both.")] = "keepad",
    tables: Annotated[
        str | None, typer.Option("--tables", help="Only these tables and figures, with commas; all if left out.")
    ] = None,
    backbone: Annotated[
        str | None, typer.Option("--backbone", help="Name of the backbone; the default one if left out.")
    ] = None,
    weights: WeightsOption = None,
    image_size: Annotated[
        int | None, typer.Option("--image-size", min=1, help="Side of the input; the backbone's own if left out.")
    ] = None,
    first: Annotated[
        str | None, typer.Option("--first", help="Checkpoint of the first direction instead of a training.")
    ] = None,
    second: Annotated[
        str | None, typer.Option("--second", help="Checkpoint of the second direction instead of a training.")
    ] = None,
    directions: Annotated[
        str, typer.Option("--directions", help="first, second, or both with a comma: which transfers are run.")
    ] = "first,second",
    train: Annotated[
        bool, typer.Option("--train/--no-train", help="Train what is missing, or leave its rows out.")
    ] = True,
    timed: Annotated[
        bool, typer.Option("--time/--no-time", help="Time the variants, or leave speeds out, as on a busy machine.")
    ] = True,
    limit: Annotated[int | None, typer.Option("--limit", min=1, help="At most so many images per class.")] = None,
    batch: Annotated[int, typer.Option("--batch", "-b", min=1, help="Images in one forward pass.")] = 1,
    cache: Annotated[
        Path | None, typer.Option("--cache", help="Folder for features; the user's cache if left out.")
    ] = None,
    cache_limit: Annotated[float, typer.Option("--cache-limit", min=0, help="Gigabytes that it may hold.")] = 48,
    quick: Annotated[
        bool, typer.Option("--quick", help="One epoch, four images per class: shows that every table is made.")
    ] = False,
    plan: Annotated[bool, typer.Option("--plan", help="Say what would be done and what it costs, and stop.")] = False,
) -> None:
    """Make the paper's tables and figures on your data: train, evaluate, time, and write one page.

    Can be interrupted at any point: the same command goes on where it stopped.
    """
    from keepad.backbone import DEFAULT_BACKBONE
    from keepad.checkpoint import read_info
    from keepad.console import progress, stderr, stdout
    from keepad.data import read_dataset
    from keepad.errors import KeepADError
    from keepad.files import replace_text, writable_folder
    from keepad.loading import resolve_checkpoint
    from keepad.studies.reproduction.plan import costs, plan_lines
    from keepad.studies.reproduction.run import reproduce as run
    from keepad.studies.reproduction.settings import FIRST, SECOND, SEEDS, Settings
    from keepad.studies.reproduction.tables import chosen_tables
    from keepad.training.recipe import RECIPES

    if recipe not in (*RECIPES, "both"):
        raise KeepADError(f"there is no recipe called {recipe!r}; choose paper, keepad or both.")
    checkpoints = {name: path for name, path in ((FIRST, first), (SECOND, second)) if path is not None}
    if checkpoints and recipe == "both":
        raise KeepADError("--first and --second are of one recipe; name it with --recipe, and run the other one apart.")
    side = None if image_size is None else (image_size, image_size)
    if checkpoints:
        info = read_info(resolve_checkpoint(next(iter(checkpoints.values()))))
        backbone, side = backbone or info.backbone, side or info.image_size
    settings = Settings(
        dataset=read_dataset(data),
        source=tuple(parts_of(source)),
        target=tuple(parts_of(target)),
        out=out,
        recipe=recipe,
        tables=chosen_tables(parts_of(tables or "")),
        backbone=backbone or DEFAULT_BACKBONE,
        weights=weights,
        image_size=side,
        chosen=tuple(parts_of(directions)),
        checkpoints=checkpoints,
        train=train,
        time=timed,
        seeds=SEEDS[:2] if quick else SEEDS,
        limit=min(limit or 4, 4) if quick else limit,
        quick=quick,
        cache=cache,
        cache_limit=int(cache_limit * 1e9),
        batch=batch,
        command=sys.argv,
        say=lambda line: stderr.print(line, soft_wrap=True, markup=False, highlight=False),
        progress=progress,
    )
    writable_folder(out)
    recipes = [recipe] if recipe != "both" else list(RECIPES)
    runs = [replace(settings, recipe=name, out=out if len(recipes) == 1 else out / name) for name in recipes]
    for each in runs:
        for line in plan_lines(each, costs(each)):
            settings.say(f"{each.recipe}: {line}")
    if plan:
        return
    try:
        pages = [run(each) for each in runs]
    except KeyboardInterrupt:
        settings.say("interrupted: the same command goes on where it stopped.")
        raise typer.Exit(130) from None
    if len(pages) > 1:
        links = "\n".join(f"- [recipe {page.parent.name}]({page.parent.name}/index.md)" for page in pages)
        replace_text(out / "index.md", f"# The paper's tables and figures\n\n{links}\n")
        pages = [out / "index.md", *pages]
    for page in pages:
        stdout.print(str(page), soft_wrap=True, markup=False, highlight=False)
