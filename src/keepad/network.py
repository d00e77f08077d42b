"""Network: the steps of a hard-pruned pass in torch. Training and export compose the same steps."""

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
from keepad.backbone.identity import digest_of
from keepad.dissimilarity import dissimilarity, dissimilarity_in_context
from keepad.errors import KeepADError
from keepad.head import PrototypeHead
from keepad.inference import NO_REFERENCES, Inference, References, infer
from keepad.presets import Calibration, OperatingPoint, Placement
from keepad.reduction import reduce_image
from keepad.routing import PixelRouting
from keepad.routing.selectors import DeepSelector, ShallowSelector
from keepad.steps import WHOLE, HeadOutput, ReducedImage, Scope, Stages
from keepad.tokens import Merge, Tokens


@dataclass
class Responses:
    """Responses of the head, by layer.

    Attributes:
        patch: (m,) responses of the live cells, one tensor per image.
        cls: (B,) responses of the CLS tokens.
        features: (m, C) features of the live cells as unit vectors, one tensor per image; by match layer.
    """

    patch: dict[int, tuple[Tensor, ...]] = field(default_factory=dict)
    cls: dict[int, Tensor] = field(default_factory=dict)
    features: dict[int, tuple[Tensor, ...]] = field(default_factory=dict)


class Network(nn.Module):
    """A frozen ViT with a prototype head and two routers.

    Args:
        backbone: Frozen ViT.
        head: Prototypes of the head layers.
        shallow: Selector of the shallow router.
        deep: Selector of the deep router.
        placement: Positions of routers, head layers and exit.
        calibration: Constants fitted on source data.
        image_size: Height and width of the input.
        name: Name of the checkpoint.
        provenance: Origin of the trained parts, as stored in the checkpoint.
    """

    packages: tuple[str, ...] = ("torch", "timm")
    precision = "fp32"
    fixed_size = False
    lanes = 1

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
    def patch(self) -> tuple[int, int]:
        return self.backbone.patch

    @property
    def runs_on(self) -> str:
        return f"torch on {self.device}"

    # -- the steps of a pass -----------------------------------------------------------------------------------------

    def embed(self, images: Tensor, routings: Sequence[PixelRouting] | None = None) -> Tokens:
        """Tokens that enter block 1, from (B, 3, H, W) in [0, 1].

        Args:
            images: The images.
            routings: Decision of the pixel router for each of them; all patches if None.
        """
        if routings is None or all(routing.whole for routing in routings):
            return self.backbone.embed(images)
        live = [torch.from_numpy(routing.index).to(images.device) for routing in routings]
        tokens = self.backbone.embed_some(images, live)
        if not any(routing.merges for routing in routings):
            return tokens
        return replace(tokens, merges=tuple(_merge(routing, tokens.x) for routing in routings))

    def early(self, tokens: Tokens) -> Tokens:
        """Tokens that enter the shallow router."""
        return self.backbone.run(tokens, 1, self.placement.shallow - 1)

    def encode(self, images: Tensor, routings: Sequence[PixelRouting] | None = None) -> Tokens:
        """Tokens that enter the shallow router, from images as `embed` takes them."""
        return self.early(self.embed(images, routings))

    def shallow_scores(self, tokens: Tokens) -> list[Tensor]:
        """(m,) scores of the cells of each image that enter the shallow router."""
        one_in = self.calibration.landmarks
        return [self.shallow(x, cells, tokens.grid, merge, one_in=one_in) for x, cells, merge in _images(tokens)]

    def middle(self, tokens: Tokens, presence: Tensor | None = None) -> Tokens:
        """Tokens that enter the deep router, with their dissimilarity in `entry` where head or router use it.

        Args:
            tokens: Tokens that left the shallow router.
            presence: (P,) relaxed mask of the tokens, in training.
        """
        tokens, responses, done = tokens.linked(), Responses(), self.placement.shallow - 1
        for layer in self.placement.early_head_layers:
            tokens, done = self.backbone.run(tokens, done + 1, layer, presence), layer
            self.respond_at(layer, tokens, responses)
        tokens = self.backbone.run(tokens, done + 1, self.placement.deep - 1, presence)
        if responses.patch:
            patch = torch.stack([torch.cat(own) for own in responses.patch.values()], dim=1)
            tokens = replace(tokens, read=patch, read_cls=torch.stack(list(responses.cls.values()), dim=1))
        if self.head.uses_entry or self.deep.dissimilarity is not None:
            tokens = replace(tokens, entry=self.dissimilarity(tokens))
        return tokens

    def risks(self, tokens: Tokens) -> list[Tensor]:
        """(m,) fused risks of the cells of each image that enter the deep router."""
        # Cosine ignores the length of a prototype, so the risk must as well.
        prototypes = F.normalize(self.head.patch[0], dim=-1)
        entry = [None] * tokens.images if tokens.entry is None else tokens.split_cells(tokens.entry)
        return [self.deep(x, prototypes, own, merge) for (x, _, merge), own in zip(_images(tokens), entry, strict=True)]

    def respond(
        self,
        tokens: Tokens,
        last: int | None = None,
        presence: Tensor | None = None,
        stages: Stages | None = None,
        features: bool = False,
    ) -> Responses:
        """Responses of the head layers up to block `last`, or of all.

        Args:
            tokens: Tokens that left the deep router.
            last: Last block that runs.
            presence: (P,) relaxed mask of the tokens, in training.
            stages: Timer.
            features: Also collect the features of the match layers.
        """
        responses, done = Responses(), self.placement.deep - 1
        if tokens.read is not None and tokens.read_cls is not None:  # by survivors, before the deep router
            for position, layer in enumerate(self.placement.early_head_layers):
                responses.patch[layer] = tokens.split_cells(tokens.read[:, position])
                responses.cls[layer] = tokens.read_cls[:, position]
        head, match = self.placement.head_layers, self.placement.match_layers if features else ()
        for layer in sorted({*head, *match}):
            if layer <= done:
                continue
            if last is not None and layer > last:
                break
            tokens = self.backbone.run(tokens, done + 1, layer, presence)
            if stages:
                stages.mark("late")
            if layer in head:
                self.respond_at(layer, tokens, responses)
            if layer in match:
                responses.features[layer] = tokens.split_cells(self.unit_features(tokens))
            if stages:
                stages.mark("scoring")
            done = layer
        return responses

    def unit_features(self, tokens: Tokens) -> Tensor:
        """(M, C) normed features of the live cells, as unit vectors."""
        return F.normalize(tokens.per_cell(tokens.patches(self.backbone.norm(tokens.x))), dim=-1)

    def respond_at(self, layer: int, tokens: Tokens, responses: Responses) -> None:
        """Add the responses to the tokens that leave block `layer`."""
        features = self.backbone.norm(tokens.x)
        patches = tokens.per_cell(tokens.patches(features))
        own = self.dissimilarity(tokens) if self.head.uses_dissimilarity(layer) else None
        entry = tokens.entry if self.head.uses_entry else None
        responses.patch[layer] = tokens.split_cells(self.head.patch_response(layer, patches, own, entry))
        responses.cls[layer] = self.head.cls_response(layer, tokens.cls(features))

    def dissimilarity(self, tokens: Tokens) -> Tensor:
        """(M,) dissimilarity of each live cell to the rest of its own image."""
        if tokens.contexts:
            own = zip(_images(tokens), tokens.contexts, strict=True)
            parts = [dissimilarity_in_context(*one[:2], tokens.grid, around, merge=one[2]) for one, around in own]
        else:
            parts = [dissimilarity(x, cells, tokens.grid, merge=merge) for x, cells, merge in _images(tokens)]
        return torch.cat(parts)

    # -- the same steps as `keepad.inference` calls them: arrays in, arrays out ----------------------------------------

    def early_step(self, pixels: Array, routings: Sequence[PixelRouting] | None, stages: Stages) -> Tokens:
        """Tokens that enter the shallow router, from (B, H, W, 3) uint8."""
        images = torch.from_numpy(pixels).to(self.device).permute(0, 3, 1, 2).float() / 255
        tokens = self.embed(images, routings)
        stages.mark("embed")
        return self.early(tokens)

    def shallow_step(self, tokens: Tokens) -> list[Array]:
        """(m,) scores of the live cells of each image."""
        return [_array(scores) for scores in self.shallow_scores(tokens)]

    def middle_step(self, tokens: Tokens) -> Tokens:
        """Tokens that enter the deep router."""
        return self.middle(tokens)

    def risk_step(self, tokens: Tokens) -> list[Array]:
        """(m,) risks of the live cells of each image."""
        return [_array(risk) for risk in self.risks(tokens)]

    def unusual_step(self, tokens: Tokens) -> list[Array]:
        """(m,) dissimilarity of the live cells of each image, as they enter the deep router."""
        entry = self.dissimilarity(tokens) if tokens.entry is None else tokens.entry
        return [_array(own) for own in tokens.split_cells(entry)]

    def entry_step(self, tokens: Tokens) -> list[Array]:
        """(m, C) tokens of the live cells of each image, as they enter a router."""
        return [_array(own) for own in tokens.split_cells(tokens.per_cell(tokens.patches()))]

    def late_step(self, tokens: Tokens, last: int, stages: Stages, features: bool = False) -> HeadOutput:
        """Responses of the head layers up to `last`, and features of the match layers where these are asked for."""
        responses = self.respond(tokens, last, stages=stages, features=features)
        cls = torch.stack(list(responses.cls.values()), dim=1)  # (B, layers)
        return HeadOutput(
            _stacked(responses.patch), list(_array(cls)), _stacked(responses.features) if features else []
        )

    def reduce_step(self, pixels: Array, point: OperatingPoint, last: int, stages: Stages) -> list[ReducedImage]:
        """The whole pass up to block `last` with the reducer of a point, image by image."""
        images = torch.from_numpy(pixels).to(self.device).permute(0, 3, 1, 2).float() / 255
        results = []
        for image in images:
            tokens = self.embed(image[None])
            stages.mark("embed")
            results.append(reduce_image(self, tokens, point, last))
            stages.mark("late")
        return results

    @torch.inference_mode()
    def infer(
        self,
        pixels: Array,
        points: Sequence[OperatingPoint],
        stages: Stages | None = None,
        references: References = NO_REFERENCES,
        record: bool = False,
        scope: Scope = WHOLE,
    ) -> dict[str, list[Inference]]:
        """The result of every image of a batch, (B, H, W, 3) uint8 in whole patches, at every operating point."""
        return infer(self, pixels, points, stages or Stages(), references=references, record=record, scope=scope)

    def digests(self) -> dict[str, str]:
        """Digests of head, selectors and calibration ("checkpoint"), and of the backbone."""
        trained = {name: value.detach().cpu() for name, value in trained_tensors(self).items()}
        backbone = {name: value.detach().cpu() for name, value in self.backbone.vit.state_dict().items()}
        constants: list[Any] = [
            asdict(self.placement),
            asdict(self.calibration),
            [asdict(scale) for scale in self.head.scales],
            self.backbone.mean,
            self.backbone.std,
            self.backbone.antialias,
        ]
        checkpoint = hashlib.sha256(f"{digest_of(trained)}{json.dumps(constants, sort_keys=True)}".encode())
        return {"checkpoint": checkpoint.hexdigest(), "backbone": digest_of(backbone)}


def trained_tensors(network: Network) -> dict[str, Tensor]:
    """Tensors that a checkpoint stores: head and selectors, not the backbone."""
    return {name: tensor for name, tensor in network.state_dict().items() if not name.startswith("backbone.")}


def _images(tokens: Tokens) -> Iterator[tuple[Tensor, Tensor, Merge | None]]:
    """Tokens of each image, its live cells, and which token each cell uses."""
    return zip(tokens.per_image(tokens.patches()), tokens.cells(), tokens.merge_of_each(), strict=True)


def _merge(routing: PixelRouting, like: Tensor) -> Merge | None:
    """Decision of the pixel router as its tokens carry it on; None where no cells share a token."""
    if not routing.merges:
        return None
    cells = torch.from_numpy(routing.cells).to(like.device)
    return Merge(cells, torch.from_numpy(routing.token).to(like.device), torch.from_numpy(routing.size).to(like))


def _stacked(layers: dict[int, tuple[Tensor, ...]]) -> list[Array]:
    """(layers, ...) of each image, from a tensor per layer and image."""
    return [_array(torch.stack(own)) for own in zip(*layers.values(), strict=True)]


def _array(values: Tensor) -> Array:
    array: Array = values.detach().float().cpu().numpy()
    return array
