"""KeepAD: one hard-pruned forward pass, from pixels to Predictions."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor, nn

from keepad.backbone import Backbone
from keepad.errors import ImageError, KeepADError
from keepad.head import PrototypeHead
from keepad.images import find_images, read_image, to_input
from keepad.prediction import Prediction
from keepad.presets import Calibration, DeepBudget, OperatingPoint, Placement, ShallowBudget, operating_point
from keepad.recovery import Known, recover, upsample
from keepad.routing import DeepSelector, ShallowSelector, keep_deep, keep_shallow, standardised
from keepad.scoring import image_score
from keepad.tokens import Tokens
from keepad.unlikeness import unlikeness

ImageSource = str | Path | Image.Image | np.ndarray | Tensor


@dataclass
class Stages:
    """Seconds spent in each stage of a pass, in the order of the pass.

    Attributes:
        synchronise: Device to wait for at every mark; only timing needs it, and it would slow a GPU down.
    """

    synchronise: torch.device | None = None
    seconds: dict[str, float] = field(default_factory=dict)
    _last: float = field(default_factory=time.perf_counter)

    def mark(self, stage: str) -> None:
        """Book the time since the last mark to `stage`."""
        if self.synchronise is not None and self.synchronise.type == "cuda":
            torch.cuda.synchronize(self.synchronise)
        now = time.perf_counter()
        self.seconds[stage] = self.seconds.get(stage, 0.0) + now - self._last
        self._last = now


@dataclass
class Evidence:
    """What the head read in a batch, by layer.

    Attributes:
        entry: (P,) unlikeness of the live patches when they entered the deep router, where the head reads it.
        responses: Responses of the live patches of each image.
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
        survivors_shallow: Grid indices alive after the shallow router, ascending.
        survivors: Grid indices alive after the deep router, ascending.
        evidence: E(I), or None where the deep router did not run.
        known: What the routers knew of the tokens.
    """

    read: Evidence
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
    """

    score: Tensor
    patch_map: Tensor
    pixel_map: Tensor
    survivors_shallow: Tensor
    survivors: Tensor
    evidence: float | None


