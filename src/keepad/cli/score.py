"""keepad score: scores of very many images as Parquet or JSONL, by several processes or a Ray cluster."""

from __future__ import annotations

from typing import Annotated

import typer

from keepad.cli.options import (
    DeviceOption,
    EngineOption,
    ModelOption,
    PixelRouterOption,
    ProfileOption,
    ProfilePointOption,
    ThresholdOption,
    WeightsOption,
)


def score(
    source: Annotated[
        str,
        typer.Argument(help="Folder, pattern, or index (.txt, .csv, .jsonl, .parquet) of images; also s3://, gs://."),
    ],
    to: Annotated[str, typer.Option("--to", help="Folder for the shards; also s3://, gs://.")],
    on: Annotated[str, typer.Option("--on", help="local, or ray for a Ray cluster.")] = "local",
    workers: Annotated[int, typer.Option("--workers", "-w", min=1, help="Number of processes.")] = 1,
    output_format: Annotated[str, typer.Option("--format", help="parquet or jsonl.")] = "parquet",
    shard: Annotated[int, typer.Option("--shard", min=1, help="Images per file; what a killed worker repeats.")] = 1000,
    maps: Annotated[bool, typer.Option("--maps", help="Write anomaly maps, a 16-bit PNG each.")] = False,
    model: ModelOption = None,
    weights: WeightsOption = None,
    point: ProfilePointOption = None,
    profile: ProfileOption = None,
    threshold: ThresholdOption = None,
    batch: Annotated[int, typer.Option("--batch", "-b", min=1, help="Images per forward pass.")] = 1,
    pixel_router: PixelRouterOption = None,
    engine: EngineOption = "auto",
    device: DeviceOption = None,
) -> None:
    """Score very many images; the same command goes on where a killed one stopped."""
    from keepad.cli.predict import chosen_point
    from keepad.console import progress, say_on_stderr, stdout
    from keepad.references.profile import read_profile
    from keepad.scale.run import DetectorOptions, Job
    from keepad.scale.run import score as run

    if engine == "ray":  # what many type first; Ray is where images are scored, whatever engine scores them
        on, engine = "ray", "auto"
    chosen = chosen_point(point, None if profile is None else read_profile(profile), pixel_router)
    options = DetectorOptions(model, chosen, profile, engine, device, weights, threshold)
    job = Job(source, to, on, workers, output_format, shard, batch, maps)
    summary = run(options, job, say_on_stderr, progress)
    before = f", {summary.before} were there" if summary.before else ""
    stdout.print(
        f"scored: {summary.images} images, {summary.errors} of them errors{before}", soft_wrap=True, highlight=False
    )
    stdout.print(f"shards: {to}", soft_wrap=True, highlight=False, markup=False)
    if summary.interrupted:
        stdout.print("interrupted: the same command goes on from here", highlight=False)
        raise typer.Exit(130)
    if summary.errors:
        raise typer.Exit(1)
