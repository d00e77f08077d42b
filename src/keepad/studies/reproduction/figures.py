"""Figures of a reproduction, drawn from the same numbers as its tables."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image

from keepad.demo import demo_images
from keepad.detector import Detector
from keepad.files import replacing
from keepad.network import Network
from keepad.studies.reproduction.depth import BINS
from keepad.studies.reproduction.numbers import Measured
from keepad.studies.reproduction.settings import FIRST, Settings
from keepad.studies.reproduction.tables import MAIN, TABLES
from keepad.studies.reproduction.variants import FAMILIES, SWEEP

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_SHOWN = ("fabric-thread-000", "ceramic-crack-000", "metal-dent-000")  # demo images of the routing pictures
_METRICS = {"i_auroc": "I-AUROC (%)", "p_auroc": "P-AUROC (%)"}


def write_figures(
    settings: Settings,
    measured: Sequence[Measured],
    scans: Mapping[str, dict[str, Any]],
    networks: Mapping[str, Network],
) -> dict[str, list[str]]:
    """File names of the figures that were drawn, by table; without matplotlib only the pictures of routing."""
    made: dict[str, list[str]] = {}
    if importlib.util.find_spec("matplotlib") is None:
        settings.say("figures were left out: they need matplotlib, which `pip install keepad[plots]` brings.")
    else:
        for name, draw in _FIGURES.items():
            figure = draw(measured, scans) if name in settings.tables else None
            if figure is not None:
                made[name] = [f"{name}.png"]
                with replacing(settings.out / f"{name}.png") as partial:
                    figure.savefig(partial, dpi=130, format="png")
    if "routing" in settings.tables:
        made["routing"] = [f"routing-{own.name}.jpg" for own in measured]
        for own in measured:
            file = settings.out / f"routing-{own.name}.jpg"
            with replacing(file) as partial:
                routing_picture(networks[own.name], settings.recipe).save(partial, "JPEG", quality=85)
    return made


def routing_picture(network: Network, recipe: str) -> Image.Image:
    """Demo images with the survivors of the whole pass, one below the other; no image of a data set is shown."""
    detector = Detector(network, f"{FAMILIES[recipe]}70")
    images = {demo.name: demo.image for demo in demo_images()}
    panels = [detector(images[name]).plot() for name in _SHOWN]
    sheet = Image.new("RGB", (max(panel.width for panel in panels), sum(panel.height for panel in panels)), "white")
    top = 0
    for panel in panels:
        sheet.paste(panel, (0, top))
        top += panel.height
    return sheet.resize((sheet.width // 2, sheet.height // 2), Image.Resampling.LANCZOS)


def _axes(measured: Sequence[Measured]) -> tuple[Figure, Any]:
    """A figure with a row for each metric and a column for each direction."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5 * len(measured), 6.5), layout="constrained")
    axes = figure.subplots(len(_METRICS), len(measured), squeeze=False)
    for column, own in enumerate(measured):
        axes[0][column].set_title(own.title, fontsize=8, wrap=True)
    return figure, axes


def _series(own: Measured, rows: Sequence[str], x: str, y: str) -> tuple[list[str], list[float], list[float]]:
    """Names and values of the variants that have both numbers."""
    names, across, up = [], [], []
    for row in rows:
        numbers = own.numbers(row, own.targets)
        first, second = numbers.get(x), numbers.get(y)
        if first is not None and second is not None:
            names.append(row)
            across.append(first)
            up.append(second)
    return names, across, up


def _against_speed(rows: Sequence[str], line: bool) -> Any:
    def draw(measured: Sequence[Measured], scans: Mapping[str, Any]) -> Figure:
        figure, axes = _axes(measured)
        for place, (metric, label) in zip(axes, _METRICS.items(), strict=True):
            for axis, own in zip(place, measured, strict=True):
                names, across, up = _series(own, rows, "speed", metric)
                axis.plot(across, up, "o-" if line else "o", markersize=4)
                for name, x, y in zip(names, across, up, strict=True):
                    axis.annotate(name, (x, y), fontsize=6, xytext=(3, 3), textcoords="offset points")
                frontier = _frontier(across, up)
                if not line and frontier:
                    axis.plot(*zip(*frontier, strict=True), "--", color="0.5")
                axis.set(xlabel="images per second", ylabel=label)
        return figure

    return draw


