"""keepad drift: whether, when and how scores, brightness or sharpness of a stream began to differ."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from keepad.cli.options import rate_of
from keepad.errors import KeepADError


def drift(
    predictions: Annotated[Path, typer.Argument(help="predictions.jsonl of keepad predict, in the order of time.")],
    good: Annotated[
        str,
        typer.Option("--good", help="Number of first lines that are good, or a predictions.jsonl of good images."),
    ] = "50",
    false_alarms: Annotated[
        str,
        typer.Option("--false-alarms", help="Highest probability of an alarm in 10,000 images without drift."),
    ] = "1%",
    plot: Annotated[Path | None, typer.Option("--plot", help="PNG file for a plot of scores and statistic.")] = None,
) -> None:
    """Find drift in the scores, brightness or sharpness of a stream: when, how sure, and what changed."""
    from rich.markup import escape

    from keepad.console import stderr, stdout
    from keepad.decisions import WATCHED, DriftState, DriftWatch
    from keepad.decisions.stream import quantities_of, read_stream
    from keepad.output.drift_plot import write_drift_plot

    rate = rate_of("--false-alarms", false_alarms)
    stream, errors = read_stream(predictions)
    if good.isdecimal():
        before, stream = stream[: int(good)], stream[int(good) :]
    else:
        before, more = read_stream(Path(good))
        errors += more
    if errors:
        stderr.print(f"{errors} lines with an error were left out", highlight=False)
    if not stream:
        raise KeepADError(f"{predictions} has no images beside the {len(before)} good ones; lower --good.")
    # A quantity that some lines lack would be watched on the others only, so it is left out.
    good_values = {
        name: values
        for name, values in quantities_of(before).items()
        if name == "score" or name not in WATCHED or all(name in image.extras for image in stream)
    }
    watch = DriftWatch(good_values, false_alarms=rate)
    history: dict[str, list[DriftState]] = {name: [] for name in watch.watched}
    for image in stream:
        watch.update({"score": image.score, **image.extras})
        for name, state in watch.states.items():
            history[name].append(state)
        if watch.alarm:
            break
    state, shown = watch.state, watch.alarm or "score"
    if state.alarm is None or state.since is None:
        stdout.print(f"no drift in {state.images} images after {len(before)} good ones", highlight=False)
    else:
        nouns = {"score": "scores are", "brightness": "brightness is", "sharpness": "sharpness is"}
        chance = min(1.0, state.chance * len(watch.watched))
        lines = [
            f"drift since about image {state.since}: {stream[state.since - 1].path}",
            f"found at image {state.alarm}: {stream[state.alarm - 1].path}",
            f"{nouns[shown]} {state.kind}; probability without drift at most {chance:.1g}",
        ]
        lines += [
            f"{change.name}: {change.before:.3g} before, {change.after:.3g} after ({change.shift:+.1f} robust sd)"
            for change in watch.what_changed()
        ]
        stdout.print(escape("\n".join(lines)), soft_wrap=True, highlight=False)
    if plot is not None:
        seen = [{"score": image.score, **image.extras}[shown] for image in stream[: len(history[shown])]]
        write_drift_plot(plot, seen, history[shown], shown)
        stdout.print(f"plot: {escape(str(plot))}", soft_wrap=True, highlight=False)
