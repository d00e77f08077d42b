"""The source: labelled images and their views with cached features, and what can be learned from them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from keepad.arrays import Array
from keepad.data import Sample
from keepad.errors import KeepADError
from keepad.metrics import defect_tokens
from keepad.training.augmentation import Picture, read_picture, view_of
from keepad.training.feature_cache import FeatureCache, picture_key

Say = Callable[[str], None]

# Views do not depend on the seed of a training run, so that runs with other seeds share their features.
_VIEW_SEED = 0
_HOLD_OUT = 5  # one image in so many is held out where validation is by images
_FEW_SUITES = 3  # with fewer suites than this, a product is a class


@dataclass(frozen=True)
class Entry:
    """A picture to learn from.

    Attributes:
        key: Its name in the feature cache.
        label: 1 if anomalous.
        defect: (N,) bool, patches that the defect touches; None where an anomalous image has no mask.
        mask: Its pixels' mask, packed to bits; None likewise.
    """

    key: str
    label: int
    defect: Array | None
    mask: Array | None


@dataclass(frozen=True)
class Source:
    """All pictures of a training run.

    Attributes:
        samples: The labelled images.
        images: Their entries, in the same order.
        views: Views of each of them; none for an anomalous image without a mask.
        size: Height and width of the pictures.
        grid: Rows and columns of their patches.
    """

    samples: tuple[Sample, ...]
    images: tuple[Entry, ...]
    views: tuple[tuple[Entry, ...], ...]
    size: tuple[int, int]
    grid: tuple[int, int]

    @property
    def classes(self) -> list[tuple[str, str]]:
        """Suite and class of every image."""
        return [(sample.suite, sample.cls) for sample in self.samples]

    def keys(self) -> list[str]:
        """Names of all pictures."""
        return [entry.key for entry in self.images] + [view.key for views in self.views for view in views]


def check_source(samples: Sequence[Sample], *, say: Say) -> None:
    """Say what cannot be trained from these samples.

    Raises:
        KeepADError: Nothing can be.
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
    unmasked = sum(sample.label == 1 and sample.mask is None for sample in samples)
    if unmasked:
        say(f"{unmasked} anomalous images have no mask: they train the CLS pathway only.")
    if len({(sample.suite, sample.cls) for sample in samples}) == 1:
        say(
            "the source holds a single class: what it does to unseen products cannot be validated; validation uses "
            "held-out images of the same class and flatters."
        )


def gather(
    samples: Sequence[Sample],
    *,
    views: int,
    size: tuple[int, int],
    grid: tuple[int, int],
    advance: Callable[[int], None] = lambda steps: None,
) -> Source:
    """The source: every image and every view of it read once, for what is known about them.

    Args:
        samples: The labelled images.
        views: Views of each image.
        size: Height and width of the pictures.
        grid: Rows and columns of their patches.
        advance: Called with the number of images done.
    """
    images, others = [], []
    mates = _mates(samples)
    for sample in samples:
        entries = [_entry(_picture(sample, number, mates, size), grid) for number in _numbers(sample, views)]
        images.append(entries[0])
        others.append(tuple(entries[1:]))
        advance(1)
    return Source(tuple(samples), tuple(images), tuple(others), size, grid)


def fill(
    source: Source,
    cache: FeatureCache,
    layers: Sequence[int],
    *,
    share: tuple[int, int] = (0, 1),
    advance: Callable[[int], None] = lambda steps: None,
) -> None:
    """Put the features of all pictures into the cache; those that are there already cost nothing.

    Args:
        source: The pictures.
        cache: Where features are kept.
        layers: Blocks whose outputs are wanted.
        share: Which part of the images this process takes care of, and of how many.
        advance: Called with the number of images done.
    """
    cache.make_room(source.keys(), layers, source.grid)
    mates = _mates(source.samples)
    for place, sample in enumerate(source.samples):
        entries = [source.images[place], *source.views[place]]
        if place % share[1] == share[0]:
            for number, entry in enumerate(entries):
                if cache.missing([entry.key], layers):
                    picture = _picture(sample, number, mates, source.size)
                    cache.fill(entry.key, picture.pixels, layers)
            cache.touch([entry.key for entry in entries])
        advance(1)


def _numbers(sample: Sample, views: int) -> range:
    """Pictures of a sample: 0 is the image itself, the others are views, which need a mask."""
    return range(1 + views if _known(sample) else 1)


def _picture(sample: Sample, number: int, mates: dict[tuple[str, str], list[Sample]], size: tuple[int, int]) -> Picture:
    if number == 0:
        return read_picture(sample, size)
    return view_of(sample, mates[sample.suite, sample.cls], number - 1, size=size, seed=_VIEW_SEED)


def _mates(samples: Sequence[Sample]) -> dict[tuple[str, str], list[Sample]]:
    """Samples of each class that can become part of a view."""
    found: dict[tuple[str, str], list[Sample]] = {}
    for sample in filter(_known, samples):
        found.setdefault((sample.suite, sample.cls), []).append(sample)
    return found


def _known(sample: Sample) -> bool:
    return sample.label == 0 or sample.mask is not None


def _entry(picture: Picture, grid: tuple[int, int]) -> Entry:
    key = picture_key(picture.pixels)
    if picture.mask is None:
        return Entry(key, picture.label, None, None)
    defect = defect_tokens(picture.mask, grid).reshape(-1)
    return Entry(key, picture.label, defect, np.packbits(picture.mask))


def folds_of(source: Source, validation: str) -> Tensor:
    """(n,) which fold holds each image out, counted from 0; -1 where none does.

    Args:
        source: The pictures.
        validation: "images" or "products".
    """
    if validation == "products" and len(set(source.classes)) > 1:
        suites = {suite for suite, _ in source.classes}
        products = [name if len(suites) < _FEW_SUITES else name[:1] for name in source.classes]
        names = sorted(set(products))
        return torch.tensor([names.index(product) for product in products])
    folds, seen = [], Counter[tuple[tuple[str, str], int]]()
    for name, entry in zip(source.classes, source.images, strict=True):
        seen[name, entry.label] += 1
        folds.append(0 if seen[name, entry.label] % _HOLD_OUT == 0 else -1)
    return torch.tensor(folds)


def masks_of(entries: Sequence[Entry], size: tuple[int, int]) -> Tensor:
    """(B, H, W) masks at picture size; all zeros where there is none."""
    empty = np.zeros(size, dtype=bool)
    count = size[0] * size[1]
    rows = [
        empty if entry.mask is None else np.unpackbits(entry.mask, count=count).reshape(size).astype(bool)
        for entry in entries
    ]
    return torch.from_numpy(np.stack(rows))
