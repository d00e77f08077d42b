"""summary.json and summary.md: several evaluated models side by side, and their mean.

A metric's mean is over the classes of a suite, then over suites, then over models. DTR and CMR under `survival` are
pooled over the images of a model before the mean over models is taken.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from keepad.errors import KeepADError
from keepad.evaluate.markdown import DAGGER, NOTHING, number, table, with_bounds, with_delta
from keepad.evaluate.results import Results, add_deltas, average, mean
from keepad.files import replace_text

COLUMNS = ("point", "I-AUROC (Δ)", "P-AUROC (Δ)", "PRO", "DTR final", "CMR final", "keep pixels", "keep final")


def summarise(contents: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
    """The mean over models, and each model's own averages, from the contents of their results.json by model.

    Raises:
        KeepADError: They do not have the same variants.
    """
    settings = [content["settings"] for content in contents.values()]
    points = list(settings[0]["points"])
    if any(list(other["points"]) != points for other in settings):
        raise KeepADError(f"the evaluations of {', '.join(contents)} have different operating points.")
    models = {name: _model(content) for name, content in contents.items()}
    means = {
        point: {
            **average([model["points"][point] for model in models.values()]),
            "survival": _mean_survival([model["points"][point]["survival"] for model in models.values()]),
        }
        for point in points
    }
    add_deltas(means, settings[0]["reference"])
    return {
        "command": settings[0]["command"],
        "reference": settings[0]["reference"],
        "mean": means,
        "models": models,
    }


def _model(content: dict[str, Any]) -> dict[str, Any]:
    settings, survival = content["settings"], content["survival"]["overall"]
    return {
        **{key: settings[key] for key in ("backbone", "checkpoint_digest", "code_digest", "device", "versions")},
        "suites": settings["data"]["suites"],
        "seen": sorted({record["suite"] for record in content["records"] if record["seen_in_training"]}),
        "left_out": len(content["errors"]),
        "points": {
            point: {**values, "survival": survival[point]["final"]["all"]}
            for point, values in content["averages"]["overall"].items()
        },
    }


def _mean_survival(rates: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        **{key: sum(rate[key] for rate in rates) for key in ("images", "missed")},
        **{key: mean(rate[key] for rate in rates) for key in ("dtr", "cmr")},
    }


def write_summary(results: Mapping[str, Results], out: Path) -> dict[str, Any]:
    """The summary of evaluations by model, also as summary.json and summary.md in `out`."""
    content = summarise({name: result.content for name, result in results.items()})
    try:
        replace_text(out / "summary.json", json.dumps(content, indent=1, allow_nan=False) + "\n")
        replace_text(out / "summary.md", to_markdown(content))
    except OSError as error:
        raise KeepADError(
            f"{out} cannot be written: {error.strerror or error}; make room or choose another folder."
        ) from error
    return content


def to_markdown(content: dict[str, Any]) -> str:
    """The page of a summary: the mean of the models, then each model with its suites."""
    models, reference = content["models"], content["reference"]
    blocks = [
        f"Made by `{content['command'] or 'keepad.evaluate'}`; do not edit.",
        f"# Mean of {', '.join(models)}",
        "In percent: mean over the classes of a suite, over suites, then over models; Δ is against "
        f"{reference}. DTR and CMR are pooled over the images of a model; {NOTHING}: does not exist.",
        table(COLUMNS, summary_rows(content)),
    ]
    for name, model in models.items():
        suites = ", ".join(f"{suite} {DAGGER}" if suite in model["seen"] else suite for suite in model["suites"])
        images = sum(counts["good"] + counts["defect"] for counts in model["suites"].values())
        blocks += [
            f"## {name}",
            f"On {suites}; {images} images, {model['left_out']} left out; {model['backbone']}, {model['device']}.",
            table(COLUMNS, _rows(model["points"], reference)),
        ]
    if any(model["seen"] for model in models.values()):
        blocks.append(f"{DAGGER} The model was trained on this suite, so its numbers there are not zero-shot.")
    return "\n\n".join(blocks) + "\n"


def summary_rows(content: dict[str, Any]) -> list[list[str]]:
    """Rows of the mean over models, for `COLUMNS`."""
    return _rows(content["mean"], content["reference"])


def _rows(points: dict[str, Any], reference: str) -> list[list[str]]:
    rows = []
    for point, values in points.items():
        delta = (values["delta"] if point != reference else None) or {}
        rate = values["survival"]
        rows.append(
            [
                point,
                *(with_delta(values[name], delta.get(name)) for name in ("i_auroc", "p_auroc")),
                number(values["pro"]),
                number(rate["dtr"]),
                with_bounds(rate) if "cmr_low" in rate else number(rate["cmr"], digits=2),
                number(values["keep_pixels"]),
                number(values["keep"]),
            ]
        )
    return rows
