"""Model card of a checkpoint, with loss curves and metrics by epoch."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from keepad.checkpoint import CheckpointInfo
from keepad.errors import KeepADError
from keepad.files import replacing
from keepad.presets import Calibration
from keepad.training.results import Epoch, Validation, percent
from keepad.training.tuning import worth

_SHOWN_TRIALS = 8


def write_model_card(checkpoint: Path, info: CheckpointInfo, epochs: Sequence[Epoch], chosen: int) -> None:
    """Write model card (.md), loss curves (.png) and metrics by epoch (.json) beside the checkpoint.

    Raises:
        KeepADError: They cannot be written.
    """
    metrics = {
        "kept": chosen + 1,
        "epochs": [{"losses": epoch.losses, "validation": asdict(epoch.validation)} for epoch in epochs],
    }
    try:
        with replacing(checkpoint.with_suffix(".json")) as partial:
            partial.write_text(json.dumps(metrics, indent=1) + "\n", encoding="utf-8")
        with replacing(checkpoint.with_suffix(".md")) as partial:
            partial.write_text(model_card(info, checkpoint), encoding="utf-8")
        with replacing(checkpoint.with_suffix(".png")) as partial:
            draw_losses(epochs, chosen, partial)
    except OSError as error:
        raise KeepADError(f"the model card could not be written beside {checkpoint}: {error}.") from error


def model_card(info: CheckpointInfo, checkpoint: Path) -> str:
    """The model card of a checkpoint, as Markdown."""
    provenance, calibration = info.provenance, info.calibration
    data = "\n".join(
        f"| {row['suite']} | {row['classes']} | {row['images']} | {row['anomalous']} | {row['licence']} |"
        for row in provenance["data"]
    )
    layers = info.placement.head_layers
    dissimilarity = [layer for layer, scale in zip(layers, info.scales, strict=True) if scale.dissimilarity]
    if any(scale.entry for scale in info.scales):
        dissimilarity.insert(0, info.placement.deep - 1)
    validation = provenance["validation"]
    return f"""# {info.name}

{provenance["what"][0].upper()}{provenance["what"][1:]}.

| | |
|---|---|
| file | `{checkpoint.name}` |
| backbone | {info.backbone}, weights {str(info.backbone_digest)[:12]}{_from(info)} |
| input | {info.image_size[0]} x {info.image_size[1]}, mean {_numbers(info.mean)}, deviation {_numbers(info.std)} |
| head layers | {_numbers(layers)}; dissimilarity at {_numbers(dissimilarity) or "none"} |
| routers | before blocks {info.placement.shallow} and {info.placement.deep}; exit after {info.placement.exit} |
| image score | lambda {calibration.patch_weight:g}, {_top(calibration)} |
| thresholds | image {_number(calibration.image_threshold)}, pixel {_number(calibration.pixel_threshold)} |
| smoothing | {calibration.smoothing:g} patches |
| recipe | {provenance["recipe"]["name"]}, seed {provenance["seed"]}, epoch {provenance["epoch"]} |
| licence | {provenance["licence"]} |

## Trained on

| suite | classes | images | anomalous | licence |
|---|---|---|---|---|
{data}

Made by `{provenance["command"]}`{_routers_command(provenance)} with {_versions(provenance["versions"])}.

## Validation

On source images held out from the head ({_how(provenance["recipe"]["validation"])}): image AUROC \
{percent(validation["image_auroc"])}, patch AUROC {percent(validation["patch_auroc"])}. Means over the classes of a \
suite, then over suites. All choices were made on the source.
{_tuning_tables(provenance)}{_routers_table(provenance)}
## Limits

Scores of different products are not on one scale: the thresholds come from source images, and unseen products are \
ranked better than labelled. Set your own with `set_threshold` from a few good images. Defects that look like ordinary \
variation of the product, and defects of a few pixels at input size, are missed.
"""


def draw_losses(epochs: Sequence[Epoch], chosen: int, path: Path) -> None:
    """Losses and validation by epoch as a PNG."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.4), layout="constrained")
    FigureCanvasAgg(figure)
    left, right = figure.subplots(1, 2)
    numbers = range(1, len(epochs) + 1)
    for name in epochs[0].losses:
        left.plot(numbers, [epoch.losses[name] for epoch in epochs], marker=".", label=name)
    for name, field in (("image AUROC", "image_auroc"), ("patch AUROC", "patch_auroc"), ("DTR", "dtr")):
        values = [getattr(epoch.validation, field, None) for epoch in epochs]
        if None not in values:
            right.plot(numbers, [100 * value for value in values if value is not None], marker=".", label=name)
    right.axvline(chosen + 1, color="grey", linewidth=1, linestyle=":", label="kept")
    left.set_title("losses on the source")
    right.set_title("held-out source")
    for axes in (left, right):
        axes.set_xlabel("epoch")
        axes.xaxis.get_major_locator().set_params(integer=True)
        axes.legend(frameon=False)
    figure.savefig(path, format="png", dpi=120, metadata={"Software": None})


