"""The source: labelled images and augmented views with cached features, their annotations, and folds for validation."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import torch
from torch import Tensor

from keepad.arrays import Array
from keepad.console import Progress, Say
from keepad.data import Sample
from keepad.errors import KeepADError
from keepad.images import spread
from keepad.metrics import defect_tokens
from keepad.training.augmentation import LabelledImage, augmented_view, load_labelled
from keepad.training.feature_cache import FeatureCache, image_key
from keepad.training.plan import TrainingPlan

if TYPE_CHECKING:
    from lightning_fabric import Fabric

Peers: TypeAlias = dict[Sample, list[Sample]]

_VIEW_SEED = 0  # fixed, so that runs with different seeds share the cached views
_HOLD_OUT = 5  # one image in five is held out where validation is by images
_FEW_SUITES = 3  # with fewer suites, each class is a product of its own


@dataclass(frozen=True)
class CachedImage:
    """Annotation of an image or view whose features are cached.

    Attributes:
        key: Its key in the feature cache.
        label: 1 if anomalous.
        defect: (N,) bool, patches that overlap a defect; None for an anomalous image without a mask.
        mask: (H, W) mask packed to bits; None likewise.
    """

    key: str
    label: int
    defect: Array | None
    mask: Array | None


@dataclass(frozen=True)
class Annotations:
    """Ground truth of n images.

    Attributes:
        labels: (n,) 1 if anomalous.
        defects: (N,) bool for every image, or None where unknown.
        classes: Suite and class of every image.
    """

    labels: Array
    defects: Sequence[Array | None]
    classes: Sequence[tuple[str, str]]

    def masked(self) -> tuple[list[int], Array]:
        """Positions of the images whose defects are known, and their (images, N) defect patches."""
        known = [(i, defect) for i, defect in enumerate(self.defects) if defect is not None]
        return [i for i, _ in known], np.stack([defect for _, defect in known]) if known else np.empty((0, 0), bool)


@dataclass(frozen=True)
class Source:
    """All images of a training run.

    Attributes:
        samples: The labelled images.
        images: Their annotations, in the same order.
        views: Augmented views of each; none for an anomalous image without a mask.
        size: Height and width of the network's input.
        grid: Rows and columns of the patches.
    """

    samples: tuple[Sample, ...]
    images: tuple[CachedImage, ...]
    views: tuple[tuple[CachedImage, ...], ...]
    size: tuple[int, int]
    grid: tuple[int, int]

    @property
    def classes(self) -> list[tuple[str, str]]:
        """Suite and class of every image."""
        return [(sample.suite, sample.cls) for sample in self.samples]

    @property
    def digest(self) -> str:
        """Digest of all keys; equal for equal sources."""
        return hashlib.sha256("".join(self.keys()).encode()).hexdigest()

    def keys(self) -> list[str]:
        """Cache keys of all images and views."""
        return [image.key for image in self.images] + [view.key for views in self.views for view in views]

    def annotations(self, indices: Sequence[int]) -> Annotations:
        """Ground truth of the images at `indices`."""
        images = [self.images[i] for i in indices]
        labels = np.array([image.label for image in images])
        return Annotations(labels, [image.defect for image in images], [self.classes[i] for i in indices])


def check_source(samples: Sequence[Sample], *, say: Say) -> None:
    """Report what cannot be trained on these samples.

    Raises:
        KeepADError: Nothing can be trained.
    """
    labels = Counter(sample.label for sample in samples)
    if not samples:
        raise KeepADError("the source holds no test image; name suites that have a test split.")
    if not labels[1]:
        raise KeepADError(
            "the source holds no anomalous image, so that anomaly prototypes cannot be trained; name suites with "
            "labelled defects."
        )
    if not any(sample.mask for sample in samples):
        raise KeepADError(
            "no anomalous image of the source has a mask, so that patch prototypes cannot be trained; name suites "
            "with masks."
        )
    if not labels[0]:
        say(
            "the source holds no normal image: the CLS pathway, lambda and the image threshold cannot be trained; "
            "images will be scored by their patches alone."
        )
    unmasked = sum(not _annotated(sample) for sample in samples)
    if unmasked:
        say(f"{unmasked} anomalous images have no mask: they train the CLS pathway only.")
    if len({(sample.suite, sample.cls) for sample in samples}) == 1:
        say(
            "the source holds a single class: generalisation to unseen products cannot be validated; validation on "
            "held-out images of the same class is optimistic."
        )


def check_held_out(samples: Sequence[Sample]) -> None:
    """Refuse a source whose held-out images show no defect; the epochs of stage 2 are compared by defects lost.

    Raises:
        KeepADError: No anomalous image with a mask is held out.
    """
    if not any(out and sample.mask is not None for sample, out in zip(samples, _held_out(samples), strict=True)):
        raise KeepADError(
            f"the routers cannot be validated: every {_HOLD_OUT}th anomalous image of a class is held out, and the "
            "source has no such image with a mask; add anomalous images with masks to its classes."
        )


def prepare_source(
    plan: TrainingPlan,
    cache: FeatureCache,
    layers: Sequence[int],
    *,
    size: tuple[int, int],
    fabric: Fabric,
    progress: Progress,
) -> Source:
    """The source of a plan with all features cached; the processes divide the work.

    Args:
        plan: Samples and views.
        cache: Where features are stored.
        layers: Blocks whose outputs are cached.
        size: Height and width of the network's input.
        fabric: Processes.
        progress: Shows how far it is.
    """
    samples, grid = plan.samples, cache.backbone.grid_of(*size)
    with progress("source", len(samples)) as advance:
        source = read_source(samples, views=plan.views, size=size, grid=grid, advance=advance)
    with progress("features", len(samples)) as advance:
        share = (fabric.global_rank, fabric.world_size)
        cache_features(source, cache, layers, share=share, advance=advance)
    fabric.barrier()
    return source


def read_source(
    samples: Sequence[Sample],
    *,
    views: int,
    size: tuple[int, int],
    grid: tuple[int, int],
    advance: Callable[[int], None] = lambda steps: None,
) -> Source:
    """Keys and annotations of all samples and their views; every image is decoded once.

    Args:
        samples: The labelled images.
        views: Augmented views per image.
        size: Height and width of the network's input.
        grid: Rows and columns of the patches.
        advance: Called with the number of images done.
    """
    images, augmented = [], []
    peers = _peers(samples)
    for sample in samples:
        numbers = range(1 + views if _annotated(sample) else 1)
        first, *others = (_annotation(_labelled(sample, number, peers, size), grid) for number in numbers)
        images.append(first)
        augmented.append(tuple(others))
        advance(1)
    return Source(tuple(samples), tuple(images), tuple(augmented), size, grid)


def cache_features(
    source: Source,
    cache: FeatureCache,
    layers: Sequence[int],
    *,
    share: tuple[int, int] = (0, 1),
    advance: Callable[[int], None] = lambda steps: None,
) -> None:
    """Compute the missing features of all images and views.

    Args:
        source: The images.
        cache: Where features are stored.
        layers: Blocks whose outputs are cached.
        share: Rank of this process and number of processes that divide the images.
        advance: Called with the number of images done.
    """
    cache.make_room(source.keys(), layers, source.grid)
    peers = _peers(source.samples)
    for i, sample in enumerate(source.samples):
        keys = [image.key for image in (source.images[i], *source.views[i])]
        if i % share[1] == share[0]:
            for number, key in enumerate(keys):
                if cache.missing([key], layers):
                    cache.add(key, _labelled(sample, number, peers, source.size).pixels, layers)
            cache.touch(keys)
        advance(1)


def _labelled(sample: Sample, number: int, peers: Peers, size: tuple[int, int]) -> LabelledImage:
    """The sample itself for 0, else view `number - 1`."""
    if number == 0:
        return load_labelled(sample, size)
    return augmented_view(sample, peers[sample], number - 1, size=size, seed=_VIEW_SEED)


def _peers(samples: Sequence[Sample]) -> Peers:
    """Samples that can become part of the views of each: those of its class.

    An image that validation by images holds out becomes part of no view but those of held-out images, which only the
    head that sees all images is trained on.
    """
    classes: dict[tuple[str, str], list[tuple[Sample, bool]]] = {}
    for sample, out in zip(samples, _held_out(samples), strict=True):
        if _annotated(sample):
            classes.setdefault((sample.suite, sample.cls), []).append((sample, out))
    peers: Peers = {}
    for members in classes.values():
        every, trained = [sample for sample, _ in members], [sample for sample, out in members if not out]
        peers.update({sample: every if out else trained for sample, out in members})
    return peers


def _annotated(sample: Sample) -> bool:
    return sample.label == 0 or sample.mask is not None


def _annotation(image: LabelledImage, grid: tuple[int, int]) -> CachedImage:
    key = image_key(image.pixels)
    if image.mask is None:
        return CachedImage(key, image.label, None, None)
    return CachedImage(key, image.label, defect_tokens(image.mask, grid).reshape(-1), np.packbits(image.mask))


def folds_of(source: Source, validation: str) -> Tensor:
    """(n,) fold that holds each image out, counted from 0; -1 for images that are never held out.

    Args:
        source: The images.
        validation: "images" or "products".

    Raises:
        KeepADError: There are too few images to hold one out.
    """
    if validation == "products" and len(set(source.classes)) > 1:
        suites = {suite for suite, _ in source.classes}
        products = [name if len(suites) < _FEW_SUITES else name[:1] for name in source.classes]
        names = sorted(set(products))
        return torch.tensor([names.index(product) for product in products])
    held_out = _held_out(source.samples)
    if not any(held_out):
        raise KeepADError(
            f"no image can be held out for validation: no class of the source has {_HOLD_OUT} normal or {_HOLD_OUT} "
            "anomalous images; add images to its classes."
        )
    return torch.tensor([0 if out else -1 for out in held_out])


def _held_out(samples: Sequence[Sample]) -> list[bool]:
    """Whether validation by images holds each image out: every fifth of a class and label."""
    held_out, seen = [], Counter[tuple[str, str, int]]()
    for sample in samples:
        group = (sample.suite, sample.cls, sample.label)
        seen[group] += 1
        held_out.append(seen[group] % _HOLD_OUT == 0)
    return held_out


def balanced(source: Source, indices: Sequence[int], count: int | None) -> list[int]:
    """At most `count` of the images at `indices`, ascending: as many of each class and label, evenly spaced.

    All of them if `count` is None; at least one of each class and label.
    """
    if count is None:
        return list(indices)
    groups: dict[tuple[tuple[str, str], int], list[int]] = {}
    for i in indices:
        groups.setdefault((source.classes[i], source.images[i].label), []).append(i)
    share = max(1, count // max(1, len(groups)))
    return sorted(i for group in groups.values() for i in spread(group, share))


def masks_of(images: Sequence[CachedImage], size: tuple[int, int]) -> Tensor:
    """(B, H, W) bool masks at input size; zeros where there is none."""
    empty = np.zeros(size, dtype=bool)
    count = size[0] * size[1]
    masks = [
        empty if image.mask is None else np.unpackbits(image.mask, count=count).reshape(size).astype(bool)
        for image in images
    ]
    return torch.from_numpy(np.stack(masks))
