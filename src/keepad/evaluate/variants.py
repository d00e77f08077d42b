"""Variants: operating points by name, each with its own detector or view of the images if need be."""

from __future__ import annotations

import hashlib
import json
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from keepad.arrays import Array
from keepad.detector import Detector
from keepad.errors import KeepADError
from keepad.presets import OperatingPoint, operating_point
from keepad.references.bank import BANK_SIZE


@dataclass(frozen=True)
class View:
    """A change of every image, and of its mask with it, at the network's input size.

    Attributes:
        name: Name in tables.
        flip: Axes that are reversed: 0 turns the image upside down, 1 mirrors it.
        noise: Largest change of a pixel value in grey levels, drawn uniformly; the same for an image in every run.
    """

    name: str
    flip: tuple[int, ...] = ()
    noise: int = 0

    def of_image(self, pixels: Array) -> Array:
        """The changed image, (H, W, 3) uint8."""
        changed = np.flip(pixels, self.flip)
        if self.noise:
            generator = np.random.default_rng(zlib.crc32(pixels.tobytes()))
            steps = generator.integers(-self.noise, self.noise, pixels.shape, dtype=np.int16, endpoint=True)
            changed = (changed + steps).clip(0, 255).astype(np.uint8)
        return np.ascontiguousarray(changed)

    def of_mask(self, mask: Array) -> Array:
        """The mask that belongs to the changed image, (H, W) bool."""
        return np.ascontiguousarray(np.flip(mask, self.flip))


@dataclass(frozen=True)
class Shots:
    """References of a variant.

    Attributes:
        count: Good images of each class, or all there are if there are fewer.
        draw: Number of the draw, which decides which ones.
        rotate: Whether copies turned by eight angles join them: "auto", "on" or "off", as `keepad teach` takes it.
        size: Bound on the survivors in the bank.
    """

    count: int
    draw: int
    rotate: str = "auto"
    size: int = BANK_SIZE


@dataclass(frozen=True)
class Variant:
    """A row of a comparison.

    Attributes:
        name: Name in tables; distinct within an evaluation.
        point: Operating point.
        detector: Detector that runs it; that of the evaluation if None.
        view: Change of the images; none if None.
        shots: References of each class; zero-shot if None.
        shares: Share of the live tokens that the deep router keeps, by key of the image, instead of its controller's;
            a control.
    """

    name: str
    point: OperatingPoint
    detector: Detector | None = None
    view: View | None = None
    shots: Shots | None = None
    shares: Mapping[str, float] | None = None

    def point_of(self, key: str) -> OperatingPoint:
        """The operating point of one image."""
        if self.shares is None or self.point.deep is None:
            return self.point
        share = self.shares[key]
        deep = replace(self.point.deep, rho_min=share, rho_max=share, kappa=1.0)
        return replace(self.point, deep=deep)

    def description(self) -> dict[str, Any]:
        """All that decides its numbers, beside the evaluation's own detector, as JSON gives it back."""
        fields: dict[str, Any] = {**asdict(self.point), "name": self.name}
        if self.view is not None:
            fields["view"] = asdict(self.view)
        if self.shots is not None:
            fields["shots"] = asdict(self.shots)
        if self.shares is not None:
            fields["shares"] = hashlib.sha256(json.dumps(sorted(self.shares.items())).encode()).hexdigest()
        if self.detector is not None:
            fields["detector"] = {"runs_on": self.detector.runs_on, **self.detector.digests()}
            if self.detector.profile is not None:
                fields["detector"]["references"] = [image.digest for image in self.detector.profile.images]
        described: dict[str, Any] = json.loads(json.dumps(fields))
        return described


VariantLike = str | OperatingPoint | Variant


def as_variants(variants: Sequence[VariantLike]) -> list[Variant]:
    """Variants of these operating points, names of operating points, or variants, all distinct in name."""
    points = [each if isinstance(each, Variant) else operating_point(each) for each in variants]
    listed = [each if isinstance(each, Variant) else Variant(each.name, each) for each in points]
    names = [variant.name for variant in listed]
    if not listed or len(set(names)) < len(names):
        raise KeepADError(f"operating points must be distinct and at least one, not {', '.join(names) or 'none'}.")
    return listed


@dataclass(frozen=True)
class Pass:
    """Variants that share a detector and a view, and therefore one `infer()` per batch and its early blocks.

    Those with a share of their own for every image are not among them.

    Attributes:
        detector: The detector.
        view: The view, or None for the images as they are.
        points: Operating points under the names of their variants.
    """

    detector: Detector
    view: View | None
    points: list[OperatingPoint]


def passes_of(variants: Sequence[Variant], detector: Detector) -> list[Pass]:
    """The passes that compute all variants; `detector` runs those that name none.

    Raises:
        KeepADError: The detectors differ in input size or patch grid.
    """
    passes: dict[tuple[int, View | None], Pass] = {}
    for variant in (variant for variant in variants if variant.shares is None):
        runner = variant.detector or detector
        if (runner.image_size, runner.grid) != (detector.image_size, detector.grid):
            raise KeepADError(
                f"the detector of variant {variant.name!r} has another input size or patch grid than {detector.name}; "
                "evaluate it on its own."
            )
        if not runner.framing.plain and (variant.view is not None or variant.shots is not None):
            raise KeepADError(
                f"variant {variant.name!r} changes the images or has references, which is measured on squashed images "
                "only; leave fit, tiles and views out."
            )
        shared = passes.setdefault((id(runner), variant.view), Pass(runner, variant.view, []))
        shared.points.append(replace(variant.point, name=variant.name))
    return list(passes.values())
