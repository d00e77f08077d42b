"""Profiles by name: read from files given at the start, made and changed through the service. Never by path."""

from __future__ import annotations

import re
import tempfile
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from keepad.console import Say
from keepad.detector import Detector
from keepad.errors import KeepADError
from keepad.presets import operating_point
from keepad.references.parts import framing_from
from keepad.references.profile import SUFFIX, Profile, read_profile
from keepad.serve.errors import RefusedError

ZERO_SHOT = "keepad"  # name of the model without a profile
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,62}")
_DEVICES = frozenset({"con", "prn", "aux", "nul", *(f"{port}{n}" for port in ("com", "lpt") for n in range(1, 10))})


@dataclass(frozen=True)
class Product:
    """A profile that is ready for predictions.

    Attributes:
        name: What requests call it.
        detector: The detector with this profile, at the profile's operating point.
        profile: The profile.
        path: File that it is kept in, or None where it is only in memory.
    """

    name: str
    detector: Detector
    profile: Profile
    path: Path | None

    def summary(self) -> dict[str, Any]:
        """What there is to know about it, ready for JSON; nothing of the server's disk."""
        profile, calibrated = self.profile, self.profile.calibrated
        image, pixel = profile.thresholds
        return {
            "name": self.name,
            "point": profile.owner.point,
            "images": [reference.name for reference in profile.images],
            "tokens": 0 if profile.bank is None else int(profile.bank.layers.shape[1]),
            "image_threshold": image,
            "review_threshold": None if calibrated is None else calibrated.review_threshold,
            "pixel_threshold": pixel,
            "calibration": None
            if calibrated is None
            else {"images": len(calibrated.scores), "level": calibrated.level, "promise": calibrated.promise},
            "history": [dict(line) for line in profile.history],
            "saved": self.path is not None,
            "undo": bool(profile.images) and profile.images[-1].tokens is not None,
        }


class Profiles:
    """The profiles of a service; safe to use from several threads.

    Args:
        detector: Zero-shot detector.
        folder: Where profiles are read from and kept, or None to keep new ones in memory only.
        limit: Profiles that can be made through the service.
        say: Called with a line for every file that cannot be used.
    """

    def __init__(self, detector: Detector, folder: Path | None, limit: int, say: Say) -> None:
        self._detector, self._folder, self._limit, self._say = detector, folder, limit, say
        self._products: dict[str, Product] = {}
        self._lock = threading.Lock()
        for path in sorted(folder.glob(f"*{SUFFIX}")) if folder is not None else ():
            self._open_or_say(path)

    @property
    def keeps(self) -> bool:
        """Whether new profiles are written to a folder."""
        return self._folder is not None

    def open_file(self, path: Path) -> Product:
        """Add the profile in a file, named after it.

        Raises:
            KeepADError: The file is no profile of this detector, or its name cannot be used in a request.
        """
        name = path.name.removesuffix(SUFFIX)
        try:
            check_name(name)
        except RefusedError as refusal:
            raise KeepADError(f"{path}: {refusal.sentence}") from None
        profile = read_profile(path)
        product = Product(name, with_profile(self._detector, profile), profile, path)
        with self._lock:
            if name in self._products:
                raise KeepADError(f"there are two profiles called {name}; rename {path}.")
            self._products[name] = product
        return product

    def _open_or_say(self, path: Path) -> None:
        try:
            self.open_file(path)
        except KeepADError as error:
            self._say(f"left out: {error}")

    def names(self) -> list[str]:
        """Names of all profiles, sorted."""
        with self._lock:
            return sorted(self._products)

    def all(self) -> list[Product]:
        """All profiles, by name."""
        with self._lock:
            return [self._products[name] for name in sorted(self._products)]

    def get(self, name: str) -> Product:
        """The profile of that name.

        Raises:
            RefusedError: 404, there is none.
        """
        with self._lock:
            product = self._products.get(name)
        if product is None:
            raise RefusedError(404, f"there is no profile called {name[:70]!r}; GET /profiles lists them.")
        return product

    def room_for(self, name: str) -> None:
        """Check that a new profile can have this name.

        Raises:
            RefusedError: 400 for a name that cannot be used, 409 for one that is taken or where there is no room.
        """
        check_name(name)
        with self._lock:
            if name in self._products:
                raise RefusedError(409, f"there is a profile called {name} already; choose another name or delete it.")
            if len(self._products) >= self._limit:
                raise RefusedError(
                    409, f"the service holds {len(self._products)} profiles, its limit; delete one first."
                )

    def put(self, name: str, profile: Profile) -> Product:
        """Add a profile, or replace the one of this name, in memory and in its file.

        Raises:
            KeepADError: It does not belong to this detector.
            RefusedError: 400 for a name that cannot be used, 507 if the file cannot be written.
        """
        check_name(name)
        detector = with_profile(self._detector, profile)
        with self._lock:
            known = self._products.get(name)
            path = known.path if known is not None else None if self._folder is None else self._folder / (name + SUFFIX)
            if path is not None:
                self._save(name, profile, path)
            self._products[name] = Product(name, detector, profile, path)
            return self._products[name]

    def delete(self, name: str) -> None:
        """Forget a profile; its file stays as NAME.keepad.deleted, so that the owner of the disk can take it back.

        Raises:
            RefusedError: 404, there is none; 507 if the file cannot be renamed.
        """
        product = self.get(name)
        with self._lock:
            if product.path is not None:
                try:
                    product.path.replace(product.path.with_name(product.path.name + ".deleted"))
                except FileNotFoundError:
                    pass  # its owner was faster
                except OSError as error:
                    self._say(f"{product.path} cannot be renamed: {error.strerror}")
                    raise RefusedError(507, f"the file of {name} cannot be removed; nothing was changed.") from error
            self._products.pop(name, None)

    def _save(self, name: str, profile: Profile, path: Path) -> None:
        try:
            profile.save(path)
        except KeepADError as error:  # names a path, which is no business of a client
            self._say(str(error))
            raise RefusedError(507, f"the profile {name} cannot be saved; nothing was changed.") from error