def _versions(versions: dict[str, str]) -> str:
    return ", ".join(f"{name} {version}" for name, version in versions.items())


def _routers_command(provenance: dict[str, Any]) -> str:
    routers = provenance.get("routers")
    return f", then `{routers['command']}`," if routers else ""


def _tuning_tables(provenance: dict[str, Any]) -> str:
    """Sizes that were compared and the best trials of tuning; empty where nothing was tuned."""
    tuning, text = provenance.get("tuning", {}), ""
    if "sizes" in tuning:
        rows = [{"size": row["image_size"][0], **row} for row in tuning["sizes"]]
        text += f"\nInput sizes, each tuned on every fourth image of the source, smallest first:\n\n{_trials(rows)}\n"
    if "trials" in tuning:
        *trials, _ = tuning["trials"]  # the choice is listed once more at the end
        best = sorted(trials, key=_worth, reverse=True)[:_SHOWN_TRIALS]
        text += f"\nThe best {len(best)} of {len(trials)} trials of tuning, the choice first:\n\n{_trials(best)}\n"
    return text


def _worth(trial: dict[str, Any]) -> float:
    return worth(Validation(trial["image_auroc"], trial["patch_auroc"]), 1e9 * trial["gflops"])


def _trials(rows: Sequence[dict[str, Any]]) -> str:
    """Trials as a Markdown table."""
    names = [name for name in rows[0] if name not in ("image_size", "image_auroc", "patch_auroc", "gflops")]
    lines = [f"| {' | '.join([*names, 'I-AUROC', 'patch AUROC', 'GFLOPs'])} |", f"|{'---|' * (len(names) + 3)}"]
    for row in rows:
        cells = [_numbers(row[name]) if isinstance(row[name], (list, tuple)) else f"{row[name]:g}" for name in names]
        cells += [percent(row["image_auroc"]), percent(row["patch_auroc"]), f"{row['gflops']:.1f}"]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _routers_table(provenance: dict[str, Any]) -> str:
    """Validation of the routers by operating point; empty where they are not trained."""
    routers = provenance.get("routers")
    if not routers:
        return ""
    rows = "\n".join(
        f"| {point} | {percent(row['image_auroc'])} | {percent(row['patch_auroc'])} | {percent(row['dtr'])} | "
        f"{row['missed']} of {row['anomalous']} | {percent(row['keep'])} |"
        for point, row in routers["source"].items()
    )
    return f"""
Routers of recipe {routers["recipe"]["name"]}, seed {routers["seed"]}, epoch {routers["epoch"]}, on the source (or an \
even part of it; the routers were trained on four images in five, the heads on none of that product where validation \
is by products):

| point | I-AUROC | patch AUROC | DTR | defects lost | keep |
|---|---|---|---|---|---|
{rows}
{_router_trials(routers)}"""


def _router_trials(routers: dict[str, Any]) -> str:
    """Trials of tuning the routers, the choice last; empty where nothing was tuned."""
    if "tuning" not in routers:
        return ""
    rows = "\n".join(
        f"| {row['shallow']} | {row.get('score_smoothing', 0):g} | {row['coverage']} | "
        f"{row['kappa']:g} | "
        f"{_numbers(row['grades'])} | "
        f"{percent(row['image_auroc'])} | {percent(row['patch_auroc'])} | {percent(row['dtr'])} | {row['missed']} | "
        f"{percent(row['keep'])} | {row['gflops']:.1f} |"
        for row in routers["tuning"]
    )
    return f"""
Trials of tuning the routers at {routers["recipe"]["point"]}, before their training, the choice last:

| shallow before | smoothing | coverage | kappa | grades | I-AUROC | patch AUROC | DTR | lost | keep | GFLOPs |
|---|---|---|---|---|---|---|---|---|---|---|
{rows}
"""


def _top(calibration: Calibration) -> str:
    return f"top {100 * calibration.top_fraction:g} % of the {calibration.top_of}"


def _how(validation: str) -> str:
    return "each product with a head trained without it" if validation == "products" else "one image in five"


def _numbers(values: Sequence[float]) -> str:
    return " ".join(f"{value:g}" for value in values)


def _from(info: CheckpointInfo) -> str:
    return f" from {info.backbone_source}" if info.backbone_source else ""


def _number(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.3f}"
