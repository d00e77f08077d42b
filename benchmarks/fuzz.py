"""Broken images and hostile files: `python benchmarks/fuzz.py --out docs/reliability/fuzz.json`.

A thousand images of every format and mode, each damaged in one of several ways, go through `keepad predict` in a
process of its own: it must end with 1, have a line for every image, and one sentence for each that it cannot use. The
same images go to `keepad serve`, which must score and refuse the same ones, with the same scores. Then
profiles, checkpoints and descriptions of exported folders that lie are opened: each must be refused in one sentence,
quickly and without much memory. The table is in docs/reliability.md.
"""

from __future__ import annotations

import argparse
import json
import pickle
import random
import resource
import shutil
import struct
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from safetensors import safe_open
from safetensors.numpy import save

from hostile_requests import answer_of, request, sentence_in
from keepad.checkpoint import bundled_checkpoints
from keepad.console import command_line
from keepad.engines.network import open_network
from keepad.errors import KeepADError
from keepad.files import replace_text
from keepad.loading import load_network
from keepad.references.profile import read_profile
from reliability_page import write_page
from serve import Server

Mutation = Callable[[bytes, random.Random], bytes]
_SAVED: dict[str, list[tuple[str, dict[str, Any]]]] = {  # format: modes with options
    "png": [("L", {}), ("RGB", {}), ("RGBA", {}), ("P", {}), ("1", {}), ("I;16", {}), ("LA", {})],
    "jpg": [("L", {}), ("RGB", {}), ("CMYK", {}), ("RGB", {"progressive": True})],
    "bmp": [("L", {}), ("RGB", {}), ("P", {})],
    "tiff": [("RGB", {"compression": "tiff_lzw"}), ("L", {"compression": "tiff_adobe_deflate"}), ("I;16", {})],
    "webp": [("RGB", {"lossless": True}), ("RGBA", {"quality": 80})],
    "ppm": [("RGB", {})],
    "pgm": [("L", {})],
    "gif": [("P", {}), ("L", {})],
}


def whole_images() -> list[tuple[str, bytes]]:
    """Suffix and content of small images, one for each format and mode."""
    pixels = np.random.default_rng(0).integers(0, 255, (48, 64, 4), dtype=np.uint8)
    images = []
    for suffix, variants in _SAVED.items():
        for mode, options in variants:
            if mode == "I;16":
                image = Image.fromarray(pixels[..., 0].astype(np.uint16) * 257)
            else:
                image = Image.fromarray(pixels, "RGBA").convert("RGB").convert(mode)
            stream = BytesIO()
            image.save(stream, {"jpg": "JPEG", "pgm": "PPM"}.get(suffix, suffix.upper()), **options)
            images.append((suffix, stream.getvalue()))
    return images


def _flipped(content: bytes, generator: random.Random) -> bytes:
    changed = bytearray(content)
    for _ in range(generator.choice((1, 4, 30))):
        changed[generator.randrange(len(changed))] ^= 1 << generator.randrange(8)
    return bytes(changed)


def _cut(content: bytes, generator: random.Random) -> bytes:
    return content[: generator.randrange(len(content))]


def _repeated(content: bytes, generator: random.Random) -> bytes:
    start, end = sorted(generator.sample(range(len(content)), 2))
    return content[:end] + content[start:end] * generator.choice((1, 5)) + content[end:]


def _lying_header(content: bytes, generator: random.Random) -> bytes:
    """Extreme numbers where sizes and offsets are."""
    changed, start = bytearray(content), generator.randrange(min(64, len(content) - 4))
    changed[start : start + 4] = generator.choice(
        (b"\xff\xff\xff\xff", b"\x7f\xff\xff\xff", b"\0\0\0\0", b"\x00\x01\x00\x00")
    )
    return bytes(changed)


def _noise(content: bytes, generator: random.Random) -> bytes:
    start = generator.randrange(len(content))
    return content[:start] + generator.randbytes(generator.choice((1, 64, 5000))) + content[start:]


def _mixed(content: bytes, generator: random.Random) -> bytes:
    """The beginning of one image, the end of another."""
    other = generator.choice(whole_images())[1]
    return content[: generator.randrange(len(content))] + other[generator.randrange(len(other)) :]


MUTATIONS: dict[str, Mutation] = {
    "bits flipped": _flipped,
    "cut off": _cut,
    "parts repeated": _repeated,
    "lying header": _lying_header,
    "noise inserted": _noise,
    "two formats mixed": _mixed,
}


