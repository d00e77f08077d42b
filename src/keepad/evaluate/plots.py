"""Plots of an evaluation: accuracy against tokens kept, and how many tokens normal and anomalous images keep."""

from __future__ import annotations

import importlib.util
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from keepad.errors import KeepADError
from keepad.evaluate.results import Results
from keepad.files import replacing

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe and Ito's colours, which stay apart for colour-blind eyes; black is for the mean.
_COLOURS = ("#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9", "#999933")
_MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">")
_NORMAL, _ANOMALOUS = "#0072B2", "#D55E00"
_INK, _SOFT = "#1b1f26", "#8a929e"
_BINS = 40
_STYLE: dict[Any, Any] = {
    "font.size": 10,
    "axes.edgecolor": _SOFT,
    "axes.labelcolor": _INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": 11,
    "axes.titlelocation": "left",
    "xtick.color": _INK,
    "ytick.color": _INK,
    "grid.color": "#e4e7ec",
    "legend.frameon": False,
}


def write_plots(results: Results) -> list[Path]:
    """Paths of the plots, written beside the results; keep by label needs a point that prunes.

    Raises:
        KeepADError: matplotlib is not installed.
    """
    if importlib.util.find_spec("matplotlib") is None:
        raise KeepADError("the plots were left out: they need matplotlib, which `pip install keepad[plots]` brings.")
    from matplotlib import rc_context

    written = []
    with rc_context(_STYLE):
        for name, figure in (
            ("accuracy_vs_keep.png", _accuracy_vs_keep(results)),
            ("keep_by_label.png", _keep_by_label(results)),
        ):
            if figure is not None:
                written.append(results.out / name)
                try:
                    with replacing(written[-1]) as partial:
                        figure.savefig(partial, dpi=160, format="png")
                except OSError as error:
                    raise KeepADError(f"{written[-1]} cannot be written: {error.strerror or error}.") from error
    return written


def _accuracy_vs_keep(results: Results) -> Figure:
    from matplotlib.figure import Figure

    averages = results.averages
    seen = {record["suite"] for record in results.records if record["seen_in_training"]}
    figure = Figure(figsize=(10, 4.2), layout="constrained")
    left, right = figure.subplots(1, 2, sharex=True)
    for axes, metric, title in ((left, "i_auroc", "Image level"), (right, "p_auroc", "Pixel level")):
        for (suite, of_points), colour, marker in zip(
            averages["suites"].items(), cycle(_COLOURS), cycle(_MARKERS), strict=False
        ):
            label = f"{suite} †" if suite in seen else suite
            _line(axes, of_points, metric, color=colour, marker=marker, label=label, linewidth=1.4, markersize=5)
        if len(averages["suites"]) > 1:
            _line(axes, averages["overall"], metric, color=_INK, marker="o", label="mean", linewidth=2.6, markersize=6)
        axes.set(title=title, xlabel="tokens left after both routers (%)", ylabel=f"{metric[0].upper()}-AUROC (%)")
        axes.grid(axis="y")
    handles, labels = left.get_legend_handles_labels()
    if seen:
        labels = [label.replace("†", "† (seen in training)") for label in labels]
    figure.legend(handles, labels, loc="outside right center")
    return figure


def _line(axes: Axes, of_points: dict[str, Any], metric: str, **style: Any) -> None:
    curve = sorted((values["keep"], values[metric]) for values in of_points.values() if values[metric] is not None)
    axes.plot([keep for keep, _ in curve], [value for _, value in curve], **style)


def _keep_by_label(results: Results) -> Figure | None:
    from matplotlib.figure import Figure

    pruned = [
        name for name, point in results.content["settings"]["points"].items() if point["shallow"] or point["deep"]
    ]
    if not pruned or not results.images:
        return None
    figure = Figure(figsize=(3.2 * len(pruned) + 1.4, 3.4), layout="constrained")
    panels = figure.subplots(1, len(pruned), sharey=True, squeeze=False)[0]
    for axes, point in zip(panels, pruned, strict=True):
        keep = {
            label: [100 * row["points"][point]["keep"] for row in results.images if row["label"] == label]
            for label in (0, 1)
        }
        everything = keep[0] + keep[1]
        edges = np.linspace(min(everything) - 0.5, max(everything) + 0.5, _BINS + 1)
        for label, colour, words in ((0, _NORMAL, "normal"), (1, _ANOMALOUS, "anomalous")):
            if not keep[label]:
                continue
            weights = np.full(len(keep[label]), 100 / len(keep[label]))
            shared = {"bins": edges, "weights": weights, "color": colour}
            axes.hist(keep[label], histtype="stepfilled", alpha=0.25, **shared)
            axes.hist(keep[label], histtype="step", linewidth=1.4, label=words, **shared)
            axes.axvline(float(np.median(keep[label])), color=colour, linewidth=1.2, linestyle=(0, (4, 3)))
        axes.set(title=point, xlabel="tokens left (%)")
    panels[0].set_ylabel("share of images (%)")
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside right center", title="dashed: median", title_fontsize=9)
    return figure
