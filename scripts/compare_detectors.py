"""Dense detectors side by side on every suite that they were not trained on, from cached features.

    python scripts/compare_detectors.py --data ../shared/data --out docs/detector/transfer a.safetensors b.safetensors

A dense pass of the frozen backbone is the same for all checkpoints, so its block outputs come from the feature cache
(half precision); from there on the detector's own code makes maps and scores. Finished classes are kept.
"""

from __future__ import annotations

import argparse
import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from keepad.backbone import load_backbone
from keepad.backbone.weights import cache_folder
from keepad.checkpoint import CheckpointInfo, read_checkpoint
from keepad.console import progress
from keepad.data import Sample, read_dataset
from keepad.loading import assemble
from keepad.metrics import PixelMetrics, auroc
from keepad.network import Evidence, KeepAD
from keepad.presets import POINTS
from keepad.tokens import Tokens
from keepad.training.dataset import Source, fill, gather, masks_of
from keepad.training.feature_cache import FeatureCache


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("checkpoints", nargs="+", type=Path)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--suites", help="only these, separated by commas")
    parser.add_argument("--out", type=Path, required=True, help="results are written to OUT.json and OUT.md")
    args = parser.parse_args()
    backbone, _, digest = load_backbone()
    cache = FeatureCache(backbone, digest)
    models: dict[str, tuple[CheckpointInfo, KeepAD]] = {}
    digests: dict[str, str] = {}  # what was measured of a checkpoint says nothing about another one of its name
    for path in args.checkpoints:
        info, tensors = read_checkpoint(path)
        digests[path.stem] = hashlib.sha256(path.read_bytes()).hexdigest()[:12]
        models[path.stem] = (info, assemble(backbone, info, tensors, source=path.name))

    suites = args.suites.split(",") if args.suites else None
    dataset = read_dataset(args.data).select(suites=suites, split="test")
    state = cache_folder() / "compare"
    results: dict[str, Any] = {}
    for suite in sorted({sample.suite for sample in dataset.samples}):
        unseen = {n: m for n, (info, m) in models.items() if suite not in [d["suite"] for d in info.provenance["data"]]}
        for (_, cls), samples in dataset.select(suites=[suite]).by_class().items():
            for name, model in unseen.items():
                path = state / f"{digests[name]}-{suite}-{cls}.json"
                if not path.is_file():
                    found = measured(model, samples, cache, f"{name}: {suite} {cls}")
                    path.parent.mkdir(parents=True, exist_ok=True)
                    path.write_text(json.dumps(found))
                results.setdefault(name, {}).setdefault(suite, {})[cls] = json.loads(path.read_text())
    args.out.parent.mkdir(parents=True, exist_ok=True)
    recipes = {name: {**info.provenance, "calibration": vars(info.calibration)} for name, (info, _) in models.items()}
    args.out.with_suffix(".json").write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    given = " ".join(path.name for path in args.checkpoints)
    command = f"python scripts/compare_detectors.py --data DATA --out docs/detector/{args.out.name} {given}"
    args.out.with_suffix(".md").write_text(to_markdown(results, recipes, command), encoding="utf-8")


@torch.inference_mode()
def measured(model: KeepAD, samples: Sequence[Sample], cache: FeatureCache, title: str) -> dict[str, float | None]:
    """Image and pixel AUROC of one class."""
    grid = model.backbone.grid_of(*model.image_size)
    source = gather(samples, views=0, size=model.image_size, grid=grid)
    fill(source, cache, layers_of(model))
    masked = all(sample.mask is not None for sample in samples if sample.label)
    pixels, scores = PixelMetrics(), []
    with progress(title, len(samples)) as advance:
        for place in range(len(samples)):
            score, map_ = judged(model, source, place, cache)
            scores.append(score)
            if masked:
                pixels.update(map_, masks_of([source.images[place]], model.image_size)[0].numpy())
            advance(1)
    labels = [entry.label for entry in source.images]
    return {"image": auroc(scores, labels), "pixel": pixels.compute().auroc.value if masked else None}


