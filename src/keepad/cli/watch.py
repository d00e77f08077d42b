"""keepad watch: score images as they arrive in a folder or from a camera, and hand the results on."""

from __future__ import annotations

from pathlib import Path
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
    rate_of,
)


def watch(
    source: Annotated[str, typer.Argument(help="Folder, video file, camera:0, or the URL of a camera (rtsp://...).")],
    to: Annotated[
        list[str] | None,
        typer.Option("--to", help="jsonl:FILE, webhook:URL or mqtt://host/topic; several are possible. Default: -."),
    ] = None,
    model: ModelOption = None,
    weights: WeightsOption = None,
    point: ProfilePointOption = None,
    profile: ProfileOption = None,
    threshold: ThresholdOption = None,
    good: Annotated[
        str | None,
        typer.Option("--good", help="Watch for drift: number of first images that are good, or a predictions.jsonl."),
    ] = None,
    false_alarms: Annotated[
        str, typer.Option("--false-alarms", help="Highest probability of an alarm in 10,000 images without drift.")
    ] = "1%",
    journal: Annotated[
        Path | None,
        typer.Option("--journal", help="File that remembers what is done; in the user's state if left out."),
    ] = None,
    settle: Annotated[
        float, typer.Option("--settle", min=0.0, help="Seconds for which a file must not change before it is read.")
    ] = 0.5,
    unreadable: Annotated[
        float,
        typer.Option("--unreadable", min=0.0, help="Seconds after which a file that cannot be read is an error."),
    ] = 10.0,
    idle: Annotated[
        float | None, typer.Option("--idle", min=0.0, help="End when nothing came for so many seconds.")
    ] = None,
    every: Annotated[float, typer.Option("--every", min=0.0, help="Seconds between frames of a stream.")] = 0.0,
    new_only: Annotated[
        bool, typer.Option("--new-only", help="Leave out files that are there before the first start.")
    ] = False,
    poll: Annotated[
        bool, typer.Option("--poll", help="Look for changes now and then, for network shares that send no notices.")
    ] = False,
    pixel_router: PixelRouterOption = None,
    engine: EngineOption = "auto",
    device: DeviceOption = None,
) -> None:
    """Score new images as they arrive; each file has exactly one result, also after a restart."""
    from keepad.cli.predict import load_with_profile
    from keepad.console import say_on_stderr
    from keepad.watch.session import WatchSettings, check, stopping_on_signals
    from keepad.watch.session import watch as run
    from keepad.watch.watching import Patience

    settings = WatchSettings(
        source=source,
        to=to or ["jsonl:-"],
        journal=journal,
        good=good,
        false_alarms=rate_of("--false-alarms", false_alarms),
        patience=Patience(settle, unreadable, idle),
        every=every,
        poll=poll,
        new_only=new_only,
    )
    check(settings)
    detector = load_with_profile(
        model, point=point, profile=profile, pixel_router=pixel_router, engine=engine, device=device, weights=weights
    )
    if threshold is not None:
        detector.set_threshold(threshold)
    with stopping_on_signals() as stop:
        summary = run(detector, settings, stop, say_on_stderr)
    say_on_stderr(
        f"{summary.results} results"
        + (f"; {summary.undelivered} messages wait for the next start" if summary.undelivered else "")
    )
