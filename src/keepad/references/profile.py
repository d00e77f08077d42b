"""Profile: what a detector knows about one product, in a safetensors file: references, calibration, choice, history."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from keepad.arrays import Array
from keepad.decisions import Calibrated, Choice
from keepad.decisions.fields import Fields
from keepad.errors import KeepADError
from keepad.files import replacing
from keepad.references.bank import Bank, ImageTokens

SUFFIX = ".keepad"
_KEY = "keepad-profile"
_FORMAT = 2
_OLDEST_FORMAT = 1  # has neither calibration nor choice
_BANK = ("shallow", "deep", "layers", "image", "cell")
_TENSORS = (*_BANK, "pictures")


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
    """Everything a detector knows about one product: references, calibration and choice, each of them if it was made.

    Attributes:
        bank: Normal tokens, or None without references.
        owner: What it belongs to.
        images: The taught images, in the order of `bank.image`.
        pictures: (n,) uint8 JPEGs of the images at input size, one after the other.
        settings: How it was taught: rotations, bound on the bank, tokens before thinning, loss.
        history: What was done to it, and when.
        image_threshold: Score from which an image is called anomalous, or None if unknown.
        pixel_threshold: Map value from which a pixel is called anomalous, or None if unknown.
        calibrated: Scores of good images and the false-alarm rate that they promise, or None.
        choice: Why the owner's operating point was chosen: its bound on missed defective images, or None.
        lost: The same for defects that lose all tokens, or None.
    """

    bank: Bank | None
    owner: Owner
    images: tuple[ReferenceImage, ...]
    pictures: Array
    settings: dict[str, Any]
    history: tuple[dict[str, Any], ...]
    image_threshold: float | None = None
    pixel_threshold: float | None = None
    calibrated: Calibrated | None = None
    choice: Choice | None = None
    lost: Choice | None = None

    @property
    def thresholds(self) -> tuple[float | None, float | None]:
        """Score of an image and map value of a pixel that count as anomalous: the calibration's, if there is one."""
        if self.calibrated is None:
            return self.image_threshold, self.pixel_threshold
        pixel = self.calibrated.pixel_threshold
        return self.calibrated.threshold, self.pixel_threshold if pixel is None else pixel

    @property
    def holds(self) -> list[str]:
        """What the profile consists of, one line for each part."""
        parts = []
        if self.bank is not None:
            parts.append(f"references: {len(self.images)} good images, {self.bank.layers.shape[1]} tokens")
        if self.calibrated is not None:
            parts.append(f"calibration: {self.calibrated.promise}")
        for what, choice in (("missed", self.choice), ("lost", self.lost)):
            if choice is not None:
                parts.append(f"choice: {choice.described(what).rstrip('.')}")
        return parts

    def with_thresholds(self, image: float, pixel: float) -> Profile:
        """The profile with thresholds set by hand, which promise nothing: the calibration goes."""
        return replace(self, image_threshold=image, pixel_threshold=pixel, calibrated=None)

    def with_calibration(self, calibrated: Calibrated, when: str) -> Profile:
        """The profile with a calibration, in place of another if it has one."""
        line = {"action": "calibrate", "images": len(calibrated.scores), "when": when}
        return replace(self, calibrated=calibrated, history=(*self.history, line))

    def picture_of(self, number: int) -> bytes:
        """The JPEG of a reference."""
        start = sum(image.picture for image in self.images[:number])
        return self.pictures[start : start + self.images[number].picture].tobytes()

    def added(self, image: ReferenceImage, tokens: ImageTokens, picture: bytes, when: str) -> Profile:
        """The profile with one more normal image, whose tokens all stay; without calibration and choice.

        Raises:
            KeepADError: The profile has that image already, or no references.
        """
        if self.bank is None:
            raise KeepADError("the profile has no references to add to; teach one with keepad teach.")
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
            self._uncalibrated(),
            bank=bank,
            images=(*self.images, replace(image, tokens=counts, picture=len(picture))),
            pictures=np.concatenate([self.pictures, np.frombuffer(picture, np.uint8)]),
            history=(*self.history, {"action": "add", "image": image.name, "when": when}),
        )

    def undone(self, when: str) -> Profile:
        """The profile without the image that was added last; without calibration and choice.

        Raises:
            KeepADError: None was added.
        """
        last = self.images[-1] if self.images else None
        if self.bank is None or last is None or last.tokens is None:
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
            self._uncalibrated(),
            bank=bank,
            images=self.images[:-1],
            pictures=self.pictures[: len(self.pictures) - last.picture],
            history=(*self.history, {"action": "undo", "image": last.name, "when": when}),
        )

    def _uncalibrated(self) -> Profile:
        """Scores change with the references, so what was promised about them no longer holds."""
        return replace(self, calibrated=None, choice=None, lost=None)

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
                raise KeepADError(f"the profile was made with another {noun}{names}; make it again with this one.")

    @property
    def _decisions(self) -> dict[str, Calibrated | Choice | None]:
        return {"calibrated": self.calibrated, "choice": self.choice, "lost": self.lost}

    def to_bytes(self) -> bytes:
        """Content of the file, as `save` writes it."""
        tensors: dict[str, Array] = {"pictures": np.ascontiguousarray(self.pictures)}
        if self.bank is not None:
            for name in _BANK:  # contiguous: safetensors writes the memory as it lies
                kind = np.int32 if name in ("image", "cell") else np.float16
                tensors[name] = np.ascontiguousarray(getattr(self.bank, name), kind)
        described = {
            "format": _FORMAT,
            "owner": asdict(self.owner),
            "images": [asdict(image) for image in self.images],
            "level": None if self.bank is None else self.bank.level,
            "spread": None if self.bank is None else self.bank.spread,
            "settings": self.settings,
            "history": list(self.history),
            "image_threshold": self.image_threshold,
            "pixel_threshold": self.pixel_threshold,
            **{name: None if part is None else part.to_dict() for name, part in self._decisions.items()},
        }
        return bytes(save(tensors, metadata={_KEY: json.dumps(described)}))

    def save(self, path: str | Path) -> None:
        """Write the file as a whole.

        Raises:
            KeepADError: It cannot be written.
        """
        content = self.to_bytes()
        try:
            with replacing(Path(path)) as partial:
                partial.write_bytes(content)
        except OSError as error:
            raise KeepADError(f"the profile {path} cannot be written: {error.strerror or error}.") from error