def fuzz_images(folder: Path, count: int, model: str | None) -> dict[str, Any]:
    """What `keepad predict` makes of damaged images."""
    generator, whole, kinds = random.Random(0), whole_images(), dict[str, str]()
    images = folder / "images"
    images.mkdir()
    for number in range(count):
        suffix, content = whole[number % len(whole)]
        kind = list(MUTATIONS)[number % len(MUTATIONS)]
        path = images / f"{number:04d}.{suffix}"
        path.write_bytes(MUTATIONS[kind](content, generator))
        kinds[str(path)] = kind
    command = [sys.executable, "-m", "keepad", "predict", str(images), "--out", str(folder / "out"), "--no-overlays"]
    command += ["--point", "prune70", *(["--model", model] if model else [])]
    started = time.monotonic()
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    rows = [json.loads(line) for line in (folder / "out" / "predictions.jsonl").read_text().splitlines()]
    sentences = [row["error"] for row in rows if row["error"] is not None]
    return {
        "images": count,
        "formats": len(_SAVED),
        "variants": len(whole),
        "lines": len(rows),
        "scored": len(rows) - len(sentences),
        "refused": len(sentences),
        "not_a_sentence": [sentence for sentence in sentences if not is_sentence(sentence)],
        "exit_code": done.returncode,
        "traceback": "Traceback" in done.stderr + done.stdout,
        "refused_by_damage": dict(Counter(kinds[row["path"]] for row in rows if row["error"] is not None)),
        "seconds": time.monotonic() - started,
    }


def fuzz_service(folder: Path, model: str | None) -> dict[str, Any]:
    """What `keepad serve` makes of the images that `fuzz_images` left in a folder, beside what predict made of them."""
    rows = [json.loads(line) for line in (folder / "out" / "predictions.jsonl").read_text().splitlines()]
    server, found, others = Server(model, "prune70", 8), Counter[str](), list[str]()
    try:
        for row in rows:
            content = request("/predict?regions=false", Path(row["path"]).read_bytes())
            status, body = answer_of(server.port, content)
            if row["error"] is None:
                same = status == 200 and abs(json.loads(body)["results"][0]["pred_score"] - row["pred_score"]) <= 1e-4
            else:  # 400 for an empty file, which is no image at all
                same = status in (400, 422) and is_sentence(sentence_in(body) or "")
            found["scored" if status == 200 else "refused"] += 1
            if not same:
                others.append(f"{Path(row['path']).name}: {status} {body[:200]!r} where predict: {row['error']}")
    finally:
        code = server.close()
    return {"images": len(rows), **found, "otherwise_than_predict": others, "exit_code": code}


def is_sentence(text: str) -> bool:
    """Whether a message is one line that ends like a sentence."""
    return "\n" not in text and text.endswith(".") and len(text) < 500


def safetensors_bytes(header: bytes, data: bytes = b"", length: int | None = None) -> bytes:
    """A safetensors file with any header, and any number for its length."""
    return struct.pack("<Q", len(header) if length is None else length) + header + data


def lying_tensors(key: str, metadata: str) -> Iterator[tuple[str, bytes]]:
    """Safetensors files that lie in their header, or whose description under `key` does."""
    text = json.dumps(metadata)
    yield "empty file", b""
    yield "header longer than the file", safetensors_bytes(b"{}", length=2**62)
    yield "header of 100 MB", safetensors_bytes(b'{"a":"' + b"x" * 100_000_000 + b'"}')
    yield "header 100,000 levels deep", safetensors_bytes(b"[" * 100_000)
    lie = '{"__metadata__":{"%s":%s},"t":{"dtype":"F32","shape":%s,"data_offsets":%s}}'
    for what, shape, offsets in (
        ("tensor of 2^60 numbers", "[1152921504606846976]", "[0,4]"),
        ("tensor beyond the file", "[1000000]", "[0,4000000]"),
        ("tensor before the file", "[1]", "[-4,0]"),
        ("shape that overflows", "[4294967296,4294967296,4294967296]", "[0,4]"),
    ):
        yield what, safetensors_bytes((lie % (key, text, shape, offsets)).encode(), b"\0" * 4)
    array = {"t": np.zeros(1, np.float32)}
    yield "description 100,000 levels deep", save(array, metadata={key: "[" * 100_000})
    yield "description that is no JSON", save(array, metadata={key: "{"})
    yield "description of another type", save(array, metadata={key: "[1, 2]"})
    yield "description without its fields", save(array, metadata={key: '{"format": 3}'})
    yield "a number of 10,000 digits", save(array, metadata={key: '{"format": ' + "9" * 10_000 + "}"})
    yield "no description", save(array)
    yield "a pickle that runs code", pickle.dumps(_Trap())
    yield "a zip archive", b"PK\x03\x04" + bytes(100)


class _Trap:
    """Unpickling this would leave a file behind."""

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[str, ...]]:
        return (Path.touch, (Path(tempfile.gettempdir()) / "keepad-trap",))  # type: ignore[return-value]