class KeepAD(nn.Module):
    """A zero-shot anomaly detector: call it with an image, or give `predict` many.

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

    def set_threshold(self, image: float, pixel: float | None = None) -> None:
        """Call an image anomalous from the score `image` on, and a pixel from the map value `pixel` (or the same)."""
        pixel = image if pixel is None else pixel
        for value in (image, pixel):
            if not 0 <= value <= 1:
                raise KeepADError(f"a threshold must lie between 0 and 1, not at {value}.")
        self.calibration = replace(self.calibration, image_threshold=image, pixel_threshold=pixel)

    # -- the network -----------------------------------------------------------------------------------------------

    def prefix(self, images: Tensor, stages: Stages | None = None) -> Tokens:
        """Tokens that enter the shallow router, from (B, 3, H, W) in [0, 1]; every operating point shares them."""
        tokens = self.backbone.embed(images)
        if stages:
            stages.mark("embed")
        tokens = self.backbone.run(tokens, 1, self.placement.shallow - 1)
        if stages:
            stages.mark("before")
        return tokens

    def finish(
        self, tokens: Tokens, point: OperatingPoint, size: tuple[int, int], stages: Stages | None = None
    ) -> list[Outcome]:
        """Outcomes of a batch from the tokens that enter the shallow router."""
        stages = stages or Stages()
        seen = self.look(tokens, point, stages)
        verdicts = self.judge(seen.read, seen.survivors, tokens.grid, point, size, known=seen.known, stages=stages)
        return [
            Outcome(*verdict, seen.survivors_shallow[b], seen.survivors[b], seen.evidence[b])
            for b, verdict in enumerate(verdicts)
        ]

    def look(self, tokens: Tokens, point: OperatingPoint, stages: Stages | None = None) -> Sight:
        """Both routers and all blocks that follow, from the tokens that enter the shallow router."""
        stages = stages or Stages()
        place = self.placement
        scores: Sequence[Tensor | None] = [None] * tokens.images
        if point.shallow is not None:
            tokens, scores = self._route_shallow(tokens, point.shallow)
        live = tokens.per_image(tokens.index)
        stages.mark("routing")
        tokens = self.backbone.run(tokens, place.shallow, place.deep - 1)
        stages.mark("between")
        entry = None
        if self.reads_entry(point):
            entry = self.unlikeness(tokens)
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
        return Sight(read, live, tokens.per_image(tokens.index), evidence, known)

    def read(self, layer: int, tokens: Tokens, evidence: Evidence) -> None:
        """Add to `evidence` what the head reads in the tokens that leave block `layer`."""
        features = self.backbone.norm(tokens.x)
        unlike = self.unlikeness(tokens) if self.head.reads_unlikeness(layer) else None
        responses = self.head.patch_response(layer, tokens.patches(features), unlike, evidence.entry)
        evidence.responses[layer] = tokens.per_image(responses)
        evidence.cls[layer] = self.head.cls_response(layer, tokens.cls(features))

    def judge(
        self,
        evidence: Evidence,
        survivors: Sequence[Tensor],
        grid: tuple[int, int],
        point: OperatingPoint,
        size: tuple[int, int],
        *,
        known: Sequence[Known] | None = None,
        stages: Stages | None = None,
    ) -> list[tuple[Tensor, Tensor, Tensor]]:
        """Score, patch map and pixel map of each image, from what the head read in its survivors."""
        stages = stages or Stages()
        knowledge = [None] * len(survivors) if known is None else known
        responses = [{layer: parts[b] for layer, parts in evidence.responses.items()} for b in range(len(survivors))]
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
                for parts, index, one in zip(responses, survivors, knowledge, strict=True)
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

    def unlikeness(self, tokens: Tokens) -> Tensor:
        """(P,) how unlike the rest of its own image each live patch is."""
        parts = zip(tokens.per_image(tokens.patches()), tokens.per_image(tokens.index), strict=True)
        return torch.cat([unlikeness(x, index, tokens.grid) for x, index in parts])

    def reads_entry(self, point: OperatingPoint) -> bool:
        """Whether the unlikeness of the tokens that enter the deep router is asked for."""
        return self.head.reads_entry or (point.deep is not None and self.deep.unlike is not None)

    def risk(self, x: Tensor, unlikeness: Tensor | None = None) -> Tensor:
        """Risks of the tokens of one image that enter the deep router, (n, C) and perhaps their unlikeness -> (n,)."""
        # Only the direction of a prototype has a meaning under cosine, so its length must not scale the risk.
        return self.deep(x, F.normalize(self.head.patch[0], dim=-1), unlikeness)

    def _route_shallow(self, tokens: Tokens, budget: ShallowBudget) -> tuple[Tokens, list[Tensor]]:
        """The tokens that stay, and the standardised scores of all."""
        keep, scores = [], []
        for x, index in zip(tokens.per_image(tokens.patches()), tokens.per_image(tokens.index), strict=True):
            score = self.shallow(x, index, tokens.grid)
            keep.append(keep_shallow(score, index, tokens.grid, budget))
            scores.append(standardised(score))
        return tokens.gather(keep), scores

    def _route_deep(
        self, tokens: Tokens, entry: Tensor | None, budget: DeepBudget
    ) -> tuple[Tokens, Tensor | None, list[Tensor], list[float]]:
        """The tokens that stay, their unlikeness from before, the standardised risks of all, and E(I) of each image."""
        unlike = [None] * tokens.images if entry is None else tokens.per_image(entry)
        choices, risks = [], []
        for x, index, values in zip(
            tokens.per_image(tokens.patches()), tokens.per_image(tokens.index), unlike, strict=True
        ):
            risk = self.risk(x, values)
            choices.append(keep_deep(risk, index, tokens.grid, budget))
            risks.append(standardised(risk))
        if entry is not None:
            kept = zip(tokens.per_image(entry), choices, strict=True)
            entry = torch.cat([values[choice.keep] for values, choice in kept])
        tokens = tokens.gather([choice.keep for choice in choices])
        return tokens, entry, risks, [choice.evidence for choice in choices]

    # -- images in, Predictions out --------------------------------------------------------------------------------

    def forward(self, image: ImageSource) -> Prediction:
        """The Prediction of one image: a path, a PIL image, an array or a tensor."""
        if getattr(image, "ndim", None) == 4:
            raise KeepADError("one image is expected, but a batch was given; use predict() for several.")
        return self.predict_images([self._read(image)])[0]

    def predict(
        self,
        source: ImageSource | Iterable[ImageSource],
        *,
        batch_size: int = 1,
        on_error: Callable[[ImageSource, KeepADError], None] | None = None,
    ) -> Iterator[Prediction]:
        """Predictions one by one, in order: of a folder (with all folders below it), a file, or an iterable of images.

        Args:
            source: What to look at.
            batch_size: Images that share one forward pass; the results do not depend on it.
            on_error: Told of every image that cannot be used; without it, the first such image raises.
        """
        if batch_size < 1:
            raise KeepADError(f"the batch size must be at least 1, not {batch_size}.")
        if isinstance(source, str | Path):
            source = find_images([source])
        elif isinstance(source, Image.Image) or (isinstance(source, np.ndarray | Tensor) and source.ndim < 4):
            source = [source]
        batch: list[_Input] = []
        for image in source:
            try:
                batch.append(self._read(image))
            except KeepADError as error:
                if on_error is None:
                    raise
                on_error(image, error)
            if len(batch) == batch_size:
                yield from self.predict_images(batch)
                batch = []
        if batch:
            yield from self.predict_images(batch)

    def _read(self, source: ImageSource) -> _Input:
        image = read_image(source)
        path = Path(source) if isinstance(source, str | Path) else None
        return _Input(to_input(image, self.image_size), image.size, path)

    @torch.inference_mode()
    def predict_images(self, inputs: Sequence[_Input]) -> list[Prediction]:
        """Predictions of images that are already at input size, in one forward pass."""
        stages = Stages()
        pixels = torch.from_numpy(np.stack([one.pixels for one in inputs])).to(self.device)
        images = pixels.permute(0, 3, 1, 2).float() / 255
        outcomes = self.finish(self.prefix(images, stages), self.point, self.image_size, stages)
        stages.synchronise = self.device
        stages.mark("scoring")  # on a GPU, whatever is still under way
        timings = {stage: seconds / len(inputs) for stage, seconds in stages.seconds.items()}
        return [self._prediction(one, outcome, timings) for one, outcome in zip(inputs, outcomes, strict=True)]

    def _prediction(self, one: _Input, outcome: Outcome, timings: dict[str, float]) -> Prediction:
        score = float(outcome.score)
        if not np.isfinite(score):
            raise ImageError(
                f"{one.path or 'the image'} gave no finite score; the weights or the checkpoint are damaged."
            )
        rows, columns = self.backbone.grid_of(*self.image_size)
        return Prediction(
            pred_score=score,
            anomaly_map=outcome.pixel_map.float().cpu().numpy(),
            grid=(rows, columns),
            survivors_shallow=outcome.survivors_shallow.cpu().numpy(),
            survivors=outcome.survivors.cpu().numpy(),
            evidence=outcome.evidence,
            point=self.point.name,
            image=one.pixels,
            image_size=one.size,
            path=one.path,
            image_threshold=self.calibration.image_threshold,
            pixel_threshold=self.calibration.pixel_threshold,
            timings=timings,
        )


@dataclass(frozen=True)
class _Input:
    """An image at input size, (H, W, 3) uint8, with its own width and height and where it came from."""

    pixels: np.ndarray
    size: tuple[int, int]
    path: Path | None
