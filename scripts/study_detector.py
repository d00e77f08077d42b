"""What is worth having in the dense detector: variants of the head, compared on held-out source, then once on target.

    python scripts/study_detector.py --data ../shared/data --out docs/detector

Every variant is trained in both directions on cached features. On the source, each product is judged by a head that was
trained without it; only that column chooses. The target column is computed once, after the choice, for all variants.
Results are kept in --state after every step, so the command can be interrupted and goes on.
"""

from __future__ import annotations

import argparse
import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from keepad.backbone import load_backbone
from keepad.backbone.weights import cache_folder
from keepad.checkpoint import read_checkpoint
from keepad.console import progress
from keepad.data import read_dataset
from keepad.presets import Calibration, Placement, Reading
from keepad.training.calibration import HeldOut, Validation, calibrate, level_readings, validate
from keepad.training.dataset import Source, fill, folds_of, gather
from keepad.training.feature_cache import FeatureCache
from keepad.training.losses import dice, focal, label_entropy

DIRECTIONS = {"M2I": (["mvtec"], ["mpdd", "dagm", "mtd", "ksdd"]), "I2M": (["mpdd", "dagm", "mtd", "ksdd"], ["mvtec"])}
LAYERS = (6, 8, 9, 11, 12)
ENTRY = 5  # the block before the deep router
BATCH, RATE, DECAY, SEED = 8, 1e-3, 0.01, 42


@dataclass(frozen=True)
class Variant:
    """One way to build the head; the first one is the published form.

    Attributes:
        name: Row of the table.
        layers: Blocks that feed the head.
        norm: Whether features pass the backbone's final norm.
        centred: Whether patches are measured from their image's mean.
        pairs: Prototypes on each side.
        hidden: Width of a GELU bottleneck before the prototypes; 0 is none.
        temperature: Of training.
        learned: Whether the temperature learns.
        augmented: Whether half of the samples are views.
        epochs: Passes over the source.
        level: Equal spread of evidence instead of one temperature.
        unlike: Weight of dissimilarity.
        entry: Weight of dissimilarity where tokens enter the deep router.
        centre: Evidence that becomes a response of one half.
        prototypes: Whether prototypes count; without them dissimilarity is alone.
        top: Share of patches that make the image score.
    """

    name: str
    layers: tuple[int, ...] = LAYERS
    norm: bool = True
    centred: bool = False
    pairs: int = 1
    hidden: int = 0
    temperature: float = 0.07
    learned: bool = False
    augmented: bool = False
    epochs: int = 3
    level: bool = False
    unlike: float = 0.0
    entry: float = 0.0
    centre: float = 0.0
    prototypes: bool = True
    top: float = 0.05

    @property
    def features(self) -> tuple[bool, bool]:
        """Variants that agree in this see the same features."""
        return self.norm, self.centred

    @property
    def trained(self) -> str:
        """Variants that agree in this share their training."""
        parts = (self.layers, self.norm, self.centred, self.pairs, self.hidden, self.temperature, self.learned)
        return repr((*parts, self.augmented, self.epochs))


PAPER = Variant("published form: layers 6 8 9 11 12")
THREE = Variant("layers 6 8 9", layers=(6, 8, 9))
LEVEL = replace(THREE, name="layers 6 8 9, equal spread", level=True)
SPLIT = replace(
    LEVEL, name="6 8 9, equal spread + 0.5 dissimilarity + 0.5 at layer 5, top 1 %", unlike=0.5, entry=0.5, top=0.01
)
VARIANTS = (
    PAPER,
    replace(PAPER, name="published form, equal spread", level=True),
    Variant("layers 6 8 9 11", layers=(6, 8, 9, 11)),
    THREE,
    Variant("layers 8 9", layers=(8, 9)),
    replace(THREE, name="6 8 9, without the final norm", norm=False),
    replace(THREE, name="6 8 9, centred on the image mean", centred=True),
    replace(THREE, name="6 8 9, temperature 0.2", temperature=0.2),
    replace(THREE, name="6 8 9, learned temperature", learned=True),
    replace(THREE, name="6 8 9, four prototypes a side", pairs=4),
    replace(THREE, name="6 8 9, GELU bottleneck of 16", hidden=16),
    replace(THREE, name="6 8 9, collage and crop", augmented=True),
    LEVEL,
    replace(LEVEL, name="6 8 9, dissimilarity alone", prototypes=False, unlike=1.0),
    *(replace(LEVEL, name=f"6 8 9, equal spread + {w:g} dissimilarity", unlike=w) for w in (0.5, 1.0, 2.0)),
    replace(LEVEL, name="6 8 9, equal spread + 1 dissimilarity, top 1 %", unlike=1.0, top=0.01),
    replace(LEVEL, name="6 8 9, equal spread + 1 dissimilarity, collage and crop", unlike=1.0, augmented=True),
    SPLIT,
    *(replace(SPLIT, name=f"the same, centred at {c:g}", centre=c) for c in (2.0, 4.0, 6.0)),
)