def _frontier(across: Sequence[float], up: Sequence[float]) -> list[tuple[float, float]]:
    """Points that no other beats in both, from the fastest on."""
    best, points = float("-inf"), []
    for x, y in sorted(zip(across, up, strict=True), reverse=True):
        if y > best:
            best = y
            points.append((x, y))
    return points


def _sweep(measured: Sequence[Measured], scans: Mapping[str, Any]) -> Figure:
    figure, axes = _axes(measured)
    for place, (metric, label) in zip(axes, _METRICS.items(), strict=True):
        for axis, own in zip(place, measured, strict=True):
            values = [own.numbers(f"{pruned} % pruned", own.targets).get(metric) for pruned in SWEEP]
            axis.plot(SWEEP, [np.nan if value is None else value for value in values], "o-", markersize=4)
            axis.set(xlabel="tokens pruned in the end (%)", ylabel=label)
    return figure


def _shares(own: Measured) -> list[tuple[int, float, float | None]]:
    """Label, share of the deep router in percent and evidence of every image."""
    rows = [(row["label"], row["points"]["full"]) for row in own.rows("full", own.targets)]
    return [(label, 100 * values["keep"] / values["keep_shallow"], values["evidence"]) for label, values in rows]


def _keep_by_class(measured: Sequence[Measured], scans: Mapping[str, Any]) -> Figure:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5 * len(measured), 3.2), layout="constrained")
    for axis, own in zip(figure.subplots(1, len(measured), squeeze=False)[0], measured, strict=True):
        for label, colour, name in ((0, "tab:blue", "normal"), (1, "tab:red", "anomalous")):
            shares = [share for each, share, _ in _shares(own) if each == label]
            if shares:
                axis.hist(shares, bins=24, density=True, alpha=0.5, color=colour, label=name)
                axis.axvline(float(np.mean(shares)), color=colour, linestyle="--")
        axis.set(xlabel="share that the deep router keeps (%)", ylabel="density")
        axis.set_title(own.title, fontsize=8)
        axis.legend()
    return figure


def _keep_by_evidence(measured: Sequence[Measured], scans: Mapping[str, Any]) -> Figure:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5, 3.4), layout="constrained")
    axis = figure.subplots()
    for label, colour in ((0, "tab:blue"), (1, "tab:red")):
        found = [each for own in measured if own.name == FIRST for each in _shares(own) if each[0] == label]
        pairs = np.array([(evidence, share) for _, share, evidence in found if evidence is not None]).reshape(-1, 2)
        axis.scatter(pairs[:, 0], pairs[:, 1], s=6, color=colour)
    axis.set(xlabel="E(I)", ylabel="share that the deep router keeps (%)")
    return figure


def _depth(measured: Sequence[Measured], scans: Mapping[str, Any]) -> Figure:
    from matplotlib.figure import Figure

    layers = [layer for layer in next(iter(scans.values()))["histograms"] if int(layer) % 2 == 0]
    figure = Figure(figsize=(1.6 * len(layers), 2.2 * len(measured)), layout="constrained")
    places = figure.subplots(len(measured), len(layers), squeeze=False, sharex=True)
    centres = (BINS[1:] + BINS[:-1]) / 2
    for place, own in zip(places, measured, strict=True):
        for axis, layer in zip(place, layers, strict=True):
            for counts, colour in zip(scans[own.name]["histograms"][layer], ("tab:blue", "tab:red"), strict=True):
                total = sum(counts) or 1.0
                axis.plot(centres, np.array(counts) / total, color=colour)
            value = scans[own.name]["auroc"][layer]
            axis.set_title(f"L{layer}" + ("" if value is None else f": {value:.1f}"), fontsize=8)
            axis.set_yticks([])
    return figure


_FIGURES: dict[str, Any] = {
    "teaser": _against_speed(MAIN, line=True),
    "sweep": _sweep,
    "pareto": _against_speed(TABLES["pareto"].rows, line=False),
    "trajectories": _against_speed(TABLES["trajectories"].rows, line=True),
    "keep-by-class": _keep_by_class,
    "keep-by-evidence": _keep_by_evidence,
    "depth": _depth,
}
