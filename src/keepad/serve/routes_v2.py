"""Open Inference Protocol, version 2: what clients of KServe, Triton and OpenVINO Model Server speak."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from fastapi import APIRouter, Request
from starlette.responses import Response

from keepad.prediction import Prediction
from keepad.serve.answers import Wanted
from keepad.serve.errors import RefusedError
from keepad.serve.profiles import ZERO_SHOT
from keepad.serve.schemas import ERRORS, INFER_BODY, ModelMetadata, ServerMetadata
from keepad.serve.service import Asked, Result, Service
from keepad.serve.tensors import INPUT, InferRequest, Tensor, build_answer, number_in, parse_request
from keepad.serve.uploads import Upload
from keepad.version import __version__

VERSION = "1"
LENGTH = "Inference-Header-Content-Length"
_DATATYPES = {  # of the outputs, in the order in which they are given
    "pred_score": "FP64",
    "pred_label": "BOOL",
    "p_value": "FP64",
    "verdict": "BYTES",
    "keep": "FP64",
    "prediction": "BYTES",
    "anomaly_map": "FP32",
}


def routes(service: Service) -> APIRouter:
    """The routes below /v2."""
    responses: dict[int | str, dict[str, Any]] = {status: ERRORS[status] for status in (400, 401, 403, 421)}
    router = APIRouter(prefix="/v2", tags=["Open Inference Protocol"], responses=responses)

    @router.get("", response_model=ServerMetadata)
    def server() -> dict[str, Any]:
        """Name, version and extensions of the server."""
        return {"name": "keepad", "version": __version__, "extensions": ["binary_tensor_data", "model_repository"]}

    @router.post("/repository/index")
    def index() -> list[dict[str, str]]:
        """All models: the zero-shot one and the profiles."""
        names = [ZERO_SHOT, *service.profiles.names()]
        return [{"name": name, "version": VERSION, "state": "READY", "reason": ""} for name in names]

    def metadata(name: str) -> dict[str, Any]:
        chosen(name)
        detector = service.detector if name == ZERO_SHOT else service.profiles.get(name).detector
        size = [-1, -1] if detector.framing.fit == "pad" else detector.image_size
        shapes = {"anomaly_map": [-1, *size]}
        outputs = [{"name": key, "datatype": kind, "shape": shapes.get(key, [-1])} for key, kind in _DATATYPES.items()]
        inputs = [{"name": INPUT, "datatype": "BYTES", "shape": [-1]}]
        return {"name": name, "versions": [VERSION], "platform": "keepad", "inputs": inputs, "outputs": outputs}

    def chosen(name: str, version: str = VERSION) -> Asked:
        if version != VERSION:
            raise RefusedError(404, f"the model has version {VERSION} only.")
        if name != ZERO_SHOT:
            service.profiles.get(name)
        return Asked(profile=name)

    async def infer(request: Request, name: str, version: str = VERSION) -> Response:
        chosen(name, version)
        async with service.admitted(request) as (ticket, body):
            limits = service.settings.limits
            parsed = await service.in_thread(lambda: parse_request(body, request.headers.get(LENGTH), limits.images))
            ticket.hold(len(parsed.images))
            uploads = [Upload(f"image {number}", data) for number, data in enumerate(parsed.images, 1)]
            results = await service.predict(uploads, asked_of(name, parsed))
            answer, length = await service.in_thread(lambda: answer_of(name, parsed, results))
        if length is None:
            return Response(answer, media_type="application/json")
        return Response(answer, media_type="application/octet-stream", headers={LENGTH: str(length)})

    for path in ("/models/{name}", "/models/{name}/versions/{version}"):
        _add(router, path, metadata, chosen, infer)
    return router


def _add(
    router: APIRouter,
    path: str,
    metadata: Callable[[str], dict[str, Any]],
    chosen: Callable[[str, str], Asked],
    infer: Callable[[Request, str, str], Any],
) -> None:
    """The three routes of a model, with a version in their path or without."""
    suffix = "_version" if "version}" in path else ""

    def get_metadata(name: str, version: str = VERSION) -> dict[str, Any]:
        """Inputs and outputs of a model."""
        chosen(name, version)
        return metadata(name)

    def get_ready(name: str, version: str = VERSION) -> dict[str, Any]:
        """Whether a model takes requests."""
        chosen(name, version)
        return {"name": name, "ready": True}

    async def post_infer(request: Request, name: str, version: str = VERSION) -> Response:
        """Predict images: a BYTES tensor of image files, base64 in JSON or as binary data behind it."""
        response: Response = await infer(request, name, version)
        return response

    wrong: dict[int | str, dict[str, Any]] = {404: ERRORS[404]}
    router.get(path, response_model=ModelMetadata, responses=wrong, name=f"model{suffix}")(get_metadata)
    router.get(path + "/ready", responses=wrong, name=f"model_ready{suffix}")(get_ready)
    router.post(
        path + "/infer", response_class=Response, responses=ERRORS, openapi_extra=INFER_BODY, name=f"infer{suffix}"
    )(post_infer)


def asked_of(name: str, request: InferRequest) -> Asked:
    """What the parameters of a request ask for."""
    parameters = request.parameters
    point = parameters.get("point")
    if point is not None and not isinstance(point, str):
        raise RefusedError(400, "the parameter point must be the name of an operating point.")
    threshold = number_in(parameters, "threshold", float)
    if threshold is not None and not 0 <= threshold <= 1:
        raise RefusedError(400, "the parameter threshold must lie between 0 and 1.")
    return Asked(name, point, Wanted(threshold))


def answer_of(name: str, request: InferRequest, results: Sequence[Result]) -> tuple[bytes, int | None]:
    """Body of the answer, and the length of its JSON where binary data follow.

    Raises:
        RefusedError: 422 where an image could not be used: a tensor has no place for an error.
    """
    for result in results:
        if result.error is not None:
            raise RefusedError(422, str(result.error))
    predictions = [result.prediction for result in results if result.prediction is not None]
    available = {tensor.name: tensor for tensor in _tensors(predictions, results, request)}
    tensors: list[tuple[Tensor, bool]] = []
    for output in request.outputs:
        if output.name not in available:
            known = "this profile was not calibrated" if output.name in _DATATYPES else "there is no such output"
            raise RefusedError(400, f"the output {output.name[:40]!r} cannot be given: {known}.")
        tensors.append((available[output.name], output.binary))
    if not request.outputs:
        tensors = [(tensor, request.binary) for tensor in available.values()]
    head = {"model_name": name, "model_version": VERSION} | ({} if request.id is None else {"id": request.id})
    return build_answer(head, tensors)


def _tensors(predictions: Sequence[Prediction], results: Sequence[Result], request: InferRequest) -> list[Tensor]:
    """All outputs that there are for these predictions."""
    described = [result.described for result in results]
    wanted = {output.name for output in request.outputs}
    tensors = []
    for key, datatype in _DATATYPES.items():
        values: Any
        if key == "anomaly_map":
            if key not in wanted:
                continue  # large; only where it is asked for
            maps = [prediction.anomaly_map for prediction in predictions]
            if len({own.shape for own in maps}) > 1:  # a profile that pads images
                raise RefusedError(400, "the maps of these images have different sizes; ask for them one at a time.")
            values = np.stack(maps)
        elif key == "prediction":
            values = [json.dumps(own).encode() for own in described]
        elif key == "keep":
            values = np.array([prediction.keep_final for prediction in predictions])
        else:
            listed = [own.get(key) for own in described]
            if any(value is None for value in listed):
                continue
            values = [str(value).encode() for value in listed] if datatype == "BYTES" else np.array(listed)
        tensors.append(Tensor(key, datatype, values))
    return tensors
