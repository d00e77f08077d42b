"""Inputs of every segment, recorded from passes over calibration images."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TypeAlias

import torch
from torch import Tensor

from keepad.arrays import Array
from keepad.engines.export.segments import Segment, segments_of
from keepad.engines.folder import EngineInfo
from keepad.engines.steps import SegmentSteps
from keepad.images import read_image, to_input
from keepad.inference import infer
from keepad.network import Network
from keepad.presets import POINTS
from keepad.sources import ImageSource
from keepad.steps import Stages

CALIBRATION_POINT = "prune70"

Feed: TypeAlias = dict[str, Array]


def describe(network: Network, engine: str, precision: str) -> EngineInfo:
    """The description of an export of a network, its files not written yet."""
    return EngineInfo(
        engine=engine,
        precision=precision,
        name=network.name,
        backbone=network.backbone_name,
        image_size=network.image_size,
        patch=network.patch,
        prefix=network.backbone.prefix,
        placement=network.placement,
        calibration=network.calibration,
        provenance=network.provenance,
        digests=network.digests(),
        floating=(),
        files={},
    )


class _Recorder:
    """A session that runs a segment in torch and keeps its inputs."""

    def __init__(self, segment: Segment) -> None:
        self._segment = segment
        self.feeds: list[Feed] = []

    def __call__(self, **inputs: Array) -> list[Array]:
        feed = {name: inputs[name] for name in self._segment.inputs}
        self.feeds.append(feed)
        return [output.numpy() for output in self._segment(*(torch.from_numpy(values) for values in feed.values()))]


@torch.no_grad()
def segment_feeds(
    network: Network, images: Sequence[ImageSource], rotation: Tensor | None = None
) -> dict[str, list[Feed]]:
    """Inputs of each segment when the images pass at the point that prunes most.

    Args:
        network: The network.
        images: Calibration images.
        rotation: Rotation of the tokens that the first segment outputs, if any.
    """
    recorders = {name: _Recorder(segment) for name, segment in segments_of(network, rotation).items()}
    steps = SegmentSteps(describe(network, "torch", "fp32"), recorders.__getitem__)
    point = replace(POINTS[CALIBRATION_POINT], pixels=None)
    for image in images:
        infer(steps, to_input(read_image(image), network.image_size)[None], [point], Stages())
    feeds = {name: recorder.feeds for name, recorder in recorders.items()}
    # The same tokens enter both late segments; they differ in their last block.
    return {name: own or feeds["late"] for name, own in feeds.items()}
