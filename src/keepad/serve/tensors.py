"""Tensors of the Open Inference Protocol: JSON, and the binary extension that Triton's clients use."""

from __future__ import annotations

import base64
import binascii
import json
import math
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from keepad.arrays import Array
from keepad.serve.errors import RefusedError

INPUT = "image"
_TYPES: dict[str, str] = {"FP64": "<f8", "FP32": "<f4", "BOOL": "?", "INT64": "<i8"}
_SIZE = struct.Struct("<I")
_LONGEST_ID = 200


@dataclass(frozen=True)
class Output:
    """An output that a request asks for.

    Attributes:
        name: Its name.
        binary: Whether its data come behind the JSON.
    """

    name: str
    binary: bool


@dataclass(frozen=True)
class InferRequest:
    """A request to infer.

    Attributes:
        images: Contents of the image files.
        outputs: What is asked for; empty for the usual.
        binary: Whether outputs that are not named come behind the JSON.
        id: Given back in the answer.
        parameters: point, threshold and whatever else the client sent.
    """

    images: list[bytes]
    outputs: tuple[Output, ...] = ()
    binary: bool = False
    id: str | None = None
    parameters: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Tensor:
    """An output: name, datatype, shape, and its values as an array or as a list of bytes."""

    name: str
    datatype: str
    values: Array | Sequence[bytes]

    @property
    def shape(self) -> list[int]:
        return list(self.values.shape) if isinstance(self.values, np.ndarray) else [len(self.values)]

    def packed(self) -> bytes:
        """The data as they come behind the JSON."""
        if isinstance(self.values, np.ndarray):
            return np.ascontiguousarray(self.values, _TYPES[self.datatype]).tobytes()
        return b"".join(_SIZE.pack(len(value)) + value for value in self.values)

    def listed(self) -> list[Any]:
        """The data as they stand in the JSON."""
        if isinstance(self.values, np.ndarray):
            return list(self.values.reshape(-1).tolist())
        return [value.decode() for value in self.values]


def parse_request(body: bytes, header_length: str | None, limit: int) -> InferRequest:
    """The request in a body.

    Args:
        body: The whole body.
        header_length: Length of its JSON where binary data follow, as in the header of the request, or None.
        limit: Images at most.

    Raises:
        RefusedError: 400 with what is wrong, 413 for too many images.
    """
    if header_length is None:
        length = len(body)
    elif header_length.isascii() and header_length.isdigit() and len(header_length) < 12:
        length = int(header_length)
    else:
        raise _wrong("Inference-Header-Content-Length is no number")
    if length > len(body):
        raise _wrong(f"Inference-Header-Content-Length is {length}, but the body has {len(body)} bytes")
    request = _object(_parse_json(body[:length]), "the request")
    parameters = _object(request.get("parameters", {}), "parameters")
    tensor = _input_of(request)
    images = _images_of(tensor, body[length:], limit)
    id = request.get("id")
    if id is not None and (not isinstance(id, str) or len(id) > _LONGEST_ID):
        raise _wrong(f"id must be a string of at most {_LONGEST_ID} characters")
    return InferRequest(images, _outputs_of(request), _flag(parameters, "binary_data_output"), id, parameters)


def build_answer(head: Mapping[str, Any], tensors: Sequence[tuple[Tensor, bool]]) -> tuple[bytes, int | None]:
    """The body of an answer, and the length of its JSON where binary data follow, else None.

    Args:
        head: model_name and the like.
        tensors: The outputs, and whether each comes behind the JSON.
    """
    listed, packed = [], []
    for tensor, binary in tensors:
        output: dict[str, Any] = {"name": tensor.name, "datatype": tensor.datatype, "shape": tensor.shape}
        if binary:
            packed.append(tensor.packed())
            output["parameters"] = {"binary_data_size": len(packed[-1])}
        else:
            output["data"] = tensor.listed()
        listed.append(output)
    text = json.dumps({**head, "outputs": listed}).encode()
    return b"".join([text, *packed]), len(text) if packed else None


def number_in(parameters: Mapping[str, Any], key: str, convert: Callable[[Any], float]) -> float | None:
    """A number among the parameters, which some clients send as text; None where there is none."""
    value = parameters.get(key)
    if value is None:
        return None
    try:
        if isinstance(value, bool) or not math.isfinite(number := convert(value)):
            raise ValueError
    except (TypeError, ValueError, OverflowError):
        raise _wrong(f"the parameter {key} must be a number") from None
    return number


