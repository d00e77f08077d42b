"""anomalib's AnomalyDINO and KeepAD with the same backbone weights, images, references and input size.

    pip install -e ".[torch]" anomalib   # an environment of its own
    python benchmarks/anomalydino.py --data ../shared/data --suites mvtec --model i2m --out docs/results/anomalydino.md

AnomalyDINO is anomalib's own model with the weights that the checkpoint's backbone has here. Both get the pixels that
KeepAD makes of a file; references are those of `keepad evaluate --shots`. Passes are interleaved, one image at a time,
both in torch; a time includes normalisation, network, matching, map and score. A class that is finished is kept in the
JSON file beside the table, and the same command goes on.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import timm
import torch

import keepad
from keepad.arrays import Array
from keepad.backbone import load_backbone
from keepad.console import command_line, progress
from keepad.data import Sample, load_mask, read_dataset
from keepad.detector import Detector
from keepad.evaluate.markdown import table
from keepad.evaluate.selection import groups_of
from keepad.evaluate.shots import ReferencePool, draw
from keepad.evaluate.variants import Shots, Variant
from keepad.files import replace_text
from keepad.images import read_image, to_input
from keepad.metrics import PixelMetrics, auroc
from keepad.presets import operating_point
from keepad.references.bank import Bank

Pass = Callable[[Array], tuple[float, Array]]
OURS, THEIRS = "KeepAD", "AnomalyDINO"


def anomaly_dino(detector: Detector, references: Sequence[Array]) -> Pass:
    """anomalib's model with our backbone's weights and a memory of the references, (H, W, 3) uint8 each."""
    from anomalib.models.image.anomaly_dino.torch_model import AnomalyDINOModel

    backbone, spec, _ = load_backbone(detector.backbone_name)
    create = timm.create_model
    with patch.object(
        timm, "create_model", lambda *names, **options: create(*names, **{**options, "pretrained": False})
    ):
        model = AnomalyDINOModel(encoder_name=spec.architecture)
    model.feature_encoder.feature_extractor.load_state_dict(backbone.vit.state_dict())
    mean, std = (torch.tensor(values).view(1, 3, 1, 1) for values in (spec.mean, spec.std))

    def normalised(pixels: Array) -> torch.Tensor:
        return (torch.from_numpy(pixels).permute(2, 0, 1)[None].float() / 255 - mean) / std

    with torch.inference_mode():
        model.train()
        for pixels in references:
            model(normalised(pixels))
        model.fit()
        model.eval()

    def infer(pixels: Array) -> tuple[float, Array]:
        with torch.inference_mode():
            result = model(normalised(pixels))
        # A cosine distance lies in [0, 2], a map of ours in [0, 1]; ranks stay.
        return float(result.pred_score), (result.anomaly_map[0, 0] / 2).clamp(0, 1).numpy()

    return infer


def keep_ad(detector: Detector, point: str, bank: Bank) -> Pass:
    """A pruned pass of ours with a bank of the references."""
    chosen = operating_point(point)

    def infer(pixels: Array) -> tuple[float, Array]:
        (result,) = detector.infer(pixels[None], [chosen], references={chosen.name: bank})[chosen.name]
        return result.score, result.anomaly_map

    return infer


def measured(passes: dict[str, Pass], samples: Sequence[Sample], size: tuple[int, int]) -> dict[str, Any]:
    """I-AUROC, P-AUROC and times of both on the images of a class."""
    scores: dict[str, list[float]] = {name: [] for name in passes}
    seconds: dict[str, list[float]] = {name: [] for name in passes}
    pixel = {name: PixelMetrics() for name in passes}
    labels = [sample.label for sample in samples]
    has_masks = any(sample.mask is not None for sample in samples)
    for number, sample in enumerate(samples):
        pixels = to_input(read_image(sample.image), size)
        mask = load_mask(sample, size) if has_masks and (sample.label == 0 or sample.mask is not None) else None
        for name in sorted(passes, reverse=bool(number % 2)):  # each goes first in turn
            started = time.perf_counter()
            score, anomaly_map = passes[name](pixels)
            seconds[name].append(time.perf_counter() - started)
            scores[name].append(score)
            if mask is not None:
                pixel[name].update(anomaly_map, mask)
    found = {}
    for name in passes:
        pixels_auroc = pixel[name].compute().auroc
        found[name] = {
            "i_auroc": _percent(auroc(scores[name], labels)),
            "p_auroc": None if pixels_auroc is None else 100 * pixels_auroc.value,
            "ms": 1e3 * statistics.median(seconds[name]),
        }
    return {
        "good": labels.count(0),
        "defect": labels.count(1),
        "ratio": statistics.median(np.divide(seconds[THEIRS], seconds[OURS]).tolist()),
        **found,
    }


def _percent(value: float | None) -> float | None:
    return None if value is None else 100 * value


def run(args: argparse.Namespace) -> dict[str, Any]:
    """All classes, with those that an interrupted run has measured taken from its file."""
    detector = keepad.load(args.model, point=args.point, engine="torch", device="cpu")
    dataset = read_dataset(args.data).select(suites=args.suites.split(","))
    groups = groups_of(dataset, args.limit)
    shots = [Shots(args.shots, number) for number in range(args.draws)]
    variants = [Variant(f"draw {each.draw}", operating_point(args.point), shots=each) for each in shots]
    pool = ReferencePool(dataset, {name: list(samples) for name, samples in groups.items()}, variants)
    groups = pool.without_references(groups)
    settings = {
        "command": command_line(["python", *sys.argv]),
        "model": detector.name,
        "backbone": detector.backbone_name,
        "point": args.point,
        "references": args.shots,
        "draws": args.draws,
        "limit": args.limit,
        "input": list(detector.image_size),
        "threads": torch.get_num_threads(),
        "versions": {name: version(name) for name in ("anomalib", "torch", "timm")},
        "digests": detector.digests(),
    }
    file = args.out.with_suffix(".json")
    content: dict[str, Any] = {"settings": settings, "rows": []}
    if file.exists():
        stored = json.loads(file.read_text(encoding="utf-8"))
        if stored["settings"] == settings:
            content = stored
    done = {(row["suite"], row["class"], row["draw"]) for row in content["rows"]}
    with progress("anomalydino", len(groups) * len(shots)) as advance:
        for name, samples in groups.items():
            if any((*name, each.draw) not in done for each in shots):
                content["rows"] += _rows(detector, args, pool, name, samples, variants)
            args.out.parent.mkdir(parents=True, exist_ok=True)
            replace_text(file, json.dumps(content, indent=1) + "\n")
            advance(len(shots))
    return content


def _rows(
    detector: Detector,
    args: argparse.Namespace,
    pool: ReferencePool,
    name: tuple[str, str],
    samples: Sequence[Sample],
    variants: Sequence[Variant],
) -> list[dict[str, Any]]:
    """Measurements of one class, one for each draw."""
    banks = pool.banks(detector, name)
    rows = []
    for variant in variants:
        assert variant.shots is not None
        paths = [sample.image for sample in draw(pool.of(name), variant.shots, name)]
        references = [to_input(read_image(path), detector.image_size) for path in paths]
        passes = {
            OURS: keep_ad(detector, args.point, banks[variant.name]),
            THEIRS: anomaly_dino(detector, references),
        }
        for infer in passes.values():
            infer(references[0])  # untimed
        found = measured(passes, samples, detector.image_size)
        rows.append({"suite": name[0], "class": name[1], "draw": variant.shots.draw, **found})
    return rows


def to_markdown(content: dict[str, Any]) -> str:
    """The table of `docs/results/anomalydino.md`."""
    settings, rows = content["settings"], content["rows"]
    names = list(dict.fromkeys((row["suite"], row["class"]) for row in rows))
    lines = []
    for suite, cls in names:
        own = [row for row in rows if (row["suite"], row["class"]) == (suite, cls)]
        lines.append([f"{suite}/{cls}", f"{own[0]['good']} + {own[0]['defect']}", *_cells(own)])
    if len(names) > 1:
        lines.append(["mean", "", *_cells(rows)])
    columns = [f"{metric}, {name}" for metric in ("I-AUROC", "P-AUROC", "ms") for name in (THEIRS, OURS)]
    versions = ", ".join(f"{name} {number}" for name, number in settings["versions"].items())
    height, width = settings["input"]
    return (
        "# anomalib's AnomalyDINO with our weights\n\n"
        f"`{settings['command']}`\n\n"
        f"Both have the weights of {settings['backbone']}, {width} x {height} pixels, the same "
        f"{settings['references']} references of each class (those of `keepad evaluate --shots`, draws: "
        f"{settings['draws']}) and the same test images. KeepAD is the checkpoint {settings['model']} at "
        f"{settings['point']}. Times are medians of passes one "
        f"image at a time, interleaved, in torch with {settings['threads']} threads: normalisation, network, matching, "
        f"map and score. {versions}.\n\n"
        + table(["class", "good + defect", *columns, "AnomalyDINO / KeepAD, time"], lines, words=2)
        + "\n"
    )


def _cells(rows: Sequence[dict[str, Any]]) -> list[str]:
    cells = []
    for metric in ("i_auroc", "p_auroc", "ms"):
        for name in (THEIRS, OURS):
            values = [row[name][metric] for row in rows if row[name][metric] is not None]
            cells.append("-" if not values else f"{statistics.mean(values):.1f}")
    return [*cells, f"{statistics.median([row['ratio'] for row in rows]):.2f}x"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--suites", default="mvtec")
    parser.add_argument("--model", default="i2m")
    parser.add_argument("--point", default="prune70")
    parser.add_argument("--shots", type=int, default=4)
    parser.add_argument("--draws", type=int, default=1)
    parser.add_argument("--limit", type=int, default=40, help="test images of each class, half of them defective")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    replace_text(args.out, to_markdown(run(args)))


if __name__ == "__main__":
    main()
