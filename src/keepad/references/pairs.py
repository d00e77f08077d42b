"""A suspicious part of an image beside the part of a reference that it resembles most: what people can check."""

from __future__ import annotations

from dataclasses import dataclass
from io import BytesIO

from PIL import Image

from keepad.references.bank import Match
from keepad.references.profile import Profile


@dataclass(frozen=True)
class NearestReference:
    """A part of an image beside the part of a reference that it resembles most.

    Attributes:
        own: The part of the image.
        reference: The part of the reference.
        name: Name of the reference.
        distance: Distance of the patches in their middle, in [0, 1].
    """

    own: Image.Image
    reference: Image.Image
    name: str
    distance: float


def around(image: Image.Image, cell: int, grid: tuple[int, int], margin: int) -> Image.Image:
    """The part of an image around a cell, `margin` cells on each side, moved inside where it would leave the image."""
    rows, columns = grid
    high, wide = image.height / rows, image.width / columns
    row = min(max(cell // columns, margin), rows - 1 - margin)
    column = min(max(cell % columns, margin), columns - 1 - margin)
    corners = (column - margin) * wide, (row - margin) * high, (column + margin + 1) * wide, (row + margin + 1) * high
    return image.crop(tuple(round(corner) for corner in corners))  # type: ignore[arg-type]


def pair_of(
    match: Match, profile: Profile, whole: tuple[Image.Image, tuple[int, int]], grid: tuple[int, int], margin: int
) -> NearestReference | None:
    """The survivor that matches the references worst, beside its nearest reference patch; None without references.

    Args:
        match: How the survivors match.
        profile: Has the references and their pictures.
        whole: The image, and its rows and columns.
        grid: Rows and columns of a reference.
        margin: Patches shown around it on each side.
    """
    bank = profile.bank
    if bank is None:
        return None
    worst = int(match.distance.argmax())
    token, cell = match.nearest[worst], int(match.cells[worst])
    number = int(bank.image[token])
    with Image.open(BytesIO(profile.picture_of(number)), formats=["JPEG"]) as opened:
        picture = opened.convert("RGB")
    own, reference = around(whole[0], cell, whole[1], margin), around(picture, int(bank.cell[token]), grid, margin)
    return NearestReference(own, reference, profile.images[number].name, float(match.distance[worst]))
