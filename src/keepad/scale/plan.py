"""Plan of a run: which images belong to which shard, fixed once, so that a run that was killed goes on."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import chain, islice

from keepad.console import Say
from keepad.errors import KeepADError
from keepad.scale.shards import FORMATS, Shard
from keepad.scale.sources import images_of
from keepad.scale.storage import exists, is_remote, local_path, names_in, read_bytes, write_bytes

_FOLDER = "_keepad"  # a leading underscore: readers of Parquet folders leave it out
_RUN = "run.json"
_CALLED = {"source": "source", "model": "model or profile", "format": "format", "shard": "shard size", "maps": "maps"}


@dataclass(frozen=True)
class Request:
    """What a run is about; a folder takes the shards of one request.

    Attributes:
        source: Source as it was given.
        model: Digest of the detector.
        format: "parquet" or "jsonl".
        shard: Images per shard.
        maps: Whether maps are written.
    """

    source: str
    model: str
    format: str = "parquet"
    shard: int = 1000
    maps: bool = False


@dataclass(frozen=True)
class Plan:
    """The shards of a run.

    Attributes:
        to: URI of the folder.
        request: What the run is about.
        images: Number of images.
    """

    to: str
    request: Request
    images: int

    def __len__(self) -> int:
        return -(-self.images // self.request.shard)

    def shard(self, number: int) -> Shard:
        """One shard, read from the plan's own list of images."""
        content = read_bytes(f"{self.to}/{_FOLDER}/{number:06d}.json")
        try:
            uris = [str(uri) for uri in json.loads(content)]
        except (ValueError, RecursionError) as error:
            raise KeepADError(f"the plan of {self.to} is damaged; score into an empty folder.") from error
        maps = f"{self.to}/maps/part-{number:06d}" if self.request.maps else None
        return Shard(uris, f"{self.to}/{self._name(number)}", maps)

    def missing(self) -> list[int]:
        """Numbers of the shards that are not written yet."""
        there = names_in(self.to)
        return [number for number in range(len(self)) if self._name(number) not in there]

    def size(self, number: int) -> int:
        """Images in a shard."""
        return min(self.request.shard, self.images - number * self.request.shard)

    def _name(self, number: int) -> str:
        return f"part-{number:06d}.{self.request.format}"


def open_plan(to: str, request: Request, say: Say) -> Plan:
    """The plan of a folder: the one that it holds, or a new one from the images that the source has now.

    Raises:
        KeepADError: The folder holds scores of another request, or the source cannot be listed.
    """
    if request.format not in FORMATS:
        raise KeepADError(f"shards are written as {' or '.join(FORMATS)}, not as {request.format!r}.")
    if request.shard < 1:
        raise KeepADError(f"a shard holds at least one image, not {request.shard}.")
    to = to.rstrip("/") or to
    known = _read(to)
    if known is not None:
        differs = [called for name, called in _CALLED.items() if getattr(known.request, name) != getattr(request, name)]
        if differs:
            raise KeepADError(f"{to} holds scores with another {' and '.join(differs)}; choose another folder.")
        say(f"going on in {to}: {len(known) - len(known.missing())} of {len(known)} shards are there")
        return known
    if any(name.startswith("part-") for name in names_in(to)):
        raise KeepADError(f"{to} holds parts of something else; choose an empty folder.")
    images = 0
    for number, uris in enumerate(_chunks(images_of(request.source), request.shard)):
        write_bytes(f"{to}/{_FOLDER}/{number:06d}.json", json.dumps(uris).encode())
        images += len(uris)
    plan = Plan(to, request, images)
    # Last of all: a folder that has it holds the whole plan.
    write_bytes(f"{to}/{_FOLDER}/{_RUN}", json.dumps({"request": asdict(request), "images": images}).encode())
    say(f"{images} images in {len(plan)} shards")
    return plan


def _read(to: str) -> Plan | None:
    file = f"{to}/{_FOLDER}/{_RUN}"
    if not exists(file):
        return None
    try:
        values = json.loads(read_bytes(file))
        images = values["images"]
        if not isinstance(images, int) or images < 1:
            raise ValueError("no number of images")
        return Plan(to, Request(**values["request"]), images)
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise KeepADError(f"'{file}' is damaged; score into an empty folder.") from error


def remove_parts(to: str) -> None:
    """Remove what killed processes left half written; only while no other process writes."""
    if not is_remote(to):
        folder = local_path(to)
        for part in chain.from_iterable(folder.glob(f"{below}*.part") for below in ("", f"{_FOLDER}/", "maps/*/")):
            part.unlink(missing_ok=True)


def _chunks(uris: Iterator[str], size: int) -> Iterator[list[str]]:
    while chunk := list(islice(uris, size)):
        yield chunk
