"""A plot of drift: the scores of a stream, and the statistic of the test against its limit."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from pathlib import Path

from keepad.decisions import DriftState
from keepad.errors import KeepADError
from keepad.files import replacing


def write_drift_plot(path: Path, values: Sequence[float], states: Sequence[DriftState], name: str = "score") -> None:
    """Write the plot as a PNG; one value of the watched quantity and one state per image.

    Raises:
        KeepADError: matplotlib is not installed, or the file cannot be written.
    """
    if importlib.util.find_spec("matplotlib") is None:
        raise KeepADError("--plot needs matplotlib: pip install 'keepad[plots]'.")
    from matplotlib.figure import Figure

    numbers = range(1, len(values) + 1)
    figure = Figure(figsize=(9, 5), layout="constrained")
    above, below = figure.subplots(2, 1, sharex=True)
    above.plot(numbers, values, ".", markersize=3, color="#0072B2")
    above.set_ylabel(name)
    below.semilogy(numbers, [max(state.statistic, 1e-3) for state in states], color="#1b1f26")
    below.axhline(states[-1].limit, color="#D55E00", linestyle="--", label="limit")
    below.set(xlabel="image", ylabel="statistic of drift")
    last = states[-1]
    if last.alarm is not None:
        for axes in (above, below):
            axes.axvspan(last.since, len(values), color="#E69F00", alpha=0.2)
            axes.axvline(last.alarm, color="#D55E00")
    below.legend(frameon=False)
    try:
        with replacing(path) as partial:
            figure.savefig(partial, format="png", dpi=120)
    except OSError as error:
        raise KeepADError(f"the plot {path} cannot be written: {error.strerror}.") from error
