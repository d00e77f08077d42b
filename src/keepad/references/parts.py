"""Parts of a good image that become references of their own: the image, or its thumbnail and its tiles."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from keepad.arrays import Array
from keepad.errors import KeepADError
from keepad.framing import Framing
from keepad.images import InputImage
from keepad.presets import OperatingPoint
from keepad.references.rotation import rotated
from keepad.roi import roi_from
from keepad.routing import route_pixels
from keepad.tiles import Tiling, cut
from keepad.tiling import is_plain


@dataclass(frozen=True)
class Part:
    """A part at input size.

    Attributes:
        name: What is added to the name of its image.
        pixels: (H, W, 3) uint8.
        inside: (N,) bool, the cells that count, or None where all do.
    """

    name: str
    pixels: Array
    inside: Array | None

    def turned(self, angle: float, grid: tuple[int, int]) -> Part:
        """The part turned about its centre, with the cells that lie wholly within what counted."""
        pixels = rotated(self.pixels, angle) if angle else self.pixels
        if self.inside is None or not angle:
            return Part(self.name, pixels, self.inside)
        high, wide = pixels.shape[0] // grid[0], pixels.shape[1] // grid[1]
        held = self.inside.reshape(grid).repeat(high, 0).repeat(wide, 1).astype(np.uint8) * np.uint8(255)
        held = rotated(np.repeat(held[..., None], 3, 2), angle)[..., 0] > 127
        inside = held.reshape(grid[0], high, grid[1], wide).all(axis=(1, 3)).reshape(-1)
        return Part(self.name, pixels, inside if inside.any() else self.inside)


def parts_of(image: InputImage, point: OperatingPoint) -> Iterator[Part]:
    """The image as the network takes it, and its tiles if it has any; plain ones, which no pass computes, left out."""
    yield Part("", image.pixels, image.inside)
    if image.plan is None or image.picture is None:
        return
    for corner in image.plan.corners:
        tile = cut(image.picture, image.plan, corner, image.roi)
        if tile is None:
            continue
        if point.pixels is None or not is_plain(route_pixels(tile.pixels, image.plan.patch, point.pixels, tile.inside)):
            yield Part(f", tile at row {corner[0]}, column {corner[1]}", tile.pixels, tile.inside)


def framing_to_json(framing: Framing) -> dict[str, Any] | None:
    """The framing as a profile keeps it; None where images are squashed as always."""
    if framing.plain:
        return None
    if framing.any_shape:
        raise KeepADError(f"a profile needs inputs of one shape, so --fit {framing.fit} cannot be used; choose pad.")
    tiles = framing.tiles
    return {
        "fit": framing.fit,
        "tiles": None if tiles is None else [tiles.size, tiles.overlap],
        "roi": None if framing.roi is None else framing.roi.to_json(),
    }


def framing_setting(framing: Framing) -> dict[str, Any]:
    """What a profile keeps of how images became inputs; nothing where they are squashed as always."""
    stored = framing_to_json(framing)
    return {} if stored is None else {"framing": stored}


def framing_from(stored: object) -> Framing:
    """The framing that a profile keeps.

    Raises:
        KeepADError: It is none.
    """
    if stored is None:
        return Framing()
    try:
        kept = dict(stored)  # type: ignore[call-overload]
        tiles = None if kept["tiles"] is None else Tiling(*kept["tiles"])
        return Framing(kept["fit"], tiles, None if kept["roi"] is None else roi_from(kept["roi"]))
    except (KeepADError, KeyError, TypeError, ValueError, IndexError, AttributeError, OverflowError) as error:
        raise KeepADError(
            "the profile is damaged where it keeps fit, tiles and region of interest; make it again."
        ) from error


def check_framing(settings: dict[str, Any], framing: Framing) -> None:
    """Raise a KeepADError unless a profile with these settings was made with the same framing."""
    if settings.get("framing") != framing_to_json(framing):
        raise KeepADError(
            "the profile was made with another fit, tiles or region of interest; leave these options out, so that "
            "keepad.load takes its own, or teach it again."
        )
