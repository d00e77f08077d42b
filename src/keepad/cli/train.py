"""keepad train: a checkpoint from labelled images, the detector first, then its routers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from keepad.cli.options import WeightsOption, parts_of

if TYPE_CHECKING:
    from lightning_fabric import Fabric

    from keepad.data import Sample
    from keepad.training.results import Trained

app = typer.Typer(help="Train a detector on labelled images of other products.", no_args_is_help=True)

DataOption = Annotated[
    Path, typer.Option("--data", "-d", help="A folder with a data set or with several, or an index file.")
]
OutOption = Annotated[Path, typer.Option("--out", "-o", help="The checkpoint to write, a .safetensors file.")]
SuitesOption = Annotated[str | None, typer.Option("--suites", help="Only these suites, separated by commas.")]
ClassesOption = Annotated[str | None, typer.Option("--classes", help="Only these classes, separated by commas.")]
LayoutOption = Annotated[str | None, typer.Option("--layout", help="How the folder is arranged, if not recognised.")]
RecipeOption = Annotated[str, typer.Option("--recipe", help="keepad, or paper for the published form.")]
EpochsOption = Annotated[int | None, typer.Option("--epochs", min=1, help="Instead of the recipe's own number.")]
SeedOption = Annotated[int, typer.Option("--seed", help="The same seed gives the same checkpoint.")]
CacheOption = Annotated[Path | None, typer.Option("--cache", help="Folder for features; the user's cache if left out.")]
CacheLimitOption = Annotated[float, typer.Option("--cache-limit", min=0, help="Gigabytes that it may hold.")]
AcceleratorOption = Annotated[str, typer.Option("--accelerator", help="auto, cpu, cuda or mps.")]
DevicesOption = Annotated[int, typer.Option("--devices", min=1, help="Processes that share the work.")]
PrecisionOption = Annotated[str, typer.Option("--precision", help="32-true, or bf16-mixed on a GPU.")]


@app.callback()
def options() -> None:
    """Stages of training."""


@app.command()
def detector(
    data: DataOption,
    out: OutOption,
    suites: SuitesOption = None,
    classes: ClassesOption = None,
    layout: LayoutOption = None,
    backbone: Annotated[
        str | None, typer.Option("--backbone", help="Name of the backbone; the default one if left out.")
    ] = None,
    weights: WeightsOption = None,
    image_size: Annotated[
        str | None,
        typer.Option(
            "--image-size",
            help="Input as HxW or the side of a square, or several to choose from, separated by commas; the backbone's "
            "own if left out.",
        ),
    ] = None,
    recipe: RecipeOption = "keepad",
    tune: Annotated[
        bool | None,
        typer.Option(
            "--tune/--no-tune",
            help="Choose layers and constants on held-out products of the source, or take the recipe's own.",
        ),
    ] = None,
    epochs: EpochsOption = None,
    seed: SeedOption = 42,
    cache: CacheOption = None,
    cache_limit: CacheLimitOption = 48,
    accelerator: AcceleratorOption = "auto",
    devices: DevicesOption = 1,
    precision: PrecisionOption = "32-true",
) -> None:
    """Stage 1: train the dense detector, prototypes on features of a frozen backbone.

    The features are computed once and kept on disk. Can be interrupted: the same command resumes. Beside the checkpoint
    it writes a model card, loss curves, and the metrics of every epoch.
    """
    from dataclasses import replace

    from keepad.backbone import DEFAULT_BACKBONE
    from keepad.errors import KeepADError
    from keepad.training.recipe import RECIPES, recipe_named

    chosen = recipe_named(RECIPES, recipe)
    if tune and not chosen.tuned:
        raise KeepADError(f"the recipe {recipe} has fixed constants; leave --tune out, or take --recipe keepad.")
    sizes = _sizes(image_size)
    samples = _samples(data, layout, suites, classes, out)
    fabric = _fabric(accelerator, devices, precision)
    from keepad.training.plan import DetectorPlan
    from keepad.training.stage1 import train_detector

    plan = DetectorPlan(
        samples=samples,
        out=out,
        recipe=replace(chosen, epochs=epochs or chosen.epochs, tuned=chosen.tuned if tune is None else tune),
        backbone=backbone or DEFAULT_BACKBONE,
        weights=weights,
        sizes=sizes,
        classes=parts_of(classes) if classes else (),
        seed=seed,
        cache=cache,
        cache_limit=int(cache_limit * 1e9),
    )
    trained = _run(train_detector, plan, fabric)
    _say(fabric, f"{out}: {trained.validation['dense']}")


@app.command()
def routers(
    detector: Annotated[Path, typer.Option("--detector", help="The checkpoint of stage 1.")],
    data: DataOption,
    out: OutOption,
    suites: SuitesOption = None,
    classes: ClassesOption = None,
    layout: LayoutOption = None,
    weights: WeightsOption = None,
    shallow: Annotated[
        int | None, typer.Option("--shallow", min=1, help="The shallow router acts on the tokens entering this block.")
    ] = None,
    deep: Annotated[
        int | None, typer.Option("--deep", min=1, help="The deep router acts on the tokens entering this block.")
    ] = None,
    recipe: RecipeOption = "keepad",
    without: Annotated[
        list[str] | None, typer.Option("--without", help="Leave a loss out: flops, preserve, teacher or mask.")
    ] = None,
    epochs: EpochsOption = None,
    keep_epoch: Annotated[
        int | None,
        typer.Option("--keep-epoch", min=1, help="Keep this epoch; the best in validation on the source if left out."),
    ] = None,
    seed: SeedOption = 42,
    cache: CacheOption = None,
    cache_limit: CacheLimitOption = 48,
    accelerator: AcceleratorOption = "auto",
    devices: DevicesOption = 1,
    precision: PrecisionOption = "32-true",
) -> None:
    """Stage 2: train the selectors of both routers of a detector.

    Features and dense responses are computed once and the features kept on disk. Can be interrupted: the same command
    resumes. The prototypes of the detector stay as they are.
    """
    from dataclasses import replace

    from keepad.training.recipe import ROUTER_RECIPES, recipe_named

    chosen = recipe_named(ROUTER_RECIPES, recipe).without(without or ())
    samples = _samples(data, layout, suites, classes, out)
    fabric = _fabric(accelerator, devices, precision)
    from keepad.training.plan import RouterPlan
    from keepad.training.stage2 import train_routers

    plan = RouterPlan(
        detector=detector,
        samples=samples,
        out=out,
        recipe=replace(chosen, epochs=epochs or chosen.epochs, keep_epoch=keep_epoch),
        shallow=shallow,
        deep=deep,
        weights=weights,
        classes=parts_of(classes) if classes else (),
        seed=seed,
        cache=cache,
        cache_limit=int(cache_limit * 1e9),
    )
    trained = _run(train_routers, plan, fabric)
    for point, validation in trained.validation.items():
        _say(fabric, f"{out.name} at {point}: {validation}")


def _sizes(text: str | None) -> tuple[tuple[int, int], ...]:
    """Sizes as HxW, or as sides of squares, separated by commas."""
    from keepad.framing import size_of

    return tuple(size_of(part) for part in parts_of(text or ""))


def _run(train: Callable[..., Trained], plan: Any, fabric: Fabric) -> Trained:
    """Train as planned; an interrupt exits with 130, and the same command resumes."""
    from keepad.console import progress

    try:
        trained = train(plan, fabric, say=lambda line: _say(fabric, line), progress=progress)
    except KeyboardInterrupt:
        _say(fabric, "interrupted: the same command goes on where it stopped.")
        raise typer.Exit(130) from None
    _say(fabric, f"features {trained.seconds['features']:.0f} s, training {trained.seconds['training']:.0f} s")
    return trained


def _say(fabric: Fabric, line: str) -> None:
    """Print a line on stderr, from one of the processes."""
    from keepad.console import stderr

    if fabric.global_rank == 0:
        stderr.print(line, soft_wrap=True, markup=False, highlight=False)


def _samples(data: Path, layout: str | None, suites: str | None, classes: str | None, out: Path) -> tuple[Sample, ...]:
    """Labelled images of the source; checks first that the checkpoint can be written."""
    from keepad.data import read_dataset
    from keepad.errors import KeepADError
    from keepad.files import writable_folder

    if out.suffix != ".safetensors":
        raise KeepADError(f"a checkpoint is a .safetensors file, so --out cannot be {out.name}.")
    dataset = read_dataset(data, layout).select(
        suites=None if suites is None else parts_of(suites),
        classes=None if classes is None else parts_of(classes),
        split="test",
    )
    writable_folder(out.parent)
    return dataset.samples


def _fabric(accelerator: str, devices: int, precision: str) -> Fabric:
    """Device, precision and processes, launched."""
    from keepad.errors import KeepADError

    try:
        import matplotlib  # noqa: F401  (the loss curves are drawn last, but its absence must show first)
        from lightning_fabric import Fabric
    except ImportError as error:
        raise KeepADError("training needs the extra `train`; install it with pip install 'keepad[train]'.") from error
    try:
        fabric = Fabric(accelerator=accelerator, devices=devices, precision=precision)  # type: ignore[arg-type]
        fabric.launch()
    except Exception as error:  # Fabric raises whatever its accelerators raise
        raise KeepADError(
            f"{devices} x {accelerator} in {precision} cannot be used here ({error}); try --accelerator cpu."
        ) from error
    return fabric