def layers_of(model: KeepAD) -> tuple[int, ...]:
    """Blocks whose outputs the detector looks at."""
    place = model.placement
    return (place.deep - 1, *place.head_layers) if model.head.reads_entry else place.head_layers


def judged(model: KeepAD, source: Source, place: int, cache: FeatureCache) -> tuple[float, np.ndarray]:
    """Score and pixel map of one image, from its cached block outputs."""
    rows, columns = source.grid
    index = torch.arange(rows * columns)
    evidence = Evidence()
    layers = layers_of(model)
    for layer, x in zip(layers, cache.load(source.images[place].key, layers).float(), strict=True):
        tokens = Tokens(x, index, (rows * columns,), source.grid, prefix=1)
        if layer in model.placement.head_layers:
            model.read(layer, tokens, evidence)
        else:
            evidence.entry = model.dissimilarity(tokens)
    ((score, _, pixels),) = model.judge(evidence, [index], source.grid, POINTS["dense"], model.image_size)
    return float(score), pixels.numpy()


def to_markdown(results: dict[str, Any], provenance: dict[str, dict[str, Any]], command: str) -> str:
    """Suites as rows, detectors as columns."""

    def mean(values: Sequence[float | None]) -> float | None:
        known = [value for value in values if value is not None]
        return float(np.mean(known)) if known else None

    def cell(image: float | None, pixel: float | None) -> str:
        return " / ".join("-" if value is None else f"{100 * value:.1f}" for value in (image, pixel))

    lines = [
        "# Dense detectors on suites they were not trained on",
        "",
        f"Made by `{command}`.",
        "Image AUROC / pixel AUROC in percent at 518 px; means over the classes of a suite, then over suites.",
        "brainmri has no masks and is left out of the means.",
        "",
        "| detector | recipe | trained on | kept epoch | lambda | held-out source I / patch AUROC |",
        "|---|---|---|---|---|---|",
    ]
    for name, one in provenance.items():
        found = one["validation"]
        trained = " ".join(entry["suite"] for entry in one["data"])
        weight = one["calibration"]["patch_weight"]
        row = (name, one["recipe"]["name"], trained, str(one["epoch"]), f"{weight:g}")
        lines.append(f"| {' | '.join(row)} | {cell(found['image_auroc'], found['patch_auroc'])} |")
    lines += ["", f"| suite | class | {' | '.join(results)} |", f"|---|---|{'---|' * len(results)}"]
    suites = sorted({suite for found in results.values() for suite in found})
    means: dict[str, list[tuple[float | None, float | None]]] = {name: [] for name in results}
    for suite in suites:
        classes = sorted({cls for found in results.values() for cls in found.get(suite, {})})
        for cls in classes:
            cells = [
                cell(one["image"], one["pixel"]) if (one := found.get(suite, {}).get(cls)) else "seen"
                for found in results.values()
            ]
            lines.append(f"| {suite} | {cls} | {' | '.join(cells)} |")
        cells = []
        for name, found in results.items():
            if suite not in found:
                cells.append("seen")
                continue
            both = (
                mean([one["image"] for one in found[suite].values()]),
                mean([one["pixel"] for one in found[suite].values()]),
            )
            cells.append(f"**{cell(*both)}**")
            if both[1] is not None:
                means[name].append(both)
        lines.append(f"| **{suite}** | mean | {' | '.join(cells)} |")
    total = [cell(mean([i for i, _ in means[name]]), mean([p for _, p in means[name]])) for name in results]
    lines += [f"| **all** | mean over suites | {' | '.join(f'**{one}**' for one in total)} |", ""]
    by_recipe: dict[str, list[str]] = {}
    for name, one in provenance.items():
        by_recipe.setdefault(one["recipe"]["name"], []).append(name)
    lines += ["| recipe | average over its directions, I / P |", "|---|---|"]
    for recipe, names in by_recipe.items():
        image = mean([mean([i for i, _ in means[name]]) for name in names])
        pixel = mean([mean([p for _, p in means[name]]) for name in names])
        lines.append(f"| {recipe} ({', '.join(names)}) | **{cell(image, pixel)}** |")
    return "\n".join([*lines, ""])


if __name__ == "__main__":
    main()