def _parse_json(text: bytes) -> object:
    try:
        return json.loads(text)
    except RecursionError:
        raise _wrong("the JSON is nested too deeply") from None
    except ValueError:  # also for text that is not UTF-8 and for numbers of thousands of digits
        raise _wrong("the request is no JSON") from None


def _object(value: object, what: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise _wrong(f"{what} must be a JSON object")
    return value


def _flag(parameters: Mapping[str, Any], key: str) -> bool:
    value = parameters.get(key, False)
    if not isinstance(value, bool):
        raise _wrong(f"{key} must be true or false")
    return value


def _input_of(request: dict[str, Any]) -> dict[str, Any]:
    inputs = request.get("inputs")
    if not isinstance(inputs, list) or len(inputs) != 1:
        raise _wrong(f"inputs must be a list of one tensor, called {INPUT}")
    tensor = _object(inputs[0], "an input")
    if tensor.get("name") != INPUT:
        raise _wrong(f"the input must be called {INPUT}")
    if tensor.get("datatype") != "BYTES":
        raise _wrong(f"the datatype of {INPUT} must be BYTES: contents of image files, base64 in JSON")
    return tensor


def _images_of(tensor: dict[str, Any], binary: bytes, limit: int) -> list[bytes]:
    count = _count(tensor.get("shape"))
    if count > limit:
        raise RefusedError(
            413, f"a request may have {limit} images at most, not {count}; send the others in another one."
        )
    parameters = _object(tensor.get("parameters", {}), "parameters of an input")
    size = parameters.get("binary_data_size")
    if size is None:
        images = [_from_base64(text) for text in _flat(tensor.get("data"), limit)]
    else:
        if isinstance(size, bool) or not isinstance(size, int) or size != len(binary):
            raise _wrong(f"binary_data_size is {size!r:.30}, but {len(binary)} bytes follow the JSON")
        images = _split(binary)
    if size is None and binary:
        raise _wrong(f"{len(binary)} bytes follow the JSON, but no input has a binary_data_size")
    if len(images) != count:
        raise _wrong(f"the shape says {count} images, but there are {len(images)}")
    return images


def _count(shape: object) -> int:
    """Number of images in a shape such as [4] or [4, 1]."""
    if not isinstance(shape, list) or not 1 <= len(shape) <= 4:
        raise _wrong("the shape must be a list of 1 to 4 numbers, such as [1]")
    if any(isinstance(side, bool) or not isinstance(side, int) or not 1 <= side < 2**31 for side in shape):
        raise _wrong("the shape must hold whole numbers from 1 on")
    return math.prod(shape)


def _flat(data: object, limit: int) -> list[str]:
    """The strings of a list, or of a list of lists as clients send shapes like [4, 1]."""
    if not isinstance(data, list):
        raise _wrong("the input has neither data nor a binary_data_size")
    texts: list[str] = []
    for item in data:
        parts = item if isinstance(item, list) else [item]
        if any(not isinstance(part, str) for part in parts):
            raise _wrong("data must hold strings: contents of image files in base64")
        texts += parts
        if len(texts) > limit:
            break
    return texts


def _from_base64(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise _wrong("data must be base64, as base64.b64encode makes it") from None


def _split(binary: bytes) -> list[bytes]:
    """The elements of a binary BYTES tensor: each behind its length, four bytes, little-endian."""
    images, start = [], 0
    while start < len(binary):
        if start + _SIZE.size > len(binary):
            raise _wrong("the binary data end within a length")
        (length,) = _SIZE.unpack_from(binary, start)
        start += _SIZE.size
        if start + length > len(binary):
            raise _wrong("the binary data end within an image")
        images.append(binary[start : start + length])
        start += length
    return images


def _outputs_of(request: dict[str, Any]) -> tuple[Output, ...]:
    outputs = request.get("outputs", [])
    if not isinstance(outputs, list) or len(outputs) > 32:
        raise _wrong("outputs must be a list of at most 32 outputs")
    wanted = []
    for item in outputs:
        output = _object(item, "an output")
        if not isinstance(output.get("name"), str):
            raise _wrong("an output needs a name")
        parameters = _object(output.get("parameters", {}), "parameters of an output")
        wanted.append(Output(output["name"], _flag(parameters, "binary_data")))
    return tuple(wanted)


def _wrong(what: str) -> RefusedError:
    return RefusedError(400, f"{what}.")