def hostile_checkpoints() -> Iterator[tuple[str, bytes]]:
    """Checkpoints that lie: any safetensors file, and a real one with a field or tensor changed."""
    yield from lying_tensors("keepad", "{}")
    original = bundled_checkpoints()["default"]
    with safe_open(str(original), "np") as opened:
        fields = json.loads(opened.metadata()["keepad"])
        tensors = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118
    for what, changed in (
        ("input of a billion pixels a side", {"image_size": [10**9, 10**9]}),
        ("input size below a patch", {"image_size": [3, 3]}),
        ("input size of text", {"image_size": ["a", "b"]}),
        ("a backbone that is a path", {"backbone": "../../etc/passwd"}),
        ("layers beyond the backbone", {"placement": {**fields["placement"], "head_layers": [1, 10**6]}}),
        ("a mean of text", {"mean": ["a", "b", "c"]}),
    ):
        yield what, save(tensors, metadata={"keepad": json.dumps({**fields, **changed})})
    smaller = {name: values[..., :1] if values.ndim else values for name, values in tensors.items()}
    yield "tensors of another shape", save(smaller, metadata={"keepad": json.dumps(fields)})
    yield "no tensors", save({"t": np.zeros(1, np.float32)}, metadata={"keepad": json.dumps(fields)})
    broken = {name: np.full_like(values, np.nan) for name, values in tensors.items()}
    yield "tensors of NaN", save(broken, metadata={"keepad": json.dumps(fields)})


def hostile_descriptions(folder: Path) -> Iterator[tuple[str, bytes]]:
    """Descriptions of an exported folder that lie; one field of a real one is changed."""
    fields = json.loads((folder / "engine.json").read_text(encoding="utf-8"))
    yield "100,000 levels deep", b"[" * 100_000
    yield "no JSON", b"{"
    yield "another type", b"[]"
    yield "no text", b"\xff\xfe\xfd"
    for what, changed in (
        ("a file outside the folder", {"files": {"../../../etc/passwd": "0" * 64}}),
        ("an absolute file", {"files": {"/etc/passwd": "0" * 64}}),
        ("a device in place of a file", {"files": {"/dev/zero": "0" * 64}}),
        ("no files", {"files": {}}),
        ("files of another type", {"files": [1]}),
        ("an engine that is a path", {"engine": "../engine"}),
        ("input of a billion pixels a side", {"image_size": [10**9, 10**9]}),
        ("patches of no size", {"patch": [0, 0]}),
        ("a field too many", {"command": "rm"}),
        ("another format", {"format": 10**9}),
    ):
        yield what, json.dumps({**fields, **changed}).encode()


def refusals(exported: Path | None) -> list[dict[str, Any]]:
    """How each hostile file is refused."""
    found = []
    load_network("m2i", say=print)  # what is imported at the first opening is no cost of a hostile file
    trap = Path(tempfile.gettempdir()) / "keepad-trap"
    trap.unlink(missing_ok=True)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for what, content in lying_tensors("keepad-profile", "{}"):
            (folder / "hostile.keepad").write_bytes(content)
            found.append({"file": "profile", "what": what, **_refusal(lambda: read_profile(folder / "hostile.keepad"))})
        path = folder / "hostile.safetensors"
        for what, content in hostile_checkpoints():
            path.write_bytes(content)
            found.append({"file": "checkpoint", "what": what, **_refusal(partial(load_network, path, say=print))})
        if exported is not None:
            copy = folder / "exported"
            shutil.copytree(exported, copy)
            for what, content in hostile_descriptions(exported):
                (copy / "engine.json").write_bytes(content)
                found.append({"file": "exported folder", "what": what, **_refusal(lambda: open_network(copy))})
    if trap.exists():
        found.append({"file": "any", "what": "a pickle was run", "sentence": None, "error": "code ran"})
    return found


def _refusal(read: Callable[[], object]) -> dict[str, Any]:
    before, started = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.monotonic()
    sentence = error = None
    try:
        read()
        error = "accepted"
    except KeepADError as refusal:
        sentence = str(refusal)
        error = None if is_sentence(sentence) else "no sentence"
    except BaseException as crash:
        error = f"{type(crash).__name__}: {str(crash)[:200]}"
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    return {"sentence": sentence, "error": error, "seconds": time.monotonic() - started, "megabytes": grown / 1024}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--model", help="exported folder; also the one whose description is made to lie")
    parser.add_argument("--only", choices=("images", "files"))
    args = parser.parse_args()
    content: dict[str, Any] = json.loads(args.out.read_text()) if args.out.exists() and args.only else {}
    content["command"] = command_line(["python", *sys.argv])
    if args.only != "files":
        with tempfile.TemporaryDirectory() as folder:
            content["images"] = fuzz_images(Path(folder), args.count, args.model)
            content["service"] = fuzz_service(Path(folder), args.model)
        print(json.dumps([content["images"], content["service"]], indent=1))
    if args.only != "images":
        content["files"] = refusals(None if args.model is None else Path(args.model))
        for case in content["files"]:
            if case["error"]:
                print(case)
    args.out.parent.mkdir(parents=True, exist_ok=True)
    for case in content.get("files", []):  # sentences name a folder of this machine
        if case["sentence"]:
            case["sentence"] = case["sentence"].replace(tempfile.gettempdir(), "").strip("/")
    replace_text(args.out, json.dumps(content, indent=1) + "\n")
    write_page(args.out.parent)


if __name__ == "__main__":
    main()
