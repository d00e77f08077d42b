"""Fit the bundled default checkpoint: prototypes by gradient descent on cached features, selectors from a seed.

    python scripts/fit_default.py --data ../shared/data --suites mvtec --out src/keepad/checkpoints/default.safetensors

The backbone is frozen, so its features are computed once and kept in --cache. lambda, gate and thresholds are chosen by
leaving one class out at a time: a head fitted on the others scores it, as it will score products it has never seen.
Nothing but the named suites is looked at.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from rich.progress import track
from torch import Tensor

from keepad.backbone import load_backbone
from keepad.backbone.weights import cache_folder
from keepad.checkpoint import CheckpointInfo, write_checkpoint
from keepad.data import Sample, load_mask, read_dataset
from keepad.head import PrototypeHead
from keepad.images import read_image, to_input
from keepad.loading import trained_tensors, with_fresh_parts
from keepad.metrics import auroc, defect_tokens
from keepad.model import KeepAD
from keepad.presets import Calibration
from keepad.routing import selector_width
from keepad.scoring import blended_score
from keepad.version import __version__

LICENCES = {"mvtec": "CC BY-NC-SA 4.0", "ksdd": "CC BY-NC-SA 4.0"}
SEED = 42
EPOCHS, BATCH, RATE, DECAY = 15, 8, 1e-3, 0.01
FOLD_EPOCHS = 3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--suites", default="mvtec")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--cache", type=Path, default=cache_folder() / "fit-features")
    args = parser.parse_args()

    samples = list(read_dataset(args.data).select(suites=args.suites.split(","), split="test").samples)
    backbone, spec, digest = load_backbone()
    model = with_fresh_parts(backbone, spec, seed=SEED)
    cache = args.cache / f"{spec.name}-{digest[:12]}-{spec.image_size[0]}x{spec.image_size[1]}"
    features = [features_of(model, sample, cache) for sample in track(samples, "features")]
    grid = backbone.grid_of(*spec.image_size)
    targets = torch.stack(
        [torch.from_numpy(defect_tokens(load_mask(s, spec.image_size), grid)).flatten() for s in samples]
    )
    labels = torch.tensor([sample.label for sample in samples])
    classes = [f"{sample.suite}/{sample.cls}" for sample in samples]

    model.calibration = calibrate(model, features, targets, labels, classes)
    fit_head(model.head, features, targets.float(), labels, list(range(len(samples))), EPOCHS)
    seed_selectors(model, samples[:: max(1, len(samples) // 48)])

    info = CheckpointInfo(
        name="default",
        backbone=spec.name,
        backbone_digest=digest,
        image_size=spec.image_size,
        mean=spec.mean,
        std=spec.std,
        antialias=spec.antialias,
        temperature=model.head.temperature,
        placement=model.placement,
        calibration=model.calibration,
        provenance={
            "what": f"prototype head fitted on {args.suites}; selectors set up from a seed, not trained",
            "data": [
                {
                    "suite": suite,
                    "split": "test",
                    "images": sum(s.suite == suite for s in samples),
                    "anomalous": sum(s.suite == suite and s.label for s in samples),
                    "licence": licence_of(suite),
                }
                for suite in sorted({s.suite for s in samples})
            ],
            "licence": f"Apache-2.0; fitted on data under {', '.join(sorted({licence_of(s.suite) for s in samples}))}",
            "command": f"python scripts/fit_default.py --data DATA --suites {args.suites} --out {args.out.name}",
            "seed": SEED,
            "keepad": __version__,
        },
    )
    write_checkpoint(args.out, trained_tensors(model), info)
    print(f"{args.out}: {args.out.stat().st_size / 1e6:.1f} MB, {model.calibration}")


def licence_of(suite: str) -> str:
    return LICENCES.get(suite, "its own licence")


def pixels_of(model: KeepAD, sample: Sample) -> Tensor:
    """(1, 3, H, W) in [0, 1]."""
    pixels = to_input(read_image(sample.image), model.image_size)
    return torch.from_numpy(pixels).permute(2, 0, 1)[None].float() / 255


@torch.inference_mode()
def features_of(model: KeepAD, sample: Sample, cache: Path) -> Tensor:
    """(layers, 1 + N, C) unit features of the head layers, CLS first, half precision; computed once and kept."""
    path = cache / (sample.key.replace("/", "__") + ".npy")
    if not path.is_file():
        tokens, done, parts = model.backbone.embed(pixels_of(model, sample)), 0, []
        for layer in model.placement.head_layers:
            tokens, done = model.backbone.run(tokens, done + 1, layer), layer
            normed = model.backbone.norm(tokens.x)
            parts.append(F.normalize(torch.cat([tokens.cls(normed), tokens.patches(normed)]), dim=-1).half())
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_suffix(".part.npy")
        np.save(partial, torch.stack(parts).numpy())
        partial.replace(path)
    return torch.from_numpy(np.load(path))


def fit_head(
    head: PrototypeHead, features: list[Tensor], targets: Tensor, labels: Tensor, train: list[int], epochs: int
) -> None:
    """Focal + Dice on the patch grid, cross-entropy on the CLS pathway."""
    generator = torch.Generator().manual_seed(SEED)
    optimiser = torch.optim.AdamW(head.parameters(), lr=RATE, weight_decay=DECAY)
    steps = epochs * -(-len(train) // BATCH)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, steps)
    for epoch in range(epochs):
        order = torch.tensor(train)[torch.randperm(len(train), generator=generator)]
        total = 0.0
        for chosen in order.split(BATCH):
            batch = torch.stack([features[i] for i in chosen]).float()  # (B, layers, 1 + N, C)
            # Features are unit vectors already, so a cosine gap is one product with the gap between the prototypes.
            response = torch.sigmoid(gap_of(head.patch, batch[:, :, 1:]) / head.temperature).mean(1)
            cls = torch.sigmoid(gap_of(head.cls, batch[:, :, :1]) / head.temperature).squeeze(-1)  # (B, layers)
            target = targets[chosen]
            image = labels[chosen].float()[:, None].expand_as(cls)
            loss = focal(response, target) + dice(response, target) + F.binary_cross_entropy(cls, image)
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            schedule.step()
            total += float(loss.detach())
        print(f"epoch {epoch + 1} of {epochs}: loss {total / len(order.split(BATCH)):.4f}", flush=True)
    with torch.no_grad():  # the length of a prototype has no meaning
        head.patch.copy_(F.normalize(head.patch, dim=-1))
        head.cls.copy_(F.normalize(head.cls, dim=-1))


def gap_of(prototypes: Tensor, features: Tensor) -> Tensor:
    """How much nearer each feature is to the anomaly prototype: (layers, 2, C), (B, layers, n, C) -> (B, layers, n)."""
    normal, anomaly = F.normalize(prototypes, dim=-1).unbind(1)
    return (features @ (anomaly - normal).unsqueeze(-1)).squeeze(-1)


def focal(response: Tensor, target: Tensor, gamma: float = 2.0) -> Tensor:
    right = torch.where(target > 0, response, 1 - response).clamp(min=1e-5)
    return -((1 - right) ** gamma * right.log()).mean()


def dice(response: Tensor, target: Tensor) -> Tensor:
    overlap = (response * target).sum(1)
    return (1 - (2 * overlap + 1) / (response.sum(1) + target.sum(1) + 1)).mean()


@torch.no_grad()
def seed_selectors(model: KeepAD, samples: list[Sample]) -> None:
    """Selectors that make sense before training: unlike the image's mean, and like the anomaly prototype.

    Both projections are the same random orthonormal frame, so a query times a key is a plain inner product within it;
    a minus sign turns likeness to the mean into unlikeness. The frame of the deep router holds the direction between
    its two prototypes, and its scale makes one deviation of that likeness on source tokens two units of alpha.
    """
    width = model.backbone.width
    generator = torch.Generator().manual_seed(SEED)
    frame = orthonormal(torch.randn(selector_width(width), width, generator=generator))
    for visual in (model.shallow, model.deep.visual):
        visual.key.weight.copy_(frame)
        visual.query.weight.copy_(-frame)

    normal, anomaly = F.normalize(model.head.patch[0], dim=-1)
    gain: Tensor = model.backbone.vit.norm.weight  # type: ignore[union-attr, assignment]
    direction = anomaly - normal
    rows = torch.randn(selector_width(width), width, generator=generator)
    rows[0] = direction
    deep_frame = orthonormal(rows)
    model.deep.key.weight.copy_(deep_frame)
    model.deep.query.weight.copy_(deep_frame * gain)  # prototypes live behind the final norm, tokens before it

    like, visual_spread = [], []
    with torch.inference_mode():
        for sample in track(samples, "selector scale"):
            tokens = model.backbone.run(
                model.prefix(pixels_of(model, sample)), model.placement.shallow, model.placement.deep - 1
            )
            like.append((tokens.patches() @ (gain * direction) * model.deep.scale).std())
            visual_spread.append(model.deep.visual(tokens.patches()).std())
    model.deep.query.weight.mul_(2 / torch.stack(like).mean())
    model.deep.visual.query.weight.mul_(0.1 / torch.stack(visual_spread).mean())
    model.deep.gate.fill_(1.0)


def orthonormal(rows: Tensor) -> Tensor:
    """The first row's direction first, then the rest made perpendicular."""
    q, r = torch.linalg.qr(rows.T)
    return (q * r.diagonal().sign()).T.contiguous()


