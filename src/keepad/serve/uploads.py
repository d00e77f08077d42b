"""Bodies of requests: read within limits, unpacked within limits, taken apart in memory, never on disk."""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, replace
from pathlib import PurePosixPath, PureWindowsPath

from starlette.concurrency import run_in_threadpool
from starlette.datastructures import UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import ClientDisconnect, Request

from keepad.detector import Detector
from keepad.images import InputImage, read_encoded
from keepad.serve.errors import RefusedError
from keepad.serve.settings import Limits

_LONGEST_NAME = 120
_FIELDS = 32  # fields of a form that are no images
_ENCODINGS = ("gzip", "x-gzip", "deflate")


@dataclass(frozen=True)
class Upload:
    """An image as it was sent: what the client calls it, and the content of its file."""

    name: str
    data: bytes

    def read(self, detector: Detector, max_pixels: int) -> InputImage:
        """The image as an input of the detector.

        Raises:
            ImageError: It is no usable image, or has more than `max_pixels`.
        """
        image = read_encoded(self.data, self.name, max_pixels)
        digest = hashlib.sha256(self.data).hexdigest()
        return replace(detector.prepare(image), name=self.name, digest=digest)


async def read_body(request: Request, limit: int) -> bytes:
    """The body of a request, unpacked; packed and unpacked it has at most `limit` bytes.

    Raises:
        RefusedError: 413 for a larger one, 415 for an unknown packing, 400 for a damaged one.
    """
    encoding = request.headers.get("content-encoding", "identity").strip().lower()
    if encoding not in ("identity", "", *_ENCODINGS):
        raise RefusedError(415, f"the content encoding {encoding[:40]!r} is unknown; send gzip, deflate or none.")
    declared_size(request, limit)
    chunks, total = [], 0
    try:
        async for chunk in request.stream():
            total += len(chunk)
            if total > limit:
                raise _too_large(limit)
            chunks.append(chunk)
    except ClientDisconnect:
        raise RefusedError(400, "the connection ended before the request did.") from None
    body = b"".join(chunks)
    if encoding in _ENCODINGS:
        return await run_in_threadpool(_unpacked, body, limit)
    return body


def declared_size(request: Request, limit: int) -> int:
    """Size of the body by its header, or `limit` where that is missing.

    Raises:
        RefusedError: 413 for more than `limit`.
    """
    text = request.headers.get("content-length", "")
    size = int(text) if text.isascii() and text.isdigit() and len(text) < 20 else limit
    if size > limit:
        raise _too_large(limit)
    return size


def _too_large(limit: int) -> RefusedError:
    return RefusedError(413, f"a request may have {limit / 1e6:g} MB at most; send fewer or smaller images at a time.")


def _unpacked(body: bytes, limit: int) -> bytes:
    unpacker = zlib.decompressobj(wbits=47)  # gzip or zlib, by its header
    try:
        # Never asks for more than one byte above the limit, however much the body would unpack to.
        unpacked = unpacker.decompress(body, limit + 1)
    except zlib.error:
        raise RefusedError(400, "the body is no gzip or deflate data, although its header says so.") from None
    if len(unpacked) > limit:
        raise _too_large(limit)
    if not unpacker.eof or unpacker.unused_data:
        raise RefusedError(400, "the packed body is cut off, or something follows it.")
    return unpacked


class _InMemory(MultiPartParser):
    """Keeps every part in memory; the original writes large ones to a temporary file."""

    spool_max_size = 2**62


async def images_of(request: Request, body: bytes, limits: Limits) -> tuple[list[Upload], dict[str, str]]:
    """The images of a body, and the other fields of its form: a multipart form, or else the bytes of one image.

    Raises:
        RefusedError: 400 for a damaged form or none, 413 for too many images.
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind == "multipart/form-data":
        uploads, fields = await _parts(request, body, limits)
    else:
        uploads, fields = [Upload(client_name(request.query_params.get("name"), 1), body)] if body else [], {}
    if not uploads:
        raise RefusedError(400, "the request holds no image; send the bytes of one, or a multipart form with files.")
    return uploads, fields


async def _parts(request: Request, body: bytes, limits: Limits) -> tuple[list[Upload], dict[str, str]]:
    async def stream() -> AsyncGenerator[bytes, None]:
        yield body

    # One more than allowed, so that too many images have a sentence of their own.
    parser = _InMemory(request.headers, stream(), max_files=limits.images + 1, max_fields=_FIELDS)
    try:
        form = await parser.parse()
    except MultiPartException as error:
        if "Too many files" in error.message:
            raise _too_many(limits.images) from None
        raise RefusedError(400, "the multipart form is damaged or has too many fields.") from None
    except (ValueError, KeyError, IndexError, AssertionError):
        raise RefusedError(400, "the multipart form is damaged.") from None
    uploads: list[Upload] = []
    fields: dict[str, str] = {}
    for key, value in form.multi_items():
        if isinstance(value, UploadFile):
            uploads.append(Upload(client_name(value.filename, len(uploads) + 1), await value.read()))
        else:
            fields[key] = value
    await form.close()
    check_count(uploads, limits.images)
    return uploads, fields


def check_count(uploads: Sequence[Upload], limit: int) -> None:
    """Refuse more images than a request may have, with 413."""
    if len(uploads) > limit:
        raise _too_many(limit)


def _too_many(limit: int) -> RefusedError:
    return RefusedError(413, f"a request may have {limit} images at most; send the others in another one.")


def client_name(name: str | None, number: int) -> str:
    """What an image is called: the last part of the client's file name, printable and short; never a path."""
    last = PurePosixPath(PureWindowsPath(name or "").name).name
    shown = "".join(letter for letter in last if letter.isprintable())
    if len(shown) > _LONGEST_NAME:
        shown = shown[: _LONGEST_NAME - 20] + "…" + shown[-19:]
    return shown if shown.strip(". ") else f"image {number}"