def check_name(name: str) -> None:
    """Refuse, with 400, what cannot be the name of a profile: it becomes a file name and a part of addresses."""
    if not _NAME.fullmatch(name):
        raise RefusedError(
            400, "the name of a profile has 1 to 63 letters, digits, - or _, and starts with a letter or digit."
        )
    if name.lower() in (ZERO_SHOT, *_DEVICES):
        raise RefusedError(400, f"no profile can be called {name}; choose another name.")


def with_profile(detector: Detector, profile: Profile) -> Detector:
    """The detector with a profile, at the profile's operating point, fit and region of interest.

    Raises:
        KeepADError: The profile belongs to another detector, or cuts images into tiles.
    """
    point, framing = operating_point(profile.owner.point), framing_from(profile.settings.get("framing"))
    if framing.tiles is not None:  # the photographs of all that waits would have to be kept in memory
        raise KeepADError(
            "the profile was taught with tiles, which the service does not take; use it with keepad predict, watch or "
            "score, or teach it without --tiles."
        )
    return Detector(detector.network, point, framing=framing).with_profile(profile)


def read_uploaded(data: bytes) -> Profile:
    """The profile in the content of a file that a client sent.

    Raises:
        RefusedError: 422, it is no whole profile.
    """
    # safetensors reads names of files; this one is seen by nobody else and gone at once.
    with tempfile.TemporaryDirectory(prefix="keepad-") as folder:
        path = Path(folder) / f"uploaded{SUFFIX}"
        try:
            path.write_bytes(data)
            return read_profile(path)
        except KeepADError:
            raise RefusedError(422, "this is no profile, or a damaged one; keepad teach makes one.") from None
        except OSError as error:
            raise RefusedError(507, "the service has no room for the profile now.") from error


def probe(detector: Detector) -> None:
    """Run a profile once on a blank image, so that one that fits only in its description is found out.

    Raises:
        RefusedError: 422, it does not run.
    """
    rows, columns = detector.grid
    bank = None if detector.profile is None else detector.profile.bank
    try:
        if bank is not None and bank.cell.max() >= rows * columns:
            raise ValueError("cells outside of the grid")
        # As a mask of a region of interest fits images of its own size only, the blank one is taken whole.
        detector = Detector(detector.network, detector.point, detector.profile)
        detector(np.full((*detector.image_size, 3), 127, np.uint8)).to_dict()
    except Exception as error:
        raise RefusedError(422, "the profile does not fit its own description, so it cannot be used.") from error
