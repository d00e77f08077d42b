"""Requests that lie: `python benchmarks/hostile_requests.py --model DIR --out docs/reliability/requests.json`.

Sizes that are not those of the body, JSON without end, archives that unpack to far more, images whose header and
content differ, and names that are paths go to `keepad serve` in a process of its own, one at a time. Each must be
answered with the right status and one sentence, quickly and without much memory, and the service must be ready after
it. The table is in docs/reliability.md.
"""

from __future__ import annotations

import argparse
import gzip
import json
import socket
import sys
import tempfile
import time
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from keepad.console import command_line
from keepad.demo import write_demo_images
from keepad.files import replace_text
from reliability_page import write_page
from serve import Server

SECONDS = 8  # the service's limit of a request's time; a body that never comes is waited for that long
_MEGABYTES = 64  # its limit of a request's size


@dataclass(frozen=True)
class Case:
    """A request that lies.

    Attributes:
        kind: Sizes, JSON, archives, images or paths.
        what: What is wrong with it.
        content: All of its bytes, or its parts as they are sent.
        statuses: Statuses of a right answer; 0 where the connection may end without one.
    """

    kind: str
    what: str
    content: list[bytes]
    statuses: tuple[int, ...]


def request(target: str, body: bytes = b"", *headers: str, length: object = None, method: str = "POST") -> list[bytes]:
    """A request with a body, whose length is said to be `length`."""
    lines = [f"{method} {target} HTTP/1.1", "Host: localhost", "Connection: close", *headers]
    lines.append(f"Content-Length: {len(body) if length is None else length}")
    return ["\r\n".join(lines).encode("latin-1") + b"\r\n\r\n", body]


def png(width: int, height: int, data: bytes, *chunks: tuple[bytes, bytes]) -> bytes:
    """A greyscale PNG with any data, and further chunks."""
    head = width.to_bytes(4, "big") + height.to_bytes(4, "big") + b"\x08\x00\x00\x00\x00"
    parts = [(b"IHDR", head), *chunks, (b"IDAT", data), (b"IEND", b"")]
    packed = (
        len(own).to_bytes(4, "big") + kind + own + zlib.crc32(kind + own).to_bytes(4, "big") for kind, own in parts
    )
    return b"\x89PNG\r\n\x1a\n" + b"".join(packed)


def lying_sizes(image: bytes) -> Iterator[Case]:
    """Lengths in the head of a request, or in its form, that are not those of the content."""
    for what, length, statuses in (
        ("says 60 MB, sends a few bytes and waits", 60_000_000, (408,)),
        ("says a petabyte", 10**15, (413,)),
        ("says 5,000 digits", "9" * 5000, (400, 413)),
        ("says less than nothing", -5, (400,)),
        ("says no number", "many", (400,)),
    ):
        yield Case("sizes", f"Content-Length {what}", request("/predict", image[:100], length=length), statuses)
    head, _ = request("/predict", b"", length=0)
    chunked = head.replace(b"Content-Length: 0", b"Transfer-Encoding: chunked")
    megabyte = b"100000\r\n" + bytes(2**20) + b"\r\n"
    yield Case("sizes", "200 MB in chunks, without an end", [chunked, *[megabyte] * 200], (413, 0))
    yield Case("sizes", "a chunk of 2^63 bytes", [chunked + b"8000000000000000\r\n", image], (400, 408, 413))
    both = head.replace(b"Content-Length: 0", b"Content-Length: 5\r\nTransfer-Encoding: chunked")
    yield Case("sizes", "both a length and chunks", [both, b"0\r\n\r\n"], (400,))
    yield Case("sizes", "a header of 1 MB", [head[:-2] + b"X: " + b"x" * 2**20 + b"\r\n\r\n"], (400, 431, 0))
    infer = "/v2/models/keepad/infer"
    yield Case(
        "sizes", "JSON said to be longer than the body",
        request(infer, b"{}", "Inference-Header-Content-Length: 99999999"), (400,),
    )  # fmt: skip
    for what, tensor, tail in (
        ("a tensor of 2^60 images", {"shape": [2**60], "data": ["QQ=="]}, b""),
        ("a tensor with fewer bytes than it says", {"shape": [1], "parameters": {"binary_data_size": 10**12}}, b"AA"),
        ("an element of 4 GB in 8 bytes", {"shape": [1], "parameters": {"binary_data_size": 8}}, b"\xff" * 8),
    ):
        text = json.dumps({"inputs": [{"name": "image", "datatype": "BYTES", **tensor}]}).encode()
        yield Case("sizes", what, request(infer, text + tail, f"Inference-Header-Content-Length: {len(text)}"), (400,))
    form = b"".join(b'--x\r\nContent-Disposition: form-data; name="a%d"\r\n\r\n1\r\n' % k for k in range(20_000))
    multipart = 'Content-Type: multipart/form-data; boundary="x"'
    yield Case("sizes", "a form of 20,000 fields", request("/predict", form + b"--x--\r\n", multipart), (400, 413))
    yield Case("sizes", "a form that never ends", request("/predict", form[:-20], multipart), (400,))


