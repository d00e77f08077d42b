"""Shapes of answers and bodies, for the OpenAPI document; nothing is validated by them twice."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, Field


class ErrorAnswer(BaseModel):
    """Why there is no result."""

    error: str = Field(description="One sentence: what was wrong, and what to do.")


class RegionAnswer(BaseModel):
    """Anomalous pixels that touch each other, in the pixels of the sent image."""

    box: list[int] = Field(description="x0, y0, x1, y1; x1 and y1 are the first column and row behind it.")
    area: int
    peak: float
    mean: float
    polygon: list[list[int]] | None
    holes: list[list[list[int]]] | None


class ImageAnswer(BaseModel):
    """The result of one image; only `name` and `error` where it could not be used."""

    name: str
    error: str | None = None
    profile: str | None = None
    point: str | None = None
    pred_score: float | None = None
    pred_label: bool | None = None
    p_value: float | None = None
    verdict: str | None = Field(None, description="ok, review or defect, where the profile is calibrated.")
    threshold: float | None = Field(None, description="Lowest score of a defect.")
    review_threshold: float | None = None
    pixel_threshold: float | None = None
    keep_pixels: float | None = None
    keep_shallow: float | None = None
    keep_final: float | None = None
    evidence: float | None = None
    brightness: float | None = None
    sharpness: float | None = None
    seconds: float | None = None
    image_size: list[int] | None = Field(None, description="Height and width.")
    regions_total: int | None = None
    regions: list[RegionAnswer] | None = None
    pictures: dict[str, str] | None = Field(None, description="PNG files in base64, as `include` names them.")
    nearest_reference: dict[str, Any] | None = None


class PredictAnswer(BaseModel):
    """The results of all images, in their order."""

    model: str
    errors: int = Field(description="Number of images that could not be used.")
    results: list[ImageAnswer]


class ProfileAnswer(BaseModel):
    """What there is to know about a profile."""

    name: str
    point: str
    images: list[str]
    tokens: int
    image_threshold: float | None
    review_threshold: float | None
    pixel_threshold: float | None
    history: list[dict[str, Any]]
    saved: bool
    undo: bool
    calibration: dict[str, Any] | None


class ProfilesAnswer(BaseModel):
    """All profiles, and which one is used where a request names none."""

    default: str | None
    profiles: list[ProfileAnswer]


class JobAnswer(BaseModel):
    """Where a job stands."""

    id: str
    kind: str
    profile: str
    state: str = Field(description="waiting, running, done, failed or stopped.")
    done: int
    total: int
    lines: list[str]
    error: str | None
    result: dict[str, Any] | None


class BasketAnswer(BaseModel):
    """A basket of images, and which of the sent ones could not be used."""

    basket: str
    images: int
    errors: list[ImageAnswer]


class TensorMetadata(BaseModel):
    name: str
    datatype: str
    shape: list[int]


class ModelMetadata(BaseModel):
    name: str
    versions: list[str]
    platform: str
    inputs: list[TensorMetadata]
    outputs: list[TensorMetadata]


class ServerMetadata(BaseModel):
    name: str
    version: str
    extensions: list[str]


ERRORS: dict[int | str, dict[str, Any]] = {
    status: {"model": ErrorAnswer, "description": description}
    for status, description in (
        (400, "The request is wrong."),
        (401, "The token is missing or wrong."),
        (403, "Another web page sent the request."),
        (404, "There is no such thing."),
        (408, "The request was not sent in time."),
        (409, "The names or numbers do not allow this now."),
        (413, "The request is too large."),
        (415, "The packing is unknown."),
        (421, "The request names another host."),
        (422, "An image or a profile cannot be used."),
        (429, "The queue is full; the header Retry-After says when to try again."),
        (503, "The service is stopping, or could not answer in time."),
        (507, "The service cannot write."),
    )
}

_BINARY = {"schema": {"type": "string", "format": "binary"}}
IMAGES_BODY: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {
            "multipart/form-data": {
                "schema": {
                    "type": "object",
                    "properties": {"images": {"type": "array", "items": {"type": "string", "format": "binary"}}},
                    "required": ["images"],
                }
            },
            "application/octet-stream": _BINARY,
            "image/*": _BINARY,
        },
    }
}
FILE_BODY: dict[str, Any] = {"requestBody": {"required": True, "content": {"application/octet-stream": _BINARY}}}
_TENSOR = {
    "type": "object",
    "required": ["name", "shape", "datatype"],
    "properties": {
        "name": {"const": "image"},
        "shape": {"type": "array", "items": {"type": "integer", "minimum": 1}},
        "datatype": {"const": "BYTES"},
        "data": {"type": "array", "items": {"type": "string", "format": "byte"}},
        "parameters": {"type": "object"},
    },
}
INFER_BODY: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {
            "application/json": {
                "schema": {
                    "type": "object",
                    "required": ["inputs"],
                    "properties": {
                        "id": {"type": "string"},
                        "parameters": {
                            "type": "object",
                            "properties": {"point": {"type": "string"}, "threshold": {"type": "number"}},
                        },
                        "inputs": {"type": "array", "minItems": 1, "maxItems": 1, "items": _TENSOR},
                        "outputs": {"type": "array", "items": {"type": "object", "required": ["name"]}},
                    },
                }
            },
            "application/octet-stream": _BINARY,
        },
    }
}
