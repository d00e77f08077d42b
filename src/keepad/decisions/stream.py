"""The images of a predictions.jsonl, as the drift monitor takes them."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from keepad.errors import KeepADError

_EXTRAS = {  # key of a line: name
    "keep_final": "keep",
    "evidence": "evidence",
    "brightness": "brightness",
    "sharpness": "sharpness",
    "p_value": "p-value",
}


@dataclass(frozen=True)
class StreamImage:
    """One line: file, score, and the other values that are known."""

    path: str
    score: float
    extras: dict[str, float]


def read_stream(path: Path) -> tuple[list[StreamImage], int]:
    """The images of a predictions.jsonl in their order, and the number of lines with an error, which are left out.

    Raises:
        KeepADError: The file cannot be read, or a line is no prediction.

    Example:
        ```python
        images, errors = read_stream(Path("results/predictions.jsonl"))
        ```
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise KeepADError(f"{path} cannot be read: {error.strerror}.") from error
    except UnicodeDecodeError:
        raise KeepADError(f"{path} is not a text file; give the predictions.jsonl of keepad predict.") from None
    images, errors = [], 0
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        image = _image_of(line, f"line {number} of {path}")
        if image is None:
            errors += 1
        else:
            images.append(image)
    return images, errors


def quantities_of(images: Sequence[StreamImage]) -> dict[str, list[float]]:
    """Values of images by quantity, scores among them, as `DriftWatch` takes them."""
    names = sorted({name for image in images for name in image.extras})
    others = {name: [image.extras[name] for image in images if name in image.extras] for name in names}
    return {"score": [image.score for image in images], **others}


def extras_of(line: Mapping[str, Any]) -> dict[str, float]:
    """The values beside the score in a line of predictions.jsonl, as far as they are known."""
    extras = {name: _number(line.get(key)) for key, name in _EXTRAS.items()}
    return {name: value for name, value in extras.items() if value is not None}


def _image_of(line: str, where: str) -> StreamImage | None:
    try:
        values = json.loads(line)
    except (ValueError, RecursionError):
        values = None
    if not isinstance(values, dict):
        raise KeepADError(f"{where} is not a JSON object; give the predictions.jsonl of keepad predict.")
    if values.get("error") is not None:
        return None
    score = _number(values.get("pred_score"))
    if score is None:
        raise KeepADError(f"{where} has no finite pred_score; remove the line or predict the image again.")
    return StreamImage(str(values.get("path")), score, extras_of(values))


def _number(value: object) -> float | None:
    if not isinstance(value, int | float) or isinstance(value, bool):
        return None
    try:
        return float(value) if math.isfinite(value) else None
    except OverflowError:  # an int above 1.8e308
        return None