def deep_json() -> Iterator[Case]:
    """JSON that a parser may fail at."""
    plain, target = "Content-Type: application/json", "/v2/models/keepad/infer"
    tensor = b'{"inputs": [{"name": "image", "datatype": "BYTES", "shape": [1], "data": %s}]}'
    for what, body in (
        ("100,000 levels of lists", b"[" * 100_000),
        ("100,000 levels of objects", b'{"a":' * 100_000),
        ("100,000 levels where an image should be", tensor % (b"[" * 100_000 + b"]" * 100_000)),
        ("a number of a million digits", b'{"inputs": ' + b"9" * 10**6 + b"}"),
        ("a number of a million digits for an image", tensor % (b"[" + b"9" * 10**6 + b"]")),
        ("a million parameters", b'{"parameters": {' + b",".join(b'"%d": 1' % k for k in range(10**6)) + b"}}"),
        ("bytes that are no text", b'{"inputs": "\xff\xfe"}'),
        ("an image that is no base64", tensor % b'["\\ud800"]'),
        ("NaN", tensor % b"[NaN]"),
    ):
        yield Case("JSON", what, request(target, body, plain), (400, 422))


def archives(image: bytes) -> Iterator[Case]:
    """Bodies and images that unpack to far more than they are."""
    gigabyte = zlib.compressobj(9, wbits=31)
    bomb = b"".join(gigabyte.compress(bytes(2**20)) for _ in range(1024)) + gigabyte.flush()
    yield Case("archives", "gzip of 1 GB", request("/predict", bomb, "Content-Encoding: gzip"), (413,))
    nested = gzip.compress(gzip.compress(bomb))
    yield Case("archives", "gzip in gzip in gzip", request("/predict", nested, "Content-Encoding: gzip"), (422,))
    yield Case("archives", "said to be gzip, is none", request("/predict", image, "Content-Encoding: gzip"), (400,))
    yield Case("archives", "an unknown packing", request("/predict", image, "Content-Encoding: br, gzip"), (415,))
    yield Case("archives", "a zip archive as an image", request("/predict", b"PK\x03\x04" + bytes(5000)), (422,))
    rows = zlib.compress(bytes(500_000_000), 1)
    yield Case("archives", "PNG of 8 x 8 with 500 MB of rows", request("/predict", png(8, 8, rows)), (200, 422))
    text = b"Comment\0\0" + zlib.compress(bytes(200_000_000), 9)
    small = zlib.compress(bytes(9 * 8), 9)
    yield Case(
        "archives", "PNG with a comment of 200 MB", request("/predict", png(8, 8, small, (b"zTXt", text))), (200, 422)
    )


