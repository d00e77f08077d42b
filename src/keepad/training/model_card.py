"""The record of a training: a model card, a picture of the losses, and both in numbers, beside the checkpoint."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Protocol

from keepad.checkpoint import CheckpointInfo
from keepad.errors import KeepADError
from keepad.files import replacing
from keepad.presets import Calibration


class Epoch(Protocol):
    """What a record needs of an epoch, of either stage."""

    @property
    def losses(self) -> dict[str, float]: ...

    @property
    def validation(self) -> Any: ...


def write_record(checkpoint: Path, info: CheckpointInfo, epochs: Sequence[Epoch], chosen: int) -> None:
    """Write `<checkpoint>.md`, `<checkpoint>.png` and `<checkpoint>.json` beside the checkpoint, without its suffix.

    Raises:
        KeepADError: They cannot be written.
    """
    numbers = {
        "kept": chosen + 1,
        "epochs": [{"losses": epoch.losses, "validation": asdict(epoch.validation)} for epoch in epochs],
    }
    try:
        with replacing(checkpoint.with_suffix(".json")) as partial:
            partial.write_text(json.dumps(numbers, indent=1) + "\n", encoding="utf-8")
        with replacing(checkpoint.with_suffix(".md")) as partial:
            partial.write_text(model_card(info, checkpoint), encoding="utf-8")
        with replacing(checkpoint.with_suffix(".png")) as partial:
            draw_losses(epochs, chosen, partial)
    except OSError as error:
        raise KeepADError(f"the record of the training could not be written beside {checkpoint}: {error}.") from error


def model_card(info: CheckpointInfo, checkpoint: Path) -> str:
    """What a user of the checkpoint should know, as Markdown."""
    provenance, calibration = info.provenance, info.calibration
    data = "\n".join(
        f"| {one['suite']} | {one['classes']} | {one['images']} | {one['anomalous']} | {one['licence']} |"
        for one in provenance["data"]
    )
    unlike = [layer for layer, reading in zip(info.placement.head_layers, info.readings, strict=True) if reading.unlike]
    if any(reading.entry for reading in info.readings):
        unlike.insert(0, info.placement.deep - 1)
    validation = provenance["validation"]
    return f"""# {info.name}

{provenance["what"][0].upper()}{provenance["what"][1:]}.

| | |
|---|---|
| file | `{checkpoint.name}` |
| backbone | {info.backbone}, weights {str(info.backbone_digest)[:12]} |
| input | {info.image_size[0]} x {info.image_size[1]}, mean {_numbers(info.mean)}, deviation {_numbers(info.std)} |
| head layers | {_numbers(info.placement.head_layers)}; dissimilarity read at {_numbers(unlike) or "none"} |
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

On source images that the judging head had not seen ({_how(provenance["recipe"]["validation"])}): image AUROC \
{_percent(validation["image_auroc"])}, patch AUROC {_percent(validation["patch_auroc"])}. Means over the classes of a \
suite, then over suites. Nothing but the source chose anything.
{_routers_table(provenance)}
## Limits

Scores of different products are not on one scale: the thresholds come from source images and rank unseen products \
better than they label them. Set your own with `set_threshold` once you have seen a few good images. Defects that look \
like ordinary variation of the product, and defects of fewer than a handful of pixels at input size, are missed.
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
            right.plot(numbers, [100 * float(value) for value in values], marker=".", label=name)  # type: ignore[arg-type]
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


def _routers_table(provenance: dict[str, Any]) -> str:
    """What the routers do to the source, by operating point; nothing where they are not trained."""
    routers = provenance.get("routers")
    if not routers:
        return ""
    rows = "\n".join(
        f"| {point} | {_percent(one['image_auroc'])} | {_percent(one['patch_auroc'])} | {_percent(one['dtr'])} | "
        f"{one['missed']} of {one['anomalous']} | {_percent(one['keep'])} |"
        for point, one in routers["source"].items()
    )
    return f"""
Routers of recipe {routers["recipe"]["name"]}, seed {routers["seed"]}, epoch {routers["epoch"]}, on the source (or an \
even part of it; the routers have seen four images in five, the judging head none of that product where validation is \
by products):

| point | I-AUROC | patch AUROC | DTR | defects lost | keep |
|---|---|---|---|---|---|
{rows}
"""


def _top(calibration: Calibration) -> str:
    return f"top {100 * calibration.top_fraction:g} % of the {calibration.top_of}"


def _how(validation: str) -> str:
    return "each product judged by a head trained without it" if validation == "products" else "one image in five"


def _numbers(values: Sequence[float]) -> str:
    return " ".join(f"{value:g}" for value in values)


def _number(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.3f}"


def _percent(value: float | None) -> str:
    return "unknown" if value is None else f"{100 * value:.1f}"