class Bank(torch.nn.Module):
    """Heads of one variant that train side by side, as in keepad.training.head_bank, with what this study needs."""

    def __init__(self, variant: Variant, heads: int, width: int) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(SEED)
        self.variant, layers = variant, len(variant.layers)

        def drawn(*shape: int, scale: float = 0.02) -> torch.nn.Parameter:
            first = torch.randn(1, *shape, generator=generator) * scale
            return torch.nn.Parameter(first.repeat(heads, *([1] * len(shape))))

        inner = variant.hidden or width
        self.down = drawn(layers, width, variant.hidden, scale=width**-0.5) if variant.hidden else None
        self.patch = drawn(layers, 2, variant.pairs, inner)
        self.cls = drawn(layers, 2, 1, width)
        self.temperature = torch.nn.Parameter(torch.full((heads,), np.log(variant.temperature)), variant.learned)

    def forward(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """(heads, B, layers, N) and (heads, B, layers) logits of (B, layers, 1 + N, C) unit features."""
        heads = len(self.patch)
        cold = self.temperature.exp()
        patches = features[:, :, 1:]
        sides = F.normalize(self.patch, dim=-1)  # heads, L, 2, K, C
        if self.down is not None:
            inner = torch.einsum("blnc,hlck->hblnk", patches, self.down)
            inner = F.normalize(F.gelu(inner), dim=-1)
            cosines = torch.einsum("hblnk,hlspk->hblnsp", inner, sides)
        elif self.variant.pairs == 1:
            gap = (sides[:, :, 1, 0] - sides[:, :, 0, 0]).permute(1, 2, 0)  # L, C, heads
            cls = self._cls(features) / cold.view(-1, 1, 1)
            return (patches @ gap).permute(3, 0, 1, 2) / cold.view(-1, 1, 1, 1), cls
        else:
            flat = sides.permute(1, 4, 0, 2, 3).flatten(2)  # L, C, heads*2*K
            cosines = (patches @ flat).unflatten(-1, (heads, 2, self.variant.pairs)).permute(3, 0, 1, 2, 4, 5)
        pooled = torch.logsumexp(cosines / cold.view(-1, 1, 1, 1, 1, 1), dim=-1)
        return pooled[..., 1] - pooled[..., 0], self._cls(features) / cold.view(-1, 1, 1)

    def last_alone(self) -> Bank:
        """A bank of only the head that saw the whole source."""
        alone = Bank(self.variant, 1, self.cls.shape[-1])
        alone.load_state_dict({name: tensor[-1:] for name, tensor in self.state_dict().items()})
        return alone

    def _cls(self, features: Tensor) -> Tensor:
        sides = F.normalize(self.cls, dim=-1)[:, :, :, 0]
        gap = (sides[:, :, 1] - sides[:, :, 0]).permute(1, 2, 0)
        return (features[:, :, :1] @ gap).squeeze(2).permute(2, 0, 1)


class Features:
    """Unit features of all pictures of a source in memory, for variants that agree in how to make them."""

    def __init__(
        self, source: Source, cache: FeatureCache, norm: Callable[[Tensor], Tensor], variants: Sequence[Variant]
    ) -> None:
        self.source = source
        self._layers = sorted({layer for variant in variants for layer in variant.layers})
        normed, centred = variants[0].features
        views = any(variant.augmented for variant in variants) and any(source.views)
        keys = [entry.key for entry in source.images] + ([v[0].key for v in source.views] if views else [])
        width = cache.load(keys[0], self._layers[:1]).shape[-1]
        tokens = 1 + source.grid[0] * source.grid[1]
        self.data = torch.empty(len(keys), len(self._layers), tokens, width, dtype=torch.float16)
        with torch.inference_mode(), progress("features into memory", len(keys)) as advance:
            for row, key in enumerate(keys):
                x = cache.load(key, self._layers).float()
                x = norm(x) if normed else x
                if centred:
                    x = torch.cat([x[:, :1], x[:, 1:] - x[:, 1:].mean(1, keepdim=True)], dim=1)
                self.data[row] = F.normalize(x, dim=-1).half()
                advance(1)

    def rows(self, places: Sequence[int], layers: Sequence[int]) -> Tensor:
        chosen = [self._layers.index(layer) for layer in layers]
        return torch.stack([self.data[place][chosen] for place in places]).float()


def train(variant: Variant, features: Features, folds: Tensor) -> Bank:
    """All heads of a variant: one without each fold, and one on everything."""
    source = features.source
    heads = int(folds.max()) + 2
    bank = Bank(variant, heads, features.data.shape[-1])
    sees = (folds[:, None] != torch.arange(heads)).float()
    optimiser = torch.optim.AdamW([p for p in bank.parameters() if p.requires_grad], lr=RATE, weight_decay=DECAY)
    count = len(source.images)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, variant.epochs * -(-count // BATCH))
    generator = torch.Generator().manual_seed(SEED)
    for _ in range(variant.epochs):
        order = torch.randperm(count, generator=generator)
        swapped = (torch.rand(count, generator=generator) < 0.5) & variant.augmented
        for places in order.split(BATCH):
            entries = [source.views[p][0] if swapped[p] else source.images[p] for p in places.tolist()]
            rows = [p + count if swapped[p] else p for p in places.tolist()]
            patch, cls = bank(features.rows(rows, variant.layers))
            maps, labels = torch.sigmoid(patch).mean(2), torch.tensor([float(entry.label) for entry in entries])
            target = torch.from_numpy(np.stack([entry.defect for entry in entries])).float()  # type: ignore[arg-type]
            loss = torch.zeros(())
            for head in range(heads):
                seen = sees[places, head]
                each = focal(maps[head], target) + dice(maps[head], target)
                each = each + label_entropy(torch.sigmoid(cls[head]), labels)
                loss = loss + (each * seen).sum() / seen.sum().clamp(min=1)
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            schedule.step()
    return bank


@torch.inference_mode()
def evidence(
    bank: Bank, variant: Variant, features: Features, head_of: Sequence[int], unlike: dict[int, Tensor]
) -> HeldOut:
    """What each image looks like to the head that is named for it."""
    source, patches, tokens = features.source, [], []
    for place, head in enumerate(head_of):
        patch, cls = bank(features.rows([place], variant.layers))
        patches.append(patch[head, 0].half())
        tokens.append(cls[head, 0])
    patch_logits = torch.stack(patches)
    return HeldOut(
        patch=patch_logits if variant.prototypes else torch.zeros_like(patch_logits),
        cls=torch.stack(tokens),
        unlike=torch.stack([unlike[layer] for layer in variant.layers], dim=1) if variant.unlike else None,
        entry=unlike[ENTRY] if variant.entry else None,
        labels=np.array([entry.label for entry in source.images]),
        defects=[entry.defect for entry in source.images],
        classes=source.classes,
        layers=variant.layers,
        grid=source.grid,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--state", type=Path, default=cache_folder() / "study")
    parser.add_argument("--target", action="store_true", help="after the choice: what each variant does on the target")
    parser.add_argument(
        "--beside", nargs="*", type=Path, default=(), help="trained checkpoints whose validation is shown"
    )
    args = parser.parse_args()
    study = Study(args.data, args.state)
    for direction, (sources, targets) in DIRECTIONS.items():
        study.learn(direction, sources)
        if args.target:
            study.transfer(direction, targets)
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / "study.md").write_text(to_markdown(study.results, args.beside), encoding="utf-8")


class Study:
    """All variants in all directions, resumable.

    Args:
        data: Folder with all suites.
        folder: Where results and trained variants are kept.
    """

    def __init__(self, data: Path, folder: Path) -> None:
        self._data, self._folder = data, folder
        self._backbone, self._spec, digest = load_backbone()
        self._cache = FeatureCache(self._backbone, digest)
        self._grid = self._backbone.grid_of(*self._spec.image_size)
        self._file = folder / "results.json"
        folder.mkdir(parents=True, exist_ok=True)
        self.results: dict[str, dict[str, Any]] = json.loads(self._file.read_text()) if self._file.is_file() else {}

    def learn(self, direction: str, suites: Sequence[str]) -> None:
        """Train every variant and ask heads about products that they have not seen."""
        for form in dict.fromkeys(variant.features for variant in VARIANTS):
            missing = [one for one in VARIANTS if f"{direction}/source/{one.name}" not in self.results]
            todo = [one for one in missing if one.features == form and self._worth_trying(one, direction)]
            if not todo:
                continue
            views = any(variant.augmented for variant in todo)
            source = self._source(suites, int(views))
            unlike = unlikeness_of(source, self._cache, todo)
            features = Features(source, self._cache, self._backbone.norm, todo)
            folds = folds_of(source, "products")
            for variant in todo:
                bank = self._bank(direction, variant, features, folds)
                held = evidence(bank, variant, features, folds.tolist(), unlike)
                readings, placement = readings_of(variant, held), placement_of(variant, self._backbone.depth)
                calibration, found = calibrate(held, readings, placement, Calibration(top_fraction=variant.top))
                smoothed = validate(held, readings, placement, replace(calibration, smoothing=1.0))
                self._keep(
                    f"{direction}/source/{variant.name}",
                    found,
                    smoothed,
                    readings=[vars(reading) for reading in readings],
                    calibration=vars(calibration),
                )

    def transfer(self, direction: str, suites: Sequence[str]) -> None:
        """What the head of the whole source does on the target, calibrated on the source."""
        for form in dict.fromkeys(variant.features for variant in VARIANTS):
            todo = [
                one
                for one in VARIANTS
                if one.features == form
                and f"{direction}/source/{one.name}" in self.results
                and f"{direction}/target/{one.name}" not in self.results
            ]
            if not todo:
                continue
            target = self._source(suites, 0)
            unlike = unlikeness_of(target, self._cache, todo)
            features = Features(target, self._cache, self._backbone.norm, todo)
            for variant in todo:
                bank = self._bank(direction, variant, features, None).last_alone()
                held = evidence(bank, variant, features, [0] * len(target.images), unlike)
                known = self.results[f"{direction}/source/{variant.name}"]
                readings = tuple(Reading(**reading) for reading in known["readings"])
                calibration, placement = (
                    Calibration(**known["calibration"]),
                    placement_of(variant, self._backbone.depth),
                )
                found = validate(held, readings, placement, calibration)
                smoothed = validate(held, readings, placement, replace(calibration, smoothing=1.0))
                self._keep(f"{direction}/target/{variant.name}", found, smoothed)

    def _worth_trying(self, variant: Variant, direction: str) -> bool:
        """What lost against its base in the first direction cannot win in both; what costs little is tried anyway."""
        first = next(iter(DIRECTIONS))
        costly = (variant.pairs, variant.hidden, variant.norm, variant.centred, variant.learned) != (
            1,
            0,
            True,
            False,
            False,
        )
        return direction == first or not costly or self._gain(variant, first) > 0.002

    def _gain(self, variant: Variant, direction: str) -> float:
        own, base = (self.results[f"{direction}/source/{one.name}"] for one in (variant, THREE))
        return (own["image"] + own["patch"]) - (base["image"] + base["patch"])

    def _source(self, suites: Sequence[str], views: int) -> Source:
        samples = read_dataset(self._data).select(suites=suites, split="test").samples
        with progress(" ".join(suites), len(samples)) as advance:
            source = gather(samples, views=views, size=self._spec.image_size, grid=self._grid, advance=advance)
        with progress("features", len(samples)) as advance:  # nothing to do where stage 1 was trained before
            fill(source, self._cache, LAYERS, advance=advance)
        fill(replace(source, views=((),) * len(samples)), self._cache, (ENTRY,))  # views are never asked for it
        return source

    def _bank(self, direction: str, variant: Variant, features: Features, folds: Tensor | None) -> Bank:
        """The bank of a variant, trained unless a variant with the same training was."""
        name = hashlib.sha256(variant.trained.encode()).hexdigest()[:16]
        path = self._folder / direction / f"{name}.pt"
        if path.is_file():
            state = torch.load(path, weights_only=True)
            bank = Bank(variant, len(state["patch"]), features.data.shape[-1])
            bank.load_state_dict(state)
            return bank
        assert folds is not None
        bank = train(variant, features, folds)
        path.parent.mkdir(parents=True, exist_ok=True)
        torch.save(bank.state_dict(), path)
        return bank

    def _keep(self, name: str, found: Validation, smoothed: Validation, **more: object) -> None:
        self.results[name] = {
            "image": found.image_auroc,
            "patch": found.patch_auroc,
            "smoothed": smoothed.patch_auroc,
            **more,
        }
        self._file.write_text(json.dumps(self.results, indent=1))
        print(f"{name}: {found}", flush=True)


def to_markdown(results: dict[str, dict[str, Any]], beside: Sequence[Path] = ()) -> str:
    """One row a variant: held-out source and target, both directions; then whole trainings."""

    def cells(place: str, variant: Variant) -> str:
        numbers = results.get(f"{place}/{variant.name}")
        if numbers is None:
            return "- | - | -"
        return " | ".join(f"{100 * numbers[key]:.1f}" for key in ("image", "patch", "smoothed"))

    places = [f"{direction}/{part}" for part in ("source", "target") for direction in DIRECTIONS]
    head = " | ".join(f"{place.replace('/', ' ')} I | P | P smoothed" for place in places)
    rows = [f"| {variant.name} | {' | '.join(cells(place, variant) for place in places)} |" for variant in VARIANTS]
    return "\n".join(
        [
            "# What was tried in the dense detector",
            "",
            "Made by `python scripts/study_detector.py --data DATA --out docs/detector --target`. I: image AUROC,",
            "P: AUROC of patches with any-overlap labels on the 37x37 grid, also after a Gaussian of one patch;",
            "percent, means over the classes of a suite, then over suites. *Source*: every product (class of",
            "mvtec; suite elsewhere) is judged by a head trained without it; lambda and gate are chosen there.",
            "*Target*: the head of the whole source, computed once after the choice, and chose nothing. Three",
            "epochs unless a row says otherwise. A dash: a costly variant that had already lost against `layers 6",
            "8 9` in the first direction and could not win in both.",
            "",
            f"| variant | {head} |",
            f"|---|{'---|' * 12}",
            *rows,
            "",
            *others(beside),
        ]
    )


def others(checkpoints: Sequence[Path]) -> list[str]:
    """Held-out source validation of checkpoints, for what a study of one input size cannot hold."""
    if not checkpoints:
        return []
    lines = [
        "Whole trainings, judged in the same way (smoothed maps where the recipe smooths):",
        "",
        "| command | I | P |",
        "|---|---|---|",
    ]
    for path in checkpoints:
        provenance = read_checkpoint(path)[0].provenance
        found = provenance["validation"]
        cells = (100 * found["image_auroc"], 100 * found["patch_auroc"])
        lines.append(f"| `{provenance['command']}` | {cells[0]:.1f} | {cells[1]:.1f} |")
    return [*lines, ""]


def unlikeness_of(source: Source, cache: FeatureCache, variants: Sequence[Variant]) -> dict[int, Tensor]:
    """(images, N) dissimilarity in every layer where any of the variants reads it."""
    layers = {layer for variant in variants if variant.unlike for layer in variant.layers}
    layers |= {ENTRY for variant in variants if variant.entry}
    if not layers:
        return {}
    with progress("dissimilarity", len(source.images)) as advance:
        rows = []
        for entry in source.images:
            rows.append(cache.dissimilarity(entry.key, sorted(layers), source.grid))
            advance(1)
    return dict(zip(sorted(layers), torch.stack(rows, dim=1), strict=True))


def readings_of(variant: Variant, held: HeldOut) -> tuple[Reading, ...]:
    plain = Reading(patch_scale=1.0, cls_scale=1.0)  # logits of this study are divided by their temperature already
    return (
        level_readings(held, variant.unlike, variant.entry, variant.centre)
        if variant.level
        else (plain,) * len(variant.layers)
    )


def placement_of(variant: Variant, depth: int) -> Placement:
    layers = variant.layers
    up_to_exit = tuple(layer for layer in layers if layer < depth) or layers
    return Placement(layers, 4, 6, up_to_exit[-1], tuple(sorted({layers[0], up_to_exit[-1]})), up_to_exit)


if __name__ == "__main__":
    main()