def calibrate(
    model: KeepAD, features: list[Tensor], targets: Tensor, labels: Tensor, classes: list[str]
) -> Calibration:
    """lambda, gate and thresholds from classes that the head which scores them has not seen."""
    place, layers = model.placement, model.head.layers
    patch, cls = torch.zeros(len(features), len(layers), targets.shape[1]), torch.zeros(len(features), len(layers))
    for name in sorted(set(classes)):
        unseen = [i for i, other in enumerate(classes) if other == name]
        train = [i for i, other in enumerate(classes) if other != name]
        torch.manual_seed(SEED)
        head = PrototypeHead(layers, model.backbone.width)
        fit_head(head, features, targets.float(), labels, train, FOLD_EPOCHS)
        with torch.no_grad():
            for i in unseen:
                f = features[i].float()
                for k, layer in enumerate(layers):
                    patch[i, k] = head.patch_response(layer, f[k, 1:])
                    cls[i, k] = head.cls_response(layer, f[k, :1])[0]

    def scores(chosen: tuple[int, ...], calibration: Calibration) -> Tensor:
        k = [layers.index(layer) for layer in chosen]
        return torch.stack([blended_score(patch[i, k], cls[i, k], calibration) for i in range(len(features))])

    def mean_auroc(values: Tensor) -> float:
        rows = {name: [i for i, other in enumerate(classes) if other == name] for name in sorted(set(classes))}
        return float(np.mean([auroc(values[i].numpy(), labels[i].numpy()) or 0.5 for i in rows.values()]))

    found: list[tuple[float, Calibration, Tensor]] = []
    for weight in (1.0, 0.75, 0.5, 0.25, 0.0):
        candidate = Calibration(patch_weight=weight)
        base, mid = scores(place.base_layers, candidate), scores(place.mid_layers, candidate)
        mean, std = float(base.mean()), float(base.std(correction=0))
        for centre in (0.0, -1.0, 1.0, -2.0, 2.0):
            gate = torch.sigmoid(((base - mean) / std - centre) / candidate.gate_temperature)
            gated = torch.lerp(base, mid, gate)
            found.append(
                (mean_auroc(gated), replace(candidate, base_mean=mean, base_std=std, gate_centre=centre), gated)
            )
            print(f"  lambda {weight}, gate centre {centre}: image AUROC of unseen classes {found[-1][0]:.4f}")
    # A small defect shows in patches before it shows in the CLS token: of all within a point of the best, the score
    # that listens to patches most, and then the best of those.
    ceiling = max(value for value, _, _ in found)
    near = [one for one in found if one[0] >= ceiling - 0.01]
    most = max(calibration.patch_weight for _, calibration, _ in near)
    value, best, best_scores = max((one for one in near if one[1].patch_weight == most), key=lambda one: one[0])
    print(f"chosen: lambda {best.patch_weight}, gate centre {best.gate_centre}, image AUROC {value:.4f}")
    maps = patch[:, [layers.index(layer) for layer in place.mid_layers]].mean(1)
    return replace(
        best,
        image_threshold=best_f1_threshold(best_scores.numpy(), labels.numpy()),
        pixel_threshold=best_f1_threshold(maps.flatten().numpy(), targets.flatten().numpy()),
    )


def best_f1_threshold(scores: np.ndarray, labels: np.ndarray) -> float:
    order = np.argsort(-scores)
    hits = np.cumsum(labels[order])
    f1 = 2 * hits / (np.arange(1, len(scores) + 1) + labels.sum())
    return float(scores[order][int(np.argmax(f1))])


if __name__ == "__main__":
    main()