def read_profile(path: str | Path) -> Profile:
    """The profile in a file that `keepad teach` or `keepad calibrate` wrote.

    Raises:
        KeepADError: There is no such file, or it is no whole profile.
    """
    path = Path(path)
    if not path.is_file():
        raise KeepADError(f"there is no profile {path}; keepad teach makes one from good images.")
    try:
        with safe_open(path, framework="numpy") as opened:
            text = (opened.metadata() or {}).get(_KEY)
            tensors = {name: opened.get_tensor(name) for name in opened.keys() if name in _TENSORS}  # noqa: SIM118
    except (SafetensorError, OSError, ValueError, TypeError) as error:
        raise KeepADError(f"the profile {path} is damaged; make it again.") from error
    if text is None:
        raise KeepADError(f"{path} is no profile; keepad teach makes one from good images.")
    try:
        described = Fields(json.loads(text), "a profile")
        if not _OLDEST_FORMAT <= described.integer("format") <= _FORMAT:
            raise KeepADError("another format")
    except (KeepADError, ValueError, KeyError, RecursionError) as error:
        raise KeepADError(f"{path} has another format of profile than this version reads; make it again.") from error
    try:
        return _profile(described, tensors)
    except (KeepADError, ValueError, KeyError, TypeError, AttributeError, IndexError, OverflowError) as error:
        raise KeepADError(f"the profile {path} is damaged; make it again.") from error


def _profile(described: Fields, tensors: dict[str, Array]) -> Profile:
    """The profile of a file's content, or an error of any kind where the parts do not fit together."""
    images = tuple(_image(item) for item in described.items("images"))
    pictures = tensors["pictures"]
    if pictures.dtype != np.uint8 or pictures.shape != (sum(image.picture for image in images),):
        raise ValueError("the pictures are not those of the images")
    history = described.items("history")
    if not history or not all(isinstance(line, dict) for line in history):
        raise ValueError("the history is no list of actions")
    older = described.integer("format") == _OLDEST_FORMAT
    decisions: dict[str, Any] = {}
    for name, read in (("calibrated", Calibrated.from_dict), ("choice", Choice.from_dict), ("lost", Choice.from_dict)):
        value = None if older else described.value(name)
        decisions[name] = None if value is None else read(value)
    return Profile(
        bank=_bank(described, tensors, len(images)),
        owner=_owner(Fields(described.value("owner"), "an owner", list(Owner.__dataclass_fields__))),
        images=images,
        pictures=pictures,
        settings=dict(described.value("settings")),  # type: ignore[call-overload]
        history=tuple(history),  # type: ignore[arg-type]
        image_threshold=described.number_or_none("image_threshold"),
        pixel_threshold=described.number_or_none("pixel_threshold"),
        **decisions,
    )


def _owner(read: Fields) -> Owner:
    height, width = read.integers("size", low=1)
    texts = {name: read.text(name) for name in read.keys if name != "size"}
    return Owner(**texts, size=(height, width))


def _image(item: object) -> ReferenceImage:
    read = Fields(item, "a reference", list(ReferenceImage.__dataclass_fields__))
    tokens = None
    if read.value("tokens") is not None:
        survivors, shallow, deep = read.integers("tokens", low=1)
        tokens = survivors, shallow, deep
    return ReferenceImage(read.text("name"), read.text("digest"), tokens, read.integer("picture", low=1))


def _bank(described: Fields, tensors: dict[str, Array], images: int) -> Bank | None:
    """The bank of a file's content, None where it has no references."""
    if not images and set(tensors) == {"pictures"}:
        return None
    rows = {name: tensors[name].astype(np.float32) for name in ("shallow", "deep", "layers")}
    image, cell = tensors["image"].astype(np.int64), tensors["cell"].astype(np.int64)
    shallow, deep, layers = rows["shallow"], rows["deep"], rows["layers"]
    whole = (
        shallow.ndim == deep.ndim == 2
        and layers.ndim == 3
        and len({shallow.shape[1], deep.shape[1], layers.shape[2]}) == 1
        and min(len(shallow), len(deep), layers.shape[1]) > 0
        and image.shape == cell.shape == (layers.shape[1],)
        and 0 <= image.min() <= image.max() < images
        and cell.min() >= 0
        and all(np.isfinite(values).all() for values in rows.values())
    )
    if not whole:
        raise ValueError("tensors and description do not fit together")
    return Bank(shallow, deep, layers, image, cell, described.number("level"), described.number("spread"))
