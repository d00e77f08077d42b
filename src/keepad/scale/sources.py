"""Sources: the images of a folder, a pattern, an index file or a bucket, one by one."""

from __future__ import annotations

import csv
import io
import json
import posixpath
from collections.abc import Iterator, Mapping
from typing import Any

from keepad.errors import KeepADError
from keepad.images import is_image_name
from keepad.scale.storage import exists, images_below, is_folder, is_remote, local_path, matching, read_bytes

_COLUMNS = ("uri", "path", "image", "image_path", "file_name")
_INDEXES = (".txt", ".csv", ".jsonl", ".parquet")


def images_of(source: str) -> Iterator[str]:
    """The images that a source names, in an order that does not change.

    Args:
        source: A folder (with all folders below), an image, a pattern such as `photos/*.png`, or an index: .txt with a
            name per line, or .csv, .jsonl, .parquet with a column uri, path, image, image_path or file_name; local or
            with a protocol of fsspec. Relative names of an index are seen from its folder.

    Raises:
        KeepADError: There is no such source, or it holds no image.
    """
    found = False
    for uri in _listed(source):
        found = True
        yield uri
    if not found:
        raise KeepADError(f"'{source}' holds no image; name a folder, pattern or index of images.")


def _listed(source: str) -> Iterator[str]:
    if not exists(source) and set(source) & set("*?["):
        return matching(source)
    if is_folder(source):
        return images_below(source)
    if not exists(source):
        raise KeepADError(f"There is no '{source}'; check the path.")
    if is_image_name(posixpath.basename(source)):
        return iter([source])
    if posixpath.splitext(source)[1].lower() not in _INDEXES:
        raise KeepADError(f"'{source}' is neither an image nor an index; an index ends with {', '.join(_INDEXES)}.")
    return _indexed(source)


def _indexed(source: str) -> Iterator[str]:
    kind = posixpath.splitext(source)[1].lower()
    names = _parquet(source) if kind == ".parquet" else _lines(source, kind)
    folder = source.rpartition("/")[0] if is_remote(source) else str(local_path(source).parent)
    for number, name in enumerate(names, 1):
        if not isinstance(name, str) or not name.strip():
            raise KeepADError(f"entry {number} of '{source}' names no image; an index has one file name in each.")
        name = name.strip()
        yield name if is_remote(name) or name.startswith("/") else posixpath.join(folder, name)


def _lines(source: str, kind: str) -> Iterator[Any]:
    try:
        text = read_bytes(source).decode("utf-8-sig")
        if kind == ".txt":
            return iter([line for line in text.splitlines() if line.strip()])
        rows = (
            csv.DictReader(io.StringIO(text))
            if kind == ".csv"
            else map(json.loads, filter(str.strip, text.splitlines()))
        )
        return iter([_named(row, source) for row in rows])
    except (ValueError, RecursionError, csv.Error) as error:
        raise KeepADError(f"the index '{source}' is damaged: {error}.") from error


def _parquet(source: str) -> Iterator[Any]:
    from keepad.scale.shards import parquet_module

    parquet = parquet_module()
    try:
        file = parquet.ParquetFile(io.BytesIO(read_bytes(source)))
        column = next((name for name in _COLUMNS if name in file.schema_arrow.names), None)
        if column is None:
            raise _no_column(source)
        for batch in file.iter_batches(columns=[column]):
            yield from batch.column(0).to_pylist()
    except (OSError, ValueError) as error:  # pyarrow's exceptions are these two
        raise KeepADError(f"the index '{source}' is damaged: {error}.") from error


def _named(row: Any, source: str) -> Any:
    if isinstance(row, str):
        return row
    if isinstance(row, Mapping):
        for column in _COLUMNS:
            if column in row:
                return row[column]
    raise _no_column(source)


def _no_column(source: str) -> KeepADError:
    return KeepADError(f"the index '{source}' has no column {', '.join(_COLUMNS[:-1])} or {_COLUMNS[-1]}.")
