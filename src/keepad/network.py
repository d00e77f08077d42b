"""KeepAD: one hard-pruned forward pass, from pixels to Predictions."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from keepad.arrays import Array
from keepad.backbone import Backbone
from keepad.backbone.weights import digest_of
from keepad.detector import Detector, Finding, ImageSource, Stages
from keepad.dissimilarity import dissimilarity
from keepad.errors import KeepADError
from keepad.head import PrototypeHead
from keepad.prediction import Prediction
from keepad.presets import Calibration, DeepBudget, OperatingPoint, Placement, ShallowBudget, operating_point
from keepad.recovery import Known, recover, upsample
from keepad.routing import DeepSelector, ShallowSelector, keep_deep, keep_shallow, standardised
from keepad.routing.pixel import PixelRouting, route_pixels
from keepad.scoring import image_score
from keepad.tokens import Shares, Tokens


@dataclass
class Evidence:
    """What the head read in a batch, by layer.

    Attributes:
        entry: (M,) dissimilarity of the live cells when they entered the deep router, where the head reads it.
        responses: Responses of the live cells of each image.
        cls: (B,) responses of the CLS tokens.
    """

    entry: Tensor | None = None
    responses: dict[int, tuple[Tensor, ...]] = field(default_factory=dict)
    cls: dict[int, Tensor] = field(default_factory=dict)


@dataclass(frozen=True)
class Sight:
    """What a pass over a batch leaves, before it is judged; one entry an image.

    Attributes:
        read: What the head read.
        cells: (m,) grid indices of the cells that it read something of, ascending.
        survivors_shallow: Grid indices of the tokens alive after the shallow router, ascending.
        survivors: Grid indices of the tokens alive after the deep router, ascending; the same as `cells`, unless
            cells share tokens.
        evidence: E(I), or None where the deep router did not run.
        known: What the routers knew of the cells.
    """

    read: Evidence
    cells: Sequence[Tensor]
    survivors_shallow: Sequence[Tensor]
    survivors: Sequence[Tensor]
    evidence: Sequence[float | None]
    known: Sequence[Known]


@dataclass(frozen=True)
class Outcome:
    """What the network itself says of one image, before it becomes a Prediction.

    Attributes:
        score: Scalar image score.
        patch_map: (rows, columns) recovered responses.
        pixel_map: (H, W) the same at input size.
        survivors_shallow: Grid indices alive after the shallow router, ascending.
        survivors: Grid indices alive after the deep router, ascending.
        evidence: E(I), or None where the deep router did not run.
        thinned: What the pixel router decided, or None where it did not run.
    """

    score: Tensor
    patch_map: Tensor
    pixel_map: Tensor
    survivors_shallow: Tensor
    survivors: Tensor
    evidence: float | None
    thinned: PixelRouting | None = None

    def finding(self) -> Finding:
        """The same on the CPU and without torch."""
        return Finding(
            score=float(self.score),
            patch_map=self.patch_map.float().cpu().numpy(),
            pixel_map=self.pixel_map.float().cpu().numpy(),
            survivors_shallow=self.survivors_shallow.cpu().numpy(),
            survivors=self.survivors.cpu().numpy(),
            evidence=self.evidence,
            thinned=self.thinned,
        )


class KeepAD(nn.Module, Detector):
    """The detector that torch runs: call it with an image, or give `predict` many.

    Args:
        backbone: Frozen ViT.
        head: Prototypes of the head layers.
        shallow: Selector of the shallow router.
        deep: Selector of the deep router.
        placement: Where routers, head and exit sit.
        calibration: What was fitted on source data.
        image_size: Height and width of the network's input.
        point: Operating point used where none is given.
        name: What the checkpoint is called.
        provenance: Where the trained parts come from, as stored in the checkpoint.
    """

    packages = ("torch", "timm")

    def __init__(
        self,
        backbone: Backbone,
        head: PrototypeHead,
        shallow: ShallowSelector,
        deep: DeepSelector,
        *,
        placement: Placement,
        calibration: Calibration | None = None,
        image_size: tuple[int, int],
        point: str | OperatingPoint = "prune50",
        name: str = "unnamed",
        provenance: dict[str, Any] | None = None,
    ) -> None:
        super().__init__()
        backbone.grid_of(*image_size)
        if placement.head_layers[-1] > backbone.depth:
            raise KeepADError(
                f"{backbone.name} has {backbone.depth} blocks, but layer {placement.head_layers[-1]} is asked for."
            )
        self.backbone, self.head, self.shallow, self.deep = backbone, head, shallow, deep
        self.placement = placement
        self.calibration = calibration or Calibration()
        self.image_size = image_size
        self.point = operating_point(point)
        self.name = name
        self.provenance = provenance or {}
        self.eval()

    @property
    def device(self) -> torch.device:
        return self.head.patch.device

    @property
    def backbone_name(self) -> str:
        return self.backbone.name

    @property
    def grid(self) -> tuple[int, int]:
        return self.backbone.grid_of(*self.image_size)

    @property
    def runs_on(self) -> str:
        return str(self.device)

    # -- the network -----------------------------------------------------------------------------------------------

    def route_pixels(self, pixels: Array, point: OperatingPoint, stages: Stages) -> list[PixelRouting] | None:
        """What the pixel router decides for each image, (B, H, W, 3) uint8; None where the point has none."""
        if point.pixels is None:
            return None
        found = [route_pixels(one, self.backbone.patch, point.pixels) for one in pixels]
        stages.mark("routing")
        return found

    def prefix(
        self, images: Tensor, stages: Stages | None = None, thinned: Sequence[PixelRouting] | None = None
    ) -> Tokens:
        """Tokens that enter the shallow router, from (B, 3, H, W) in [0, 1]; operating points can share them.

        Args:
            images: The images.
            stages: Where time is booked.
            thinned: What the pixel router decided for each of them; all patches if None.
        """
        if thinned is None or all(one.whole for one in thinned):
            tokens = self.backbone.embed(images)
        else:
            live = [torch.from_numpy(one.index).to(images.device) for one in thinned]
            tokens = self.backbone.embed_some(images, live)
            tokens = replace(tokens, shares=tuple(_shares(one, tokens.x) for one in thinned))
        if stages:
            stages.mark("embed")
        tokens = self.backbone.run(tokens, 1, self.placement.shallow - 1)
        if stages:
            stages.mark("before")
        return tokens

    def finish(
        self,
        tokens: Tokens,
        point: OperatingPoint,
        size: tuple[int, int],
        stages: Stages | None = None,
        thinned: Sequence[PixelRouting] | None = None,
    ) -> list[Outcome]:
        """Outcomes of a batch from the tokens that enter the shallow router."""
        stages = stages or Stages()
        seen = self.look(tokens, point, stages)
        verdicts = self.judge(seen.read, seen.cells, tokens.grid, point, size, known=seen.known, stages=stages)
        certificates = [None] * tokens.images if thinned is None else thinned
        return [
            Outcome(*verdict, seen.survivors_shallow[b], seen.survivors[b], seen.evidence[b], certificates[b])
            for b, verdict in enumerate(verdicts)
        ]

    def look(self, tokens: Tokens, point: OperatingPoint, stages: Stages | None = None) -> Sight:
        """Both routers and all blocks that follow, from the tokens that enter the shallow router."""
        stages = stages or Stages()
        place = self.placement
        scores: Sequence[Tensor | None] = [None] * tokens.images
        if point.shallow is not None:
            tokens, scores = self._route_shallow(tokens, point.shallow)
        entered, live = tokens.per_image(tokens.index), tokens.cells()
        stages.mark("routing")
        tokens = self.backbone.run(tokens, place.shallow, place.deep - 1)
        stages.mark("between")
        entry = None
        if self.reads_entry(point):
            entry = self.dissimilarity(tokens)
            stages.mark("scoring")
        risks: Sequence[Tensor | None] = [None] * tokens.images
        evidence: Sequence[float | None] = [None] * tokens.images
        if point.deep is not None:
            tokens, entry, risks, evidence = self._route_deep(tokens, entry, point.deep)
        known = [Known(*one) for one in zip(scores, live, risks, strict=True)]
        stages.mark("routing")

        last = place.exit if point.early_exit else place.head_layers[-1]
        done, read = place.deep - 1, Evidence(entry)
        for layer in (layer for layer in place.head_layers if layer <= last):
            tokens = self.backbone.run(tokens, done + 1, layer)
            stages.mark("after")
            done = layer
            self.read(layer, tokens, read)
            stages.mark("scoring")
        return Sight(read, tokens.cells(), entered, tokens.per_image(tokens.index), evidence, known)

    def read(self, layer: int, tokens: Tokens, evidence: Evidence) -> None:
        """Add to `evidence` what the head reads in the tokens that leave block `layer`."""
        features = self.backbone.norm(tokens.x)
        unlike = self.dissimilarity(tokens) if self.head.reads_dissimilarity(layer) else None
        cells = tokens.on_cells(tokens.patches(features))
        responses = self.head.patch_response(layer, cells, unlike, evidence.entry)
        evidence.responses[layer] = tokens.per_image_cells(responses)
        evidence.cls[layer] = self.head.cls_response(layer, tokens.cls(features))

    def judge(
        self,
        evidence: Evidence,
        cells: Sequence[Tensor],
        grid: tuple[int, int],
        point: OperatingPoint,
        size: tuple[int, int],
        *,
        known: Sequence[Known] | None = None,
        stages: Stages | None = None,
    ) -> list[tuple[Tensor, Tensor, Tensor]]:
        """Score, patch map and pixel map of each image, from what the head read of its live cells."""
        stages = stages or Stages()
        knowledge = [None] * len(cells) if known is None else known
        responses = [{layer: parts[b] for layer, parts in evidence.responses.items()} for b in range(len(cells))]
        maps = torch.stack(
            [
                recover(
                    torch.stack(list(parts.values())).mean(0),
                    index,
                    grid,
                    mode=point.recovery,
                    known=one,
                    grades=self.calibration.grades,
                )
                for parts, index, one in zip(responses, cells, knowledge, strict=True)
            ]
        )
        smoothing = self.calibration.smoothing if point.smoothing is None else point.smoothing
        pixels = upsample(maps, size, smoothing=smoothing)
        stages.mark("recovery")
        scores = [
            image_score(
                parts,
                {layer: values[b] for layer, values in evidence.cls.items()},
                maps[b],
                kind=point.score,
                base_layers=self.placement.base_layers,
                mid_layers=self.placement.mid_layers,
                calibration=self.calibration,
            )
            for b, parts in enumerate(responses)
        ]
        stages.mark("scoring")
        return list(zip(scores, maps, pixels, strict=True))

    def dissimilarity(self, tokens: Tokens) -> Tensor:
        """(M,) how unlike the rest of its own image each live cell is."""
        return torch.cat(
            [
                dissimilarity(x, cells, tokens.grid, place=None if shares is None else shares.place)
                for x, cells, shares in _images(tokens)
            ]
        )

    def reads_entry(self, point: OperatingPoint) -> bool:
        """Whether the dissimilarity of the tokens that enter the deep router is asked for."""
        return self.head.reads_entry or (point.deep is not None and self.deep.unlike is not None)

    def risk(self, x: Tensor, dissimilarity: Tensor | None = None, shares: Shares | None = None) -> Tensor:
        """Risks of the cells of one image that enter the deep router, (m,).

        Args:
            x: (n, C) their tokens.
            dissimilarity: (m,) of the cells, where it is read.
            shares: Which of the tokens each cell has; None if each has its own.
        """
        # Only the direction of a prototype has a meaning under cosine, so its length must not scale the risk.
        return self.deep(x, F.normalize(self.head.patch[0], dim=-1), dissimilarity, shares)

    def _route_shallow(self, tokens: Tokens, budget: ShallowBudget) -> tuple[Tokens, list[Tensor]]:
        """The tokens that stay, and the standardised scores of all cells."""
        scores = [self.shallow(x, cells, tokens.grid, shares) for x, cells, shares in _images(tokens)]
        live = zip(scores, tokens.cells(), strict=True)
        keep = [keep_shallow(score, cells, tokens.grid, budget) for score, cells in live]
        return tokens.gather(keep), [standardised(score) for score in scores]

    def _route_deep(
        self, tokens: Tokens, entry: Tensor | None, budget: DeepBudget
    ) -> tuple[Tokens, Tensor | None, list[Tensor], list[float]]:
        """The tokens that stay, their dissimilarity from before, standardised risks, and E(I) of each image."""
        unlike = [None] * tokens.images if entry is None else tokens.per_image_cells(entry)
        choices, risks = [], []
        for (x, cells, shares), values in zip(_images(tokens), unlike, strict=True):
            risk = self.risk(x, values, shares)
            choices.append(keep_deep(risk, cells, tokens.grid, budget))
            risks.append(standardised(risk))
        if entry is not None:
            kept = zip(tokens.per_image_cells(entry), choices, strict=True)
            entry = torch.cat([values[choice.keep] for values, choice in kept])
        tokens = tokens.gather([choice.keep for choice in choices])
        return tokens, entry, risks, [choice.evidence for choice in choices]

    # -- the face that all detectors share ---------------------------------------------------------------------------

    def forward(self, image: ImageSource) -> Prediction:
        """The Prediction of one image: a path, a PIL image, an array or a tensor."""
        return Detector.forward(self, image)

    @torch.inference_mode()
    def find(
        self, pixels: Array, points: Sequence[OperatingPoint], stages: Stages | None = None
    ) -> dict[str, list[Finding]]:
        """What each operating point finds in each image of a batch, (B, H, W, 3) uint8 at input size."""
        stages = stages or Stages()
        images = torch.from_numpy(pixels).to(self.device).permute(0, 3, 1, 2).float() / 255
        found = {}
        for budget in dict.fromkeys(point.pixels for point in points):
            same = [point for point in points if point.pixels == budget]
            thinned = self.route_pixels(pixels, same[0], stages)
            prefix = self.prefix(images, stages, thinned)
            for point in same:
                outcomes = self.finish(prefix, point, self.image_size, stages, thinned)
                found[point.name] = [outcome.finding() for outcome in outcomes]
        stages.mark("scoring")  # on a GPU, whatever was still under way
        return {point.name: found[point.name] for point in points}

    def digests(self) -> dict[str, str]:
        """Digests of head, selectors and calibration, and of the backbone."""
        trained = {name: value.detach().cpu() for name, value in trained_tensors(self).items()}
        backbone = {name: value.detach().cpu() for name, value in self.backbone.vit.state_dict().items()}
        fixed: list[Any] = [
            asdict(self.placement),
            asdict(self.calibration),
            [asdict(reading) for reading in self.head.readings],
            self.backbone.mean,
            self.backbone.std,
            self.backbone.antialias,
        ]
        checkpoint = hashlib.sha256(f"{digest_of(trained)}{json.dumps(fixed, sort_keys=True)}".encode())
        return {"checkpoint": checkpoint.hexdigest(), "backbone": digest_of(backbone)}


def _images(tokens: Tokens) -> Iterator[tuple[Tensor, Tensor, Shares | None]]:
    """Tokens of each image, its live cells, and which of the tokens each cell has."""
    shares = tokens.shares or (None,) * tokens.images
    return zip(tokens.per_image(tokens.patches()), tokens.cells(), shares, strict=True)


def _shares(thinned: PixelRouting, like: Tensor) -> Shares | None:
    """What the pixel router decided, as its tokens carry it on; None where it dropped nothing."""
    if thinned.whole:
        return None
    cells = torch.arange(len(thinned.owner), device=like.device)
    return Shares(cells, torch.from_numpy(thinned.place).to(like.device), torch.from_numpy(thinned.mass).to(like))


def trained_tensors(model: KeepAD) -> dict[str, Tensor]:
    """What a checkpoint stores: head and selectors, not the backbone."""
    return {name: tensor for name, tensor in model.state_dict().items() if not name.startswith("backbone.")}
