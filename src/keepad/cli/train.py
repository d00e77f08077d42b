"""keepad train: make a checkpoint from labelled images."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from keepad.cli.options import WeightsOption, parts_of

app = typer.Typer(help="Train a detector on labelled images of other products.", no_args_is_help=True)


@app.callback()
def options() -> None:
    """Stages of training."""


@app.command()
def detector(
    data: Annotated[
        Path, typer.Option("--data", "-d", help="A folder with a data set or with several, or an index file.")
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help="The checkpoint to write, a .safetensors file.")],
    suites: Annotated[str | None, typer.Option("--suites", help="Only these suites, separated by commas.")] = None,
    classes: Annotated[str | None, typer.Option("--classes", help="Only these classes, separated by commas.")] = None,
    layout: Annotated[
        str | None, typer.Option("--layout", help="How the folder is arranged, if it is not recognised.")
    ] = None,
    backbone: Annotated[
        str | None, typer.Option("--backbone", help="Name of the backbone; the default one if left out.")
    ] = None,
    weights: WeightsOption = None,
    image_size: Annotated[
        int | None,
        typer.Option("--image-size", min=1, help="Side of the square input; the backbone's own if left out."),
    ] = None,
    recipe: Annotated[str, typer.Option("--recipe", help="keepad, or paper for the published form.")] = "keepad",
    epochs: Annotated[int | None, typer.Option("--epochs", min=1, help="Instead of the recipe's own number.")] = None,
    seed: Annotated[int, typer.Option("--seed", help="The same seed gives the same checkpoint.")] = 42,
    cache: Annotated[
        Path | None, typer.Option("--cache", help="Folder for features; the user's cache if left out.")
    ] = None,
    cache_limit: Annotated[float, typer.Option("--cache-limit", min=0, help="Gigabytes that it may hold.")] = 48,
    accelerator: Annotated[str, typer.Option("--accelerator", help="auto, cpu, cuda or mps.")] = "auto",
    devices: Annotated[int, typer.Option("--devices", min=1, help="Processes that share the work.")] = 1,
    precision: Annotated[str, typer.Option("--precision", help="32-true, or bf16-mixed on a GPU.")] = "32-true",
) -> None:
    """Train the dense detector: prototypes on features of a frozen backbone.

    The features are computed once and kept on disk. Can be interrupted: the same command goes on where it stopped.
    Beside the checkpoint it writes a model card, the losses in numbers, and a picture of them.
    """
    from dataclasses import replace

    from keepad.backbone import DEFAULT_BACKBONE
    from keepad.console import progress, stderr
    from keepad.data import read_dataset
    from keepad.errors import KeepADError
    from keepad.files import writable_folder
    from keepad.training.recipe import recipe_named

    if out.suffix != ".safetensors":
        raise KeepADError(f"a checkpoint is a .safetensors file, so --out cannot be {out.name}.")
    chosen = recipe_named(recipe)
    if epochs is not None:
        chosen = replace(chosen, epochs=epochs)
    dataset = read_dataset(data, layout).select(
        suites=None if suites is None else parts_of(suites),
        classes=None if classes is None else parts_of(classes),
        split="test",
    )
    writable_folder(out.parent)
    try:
        import matplotlib  # noqa: F401  (the picture of the losses comes last, and its absence must show first)
        from lightning_fabric import Fabric

        from keepad.training.detector import Plan, train_detector
    except ImportError as error:
        raise KeepADError("training needs the extra `train`; install it with pip install 'keepad[train]'.") from error
    try:
        fabric = Fabric(accelerator=accelerator, devices=devices, precision=precision)  # type: ignore[arg-type]
        fabric.launch()
    except Exception as error:  # Fabric raises whatever its accelerators raise
        raise KeepADError(
            f"{devices} x {accelerator} in {precision} cannot be used here ({error}); try --accelerator cpu."
        ) from error

    def tell(line: str) -> None:
        if fabric.global_rank == 0:
            stderr.print(line, soft_wrap=True, markup=False, highlight=False)

    plan = Plan(
        samples=dataset.samples,
        out=out,
        recipe=chosen,
        backbone=backbone or DEFAULT_BACKBONE,
        weights=weights,
        image_size=None if image_size is None else (image_size, image_size),
        seed=seed,
        cache=cache,
        cache_limit=int(cache_limit * 1e9),
    )
    try:
        trained = train_detector(plan, fabric, say=tell, progress=progress)
    except KeyboardInterrupt:
        tell("interrupted: the same command goes on where it stopped.")
        raise typer.Exit(130) from None
    seconds = trained.seconds
    tell(f"features {seconds['features']:.0f} s, training {seconds['training']:.0f} s")
    tell(f"{out}: {trained.validation}")
