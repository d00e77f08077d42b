"""Profile: the bank of one product in a safetensors file, with the images it comes from and its history."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from keepad.arrays import Array
from keepad.errors import KeepADError
from keepad.files import replacing
from keepad.references.bank import Bank, ImageTokens

SUFFIX = ".keepad"
_KEY = "keepad-profile"
_FORMAT = 1
_TENSORS = ("shallow", "deep", "layers", "image", "cell", "pictures")


@dataclass(frozen=True)
class Owner:
    """What a profile belongs to: it only fits a detector that makes the same tokens.

    Attributes:
        name: Name of the checkpoint.
        checkpoint: Digest of checkpoint, and of the exported files where these round.
        backbone: Digest of the backbone.
        point: Name of the operating point.
        budgets: All fields of the operating point, as JSON.
        precision: Precision of the network.
        size: Height and width of the network's input.
    """

    name: str
    checkpoint: str
    backbone: str
    point: str
    budgets: str
    precision: str
    size: tuple[int, int]


@dataclass(frozen=True)
class ReferenceImage:
    """One taught image.

    Attributes:
        name: File name.
        digest: SHA-256 of the file, or of the pixels of an image from memory.
        tokens: Survivors, and tokens of the shallow and the deep router, that it added to the thinned bank; None for
            images of the thinned part.
        picture: Bytes of its JPEG at input size.
    """

    name: str
    digest: str
    tokens: tuple[int, int, int] | None
    picture: int


@dataclass(frozen=True)
class Profile:
    """Everything a detector knows about one product.

    Attributes:
        bank: Normal tokens.
        owner: What it belongs to.
        images: The taught images, in the order of `bank.image`.
        pictures: (n,) uint8 JPEGs of the images at input size, one after the other.
        settings: How it was taught: rotations, bound on the bank, tokens before thinning, loss.
        history: What was done to it, and when.
        image_threshold: Score from which an image is called anomalous, or None if unknown.
        pixel_threshold: Map value from which a pixel is called anomalous, or None if unknown.
    """

    bank: Bank
    owner: Owner
    images: tuple[ReferenceImage, ...]
    pictures: Array
    settings: dict[str, Any]
    history: tuple[dict[str, Any], ...]
    image_threshold: float | None = None
    pixel_threshold: float | None = None

    def picture_of(self, number: int) -> bytes:
        """The JPEG of a reference."""
        start = sum(image.picture for image in self.images[:number])
        return self.pictures[start : start + self.images[number].picture].tobytes()

    def added(self, image: ReferenceImage, tokens: ImageTokens, picture: bytes, when: str) -> Profile:
        """The profile with one more normal image, whose tokens all stay.

        Raises:
            KeepADError: The profile has that image already.
        """
        for known in self.images:
            if known.digest == image.digest:
                raise KeepADError(f"{image.name} is in the profile already, as {known.name}; nothing was added.")
        bank, number = self.bank, len(self.images)
        bank = replace(
            bank,
            shallow=np.concatenate([bank.shallow, tokens.shallow]),
            deep=np.concatenate([bank.deep, tokens.deep]),
            layers=np.concatenate([bank.layers, tokens.layers], axis=1),
            image=np.concatenate([bank.image, np.full(len(tokens.cells), number)]),
            cell=np.concatenate([bank.cell, tokens.cells]),
        )
        counts = len(tokens.cells), len(tokens.shallow), len(tokens.deep)
        return replace(
            self,
            bank=bank,
            images=(*self.images, replace(image, tokens=counts, picture=len(picture))),
            pictures=np.concatenate([self.pictures, np.frombuffer(picture, np.uint8)]),
            history=(*self.history, {"action": "add", "image": image.name, "when": when}),
        )

    def undone(self, when: str) -> Profile:
        """The profile without the image that was added last.

        Raises:
            KeepADError: None was added.
        """
        last = self.images[-1]
        if last.tokens is None:
            raise KeepADError("nothing was added to the profile since it was taught, so there is nothing to undo.")
        survivors, shallow, deep = (-count for count in last.tokens)
        bank = replace(
            self.bank,
            shallow=self.bank.shallow[:shallow],
            deep=self.bank.deep[:deep],
            layers=self.bank.layers[:, :survivors],
            image=self.bank.image[:survivors],
            cell=self.bank.cell[:survivors],
        )
        return replace(
            self,
            bank=bank,
            images=self.images[:-1],
            pictures=self.pictures[: len(self.pictures) - last.picture],
            history=(*self.history, {"action": "undo", "image": last.name, "when": when}),
        )

    def check(self, owner: Owner) -> None:
        """Raise a KeepADError unless the profile belongs to a detector described by `owner`."""
        for field, noun, own, given in (
            ("checkpoint", "checkpoint", self.owner.name, owner.name),
            ("backbone", "backbone", self.owner.name, owner.name),
            ("size", "input size", self.owner.size, owner.size),
            ("precision", "precision", self.owner.precision, owner.precision),
            ("budgets", "operating point", self.owner.point, owner.point),
        ):
            if getattr(self.owner, field) != getattr(owner, field):
                names = f" ({own}, not {given})" if own != given else ""
                raise KeepADError(f"the profile was taught with another {noun}{names}; teach it again with this one.")

    def save(self, path: str | Path) -> None:
        """Write the file as a whole.

        Raises:
            KeepADError: It cannot be written.
        """
        bank = self.bank
        tensors: dict[str, Array] = {  # contiguous: safetensors writes the memory as it lies
            "shallow": np.ascontiguousarray(bank.shallow, np.float16),
            "deep": np.ascontiguousarray(bank.deep, np.float16),
            "layers": np.ascontiguousarray(bank.layers, np.float16),
            "image": np.ascontiguousarray(bank.image, np.int32),
            "cell": np.ascontiguousarray(bank.cell, np.int32),
            "pictures": np.ascontiguousarray(self.pictures),
        }
        described = {
            "format": _FORMAT,
            "owner": asdict(self.owner),
            "images": [asdict(image) for image in self.images],
            "level": bank.level,
            "spread": bank.spread,
            "settings": self.settings,
            "history": list(self.history),
            "image_threshold": self.image_threshold,
            "pixel_threshold": self.pixel_threshold,
        }
        try:
            with replacing(Path(path)) as partial:
                partial.write_bytes(save(tensors, metadata={_KEY: json.dumps(described)}))
        except OSError as error:
            raise KeepADError(f"the profile {path} cannot be written: {error.strerror or error}.") from error


def read_profile(path: str | Path) -> Profile:
    """The profile in a file that `keepad teach` wrote.

    Raises:
        KeepADError: There is no such file, or it is no whole profile.
    """
    path = Path(path)
    if not path.is_file():
        raise KeepADError(f"there is no profile {path}; keepad teach makes one from good images.")
    try:
        with safe_open(path, framework="numpy") as opened:
            metadata = opened.metadata() or {}
            if _KEY not in metadata:
                raise KeepADError(f"{path} is no profile; keepad teach makes one from good images.")
            described = json.loads(metadata[_KEY])
            if described["format"] != _FORMAT:
                raise KeepADError(f"{path} has another format of profile than this version reads; teach it again.")
            tensors = {name: opened.get_tensor(name) for name in _TENSORS}
        return _profile(described, tensors)
    except KeepADError:
        raise
    except (SafetensorError, OSError, ValueError, KeyError, TypeError, IndexError) as error:
        raise KeepADError(f"the profile {path} is damaged; teach it again.") from error


def _profile(described: dict[str, Any], tensors: dict[str, Array]) -> Profile:
    """The profile of a file's content, or a ValueError where the parts do not fit together."""
    owner = Owner(**{**described["owner"], "size": tuple(described["owner"]["size"])})
    images = tuple(
        ReferenceImage(**{**image, "tokens": None if image["tokens"] is None else tuple(image["tokens"])})
        for image in described["images"]
    )
    rows = {name: tensors[name].astype(np.float32) for name in ("shallow", "deep", "layers")}
    image, cell = tensors["image"].astype(np.int64), tensors["cell"].astype(np.int64)
    shallow, deep, layers = rows["shallow"], rows["deep"], rows["layers"]
    whole = (
        shallow.ndim == deep.ndim == 2
        and layers.ndim == 3
        and len({shallow.shape[1], deep.shape[1], layers.shape[2]}) == 1
        and min(len(shallow), len(deep), layers.shape[1]) > 0
        and image.shape == cell.shape == (layers.shape[1],)
        and 0 <= image.min() <= image.max() < len(images)
        and cell.min() >= 0
        and sum(each.picture for each in images) == tensors["pictures"].size
        and all(np.isfinite(values).all() for values in rows.values())
    )
    if not whole:
        raise ValueError("tensors and description do not fit together")
    bank = Bank(shallow, deep, layers, image, cell, float(described["level"]), float(described["spread"]))
    return Profile(
        bank,
        owner,
        images,
        tensors["pictures"].astype(np.uint8),
        dict(described["settings"]),
        tuple(described["history"]),
        described["image_threshold"],
        described["pixel_threshold"],
    )
