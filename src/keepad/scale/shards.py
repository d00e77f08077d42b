"""Shards: the rows of some images as one Parquet or JSONL file."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from io import BytesIO
from types import ModuleType
from typing import Any

import numpy as np
from PIL import Image

from keepad.arrays import Array
from keepad.detector import Detector
from keepad.errors import ImageError, KeepADError
from keepad.images import read_encoded
from keepad.prefetch import prefetch
from keepad.scale.storage import read_bytes, write_bytes

FORMATS = ("parquet", "jsonl")
COLUMNS = {
    "uri": "string",
    "score": "float64",
    "p_value": "float64",
    "verdict": "string",
    "keep": "float64",
    "ms": "float64",
    "model": "string",
    "error": "string",
}

Row = dict[str, Any]
Began = Callable[[int], None]


@dataclass(frozen=True)
class Shard:
    """Images whose rows share a file.

    Attributes:
        uris: The images.
        file: URI of the file.
        maps: URI of the folder for their maps, or None.
    """

    uris: Sequence[str]
    file: str
    maps: str | None = None


def score_shard(
    detector: Detector,
    shard: Shard,
    model: str,
    *,
    batch_size: int = 1,
    began: Began = lambda number: None,
    deadly: Sequence[int] = (),
) -> tuple[int, int]:
    """Score the images of a shard and write its file as a whole; returns the numbers of images and of errors.

    Args:
        detector: The detector.
        shard: The shard.
        model: Digest of the detector, for the rows.
        batch_size: Images per forward pass.
        began: Called with the number of the last image of every batch before it is computed.
        deadly: Numbers of images that are not to be touched, because workers died of them.
    """
    rows: list[Row | None] = [None] * len(shard.uris)
    batch: list[tuple[int, Image.Image]] = []

    def score() -> None:
        images = [image for _, image in batch]
        for (number, _), prediction in zip(batch, detector.predict(images, batch_size=batch_size), strict=True):
            rows[number] = _row(shard.uris[number], model, prediction.to_dict())
            if shard.maps is not None:
                write_bytes(f"{shard.maps}/{number:06d}.png", encoded_map(prediction.anomaly_map))
        batch.clear()

    for number, image in _images(shard.uris, batch_size, began, deadly):
        if isinstance(image, KeepADError):
            rows[number] = _row(shard.uris[number], model, {}, str(image))
            continue
        batch.append((number, image))
        if len(batch) == batch_size:
            score()
    if batch:
        score()
    done = [row for row in rows if row is not None]
    write_bytes(shard.file, _encoded(done, shard.file))
    return len(done), sum(row["error"] is not None for row in done)


def _images(
    uris: Sequence[str], batch_size: int, began: Began, deadly: Sequence[int]
) -> Iterator[tuple[int, Image.Image | KeepADError]]:
    """Decoded images with their numbers, prefetched; none is decoded before `began` was told."""

    def read(number: int) -> tuple[int, Image.Image | KeepADError]:
        if number in deadly:
            return number, ImageError(f"'{uris[number]}' ended every process that tried it; look at that file.")
        began(number)
        try:
            return number, read_encoded(read_bytes(uris[number]), f"'{uris[number]}'")
        except KeepADError as error:
            return number, error

    yield from prefetch(read, range(len(uris)), 2 * batch_size)


def _row(uri: str, model: str, values: dict[str, Any], error: str | None = None) -> Row:
    seconds = values.get("seconds")
    return {
        "uri": uri,
        "score": values.get("pred_score"),
        "p_value": values.get("p_value"),
        "verdict": values.get("verdict"),
        "keep": values.get("keep_final"),
        "ms": None if seconds is None else 1e3 * seconds,
        "model": model,
        "error": error,
    }


def encoded_map(anomaly_map: Array) -> bytes:
    """A map as a 16-bit grey PNG at the network's input size; 65535 is 1."""
    stream = BytesIO()
    Image.fromarray(np.rint(np.clip(anomaly_map, 0, 1) * 65535).astype(np.uint16)).save(stream, "PNG")
    return stream.getvalue()


def _encoded(rows: Sequence[Row], file: str) -> bytes:
    if file.endswith(".jsonl"):
        return "".join(json.dumps(row) + "\n" for row in rows).encode()
    parquet = parquet_module()
    import pyarrow

    types = {"string": pyarrow.string(), "float64": pyarrow.float64()}
    schema = pyarrow.schema([(name, types[kind]) for name, kind in COLUMNS.items()])
    stream = BytesIO()
    # A name that is no Unicode would be refused; JSON's escapes keep it readable.
    texts = [{name: _printable(value) for name, value in row.items()} for row in rows]
    parquet.write_table(pyarrow.Table.from_pylist(texts, schema=schema), stream, compression="zstd")
    return stream.getvalue()


def _printable(value: Any) -> Any:
    return value.encode("utf-8", "backslashreplace").decode() if isinstance(value, str) else value


def parquet_module() -> ModuleType:
    """pyarrow.parquet, or a sentence that says how to install it."""
    try:
        from pyarrow import parquet
    except ImportError as error:
        raise KeepADError("Parquet needs pyarrow; pip install 'keepad[scale]' brings it, or use jsonl.") from error
    module: ModuleType = parquet
    return module