def lying_images(image: bytes) -> Iterator[Case]:
    """Images whose header promises what their content does not hold."""
    empty = zlib.compress(b"")
    for width, height in ((30_000, 30_000), (2**31 - 1, 1), (1, 2**31 - 1), (7_000, 7_000), (0, 0)):
        yield Case(
            "images", f"PNG that says {width} x {height} and holds nothing",
            request("/predict", png(width, height, empty)), (422,),
        )  # fmt: skip
    gif = b"GIF89a" + b"\xff\xff\xff\xff" + b"\x80\0\0" + bytes(6) + b",\0\0\0\0\xff\xff\xff\xff\0\x02\0;"
    yield Case("images", "GIF of 65,535 x 65,535 in 40 bytes", request("/predict", gif), (422,))
    loop = b"II*\0\x08\0\0\0" + b"\x01\0\0\x01\x04\0\x01\0\0\0\0\0\x01\0" + b"\x08\0\0\0"
    yield Case("images", "TIFF whose next page is itself", request("/predict", loop), (422,))
    yield Case("images", "JPEG that is cut off", request("/predict", image[: len(image) // 2]), (422,))
    svg = b'<?xml version="1.0"?><!DOCTYPE s [<!ENTITY a SYSTEM "file:///etc/passwd">]><svg>&a;</svg>'
    yield Case("images", "SVG that reads a file", request("/predict", svg), (422,))


def paths(image: bytes) -> Iterator[Case]:
    """Names that are paths."""
    for target, method in (
        ("/page/../../../../etc/passwd", "GET"),
        ("/page/%2e%2e/%2e%2e/%2e%2e/etc/passwd", "GET"),
        ("/page/..%5c..%5cwindows%5cwin.ini", "GET"),
        ("//etc/passwd", "GET"),
        ("/profiles/..%2f..%2fetc%2fpasswd", "GET"),
        ("/profiles/..%2f..%2ftmp%2fx", "DELETE"),
        ("/v2/models/..%2f..%2fetc", "GET"),
    ):
        yield Case("paths", f"{method} {target}", request(target, method=method), (400, 404, 405, 422))
    for name in ("../../etc/passwd", "%2fetc%2fpasswd", "a%00b", "x" * 5000):
        shown = name if len(name) < 100 else "a name of 5,000 letters"
        yield Case("paths", f"profile={shown}", request(f"/predict?profile={name}", image), (400, 404, 422))
        if len(name) < 100:
            target = f"/profiles/{name.replace('/', '%2f')}"
            yield Case("paths", f"PUT {target}", request(target, image, method="PUT"), (400, 404, 405, 422))


def answer_of(port: int, content: list[bytes]) -> tuple[int, bytes]:
    """Status and body of the answer to a request; status 0 where the connection ended without one."""
    with socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
        try:
            for part in content:
                connection.sendall(part)
        except OSError:
            pass  # the service has answered, and hears no more of it
        received = bytearray()
        try:
            while part := connection.recv(2**16):
                received += part
        except OSError:
            pass
    head, _, body = bytes(received).partition(b"\r\n\r\n")
    return (int(head.split()[1]) if head else 0), body


def sentence_in(body: bytes) -> str | None:
    """The sentence of a refusal; None if there is none."""
    try:
        error = json.loads(body).get("error")
    except (ValueError, AttributeError):
        error = body.decode("latin-1")  # what the HTTP parser itself refuses
    return error if isinstance(error, str) and error and "\n" not in error.strip() and len(error) < 500 else None


def measured(server: Server, case: Case) -> dict[str, Any]:
    """What becomes of a request, and of the service."""
    server.forget_peak()
    before, started = server.megabytes(), time.monotonic()
    status, body = answer_of(server.port, case.content)
    seconds, grown = time.monotonic() - started, server.megabytes("VmHWM") - before
    sentence = sentence_in(body) if status >= 400 else None
    ready, _ = answer_of(server.port, request("/v2/health/ready", method="GET"))
    leaks = b"root:" in body
    good = status in case.statuses and ready == 200 and not leaks and (sentence is not None or status in (0, 200))
    found = "the connection was closed" if status == 0 else "scored" if status == 200 else f"{status}, in a sentence"
    if not good:
        found = f"status {status}, ready {ready}, {body[:100]!r}"
    return {
        "kind": case.kind, "what": case.what, "status": status, "sentence": sentence, "found": found, "good": good,
        "seconds": seconds, "megabytes": max(0.0, grown),
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--model", help="checkpoint or exported folder; the bundled default if left out")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        image = write_demo_images(folder)[0].read_bytes()
    server = Server(args.model, "prune50", 8, "--max-seconds", str(SECONDS), "--max-bytes", str(_MEGABYTES * 10**6))
    results = []
    try:
        answer_of(server.port, request("/predict", image))  # what the first image costs is not the fault of the next
        for cases in (lying_sizes(image), deep_json(), archives(image), lying_images(image), paths(image)):
            for case in cases:
                results.append(measured(server, case))
                if not results[-1]["good"]:
                    print(results[-1])
    finally:
        code = server.close()
    content = {"command": command_line(["python", *sys.argv]), "exit_code": code, "requests": results}
    args.out.parent.mkdir(parents=True, exist_ok=True)
    replace_text(args.out, json.dumps(content, indent=1) + "\n")
    write_page(args.out.parent)


if __name__ == "__main__":
    main()
