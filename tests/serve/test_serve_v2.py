"""The Open Inference Protocol over plain HTTP: JSON, binary tensors, and requests that lie."""

from __future__ import annotations

import base64
import json
import struct
from typing import Any

import numpy as np
import pytest
from starlette.testclient import TestClient

from keepad.detector import Detector
from keepad.serve.tensors import Tensor, build_answer
from serving import picture, pixels

INFER = "/v2/models/keepad/infer"
LENGTH = "Inference-Header-Content-Length"


def text(data: bytes) -> str:
    return base64.b64encode(data).decode()


def body(*images: bytes, **more: Any) -> dict[str, Any]:
    data = [text(image) for image in images]
    return {"inputs": [{"name": "image", "shape": [len(images)], "datatype": "BYTES", "data": data}], **more}


def binary(head: dict[str, Any], data: bytes) -> tuple[bytes, dict[str, str]]:
    encoded = json.dumps(head).encode()
    return encoded + data, {LENGTH: str(len(encoded)), "Content-Type": "application/octet-stream"}


def outputs(answer: dict[str, Any]) -> dict[str, Any]:
    return {output["name"]: output for output in answer["outputs"]}


def test_health_and_metadata(client: TestClient) -> None:
    assert client.get("/v2/health/live").status_code == client.get("/v2/health/ready").status_code == 200
    assert "binary_tensor_data" in client.get("/v2").json()["extensions"]
    for path in ("/v2/models/keepad", "/v2/models/keepad/versions/1"):
        metadata = client.get(path).json()
        assert metadata["inputs"] == [{"name": "image", "datatype": "BYTES", "shape": [-1]}]
        assert client.get(f"{path}/ready").json() == {"name": "keepad", "ready": True}
    for path in ("/v2/models/nothing", "/v2/models/keepad/versions/2", "/v2/models/nothing/ready"):
        assert client.get(path).status_code == 404
    assert client.post("/v2/repository/index", content=b"{}").json()[0]["name"] == "keepad"


def test_json_in_and_out(client: TestClient, detector: Detector) -> None:
    request = body(picture(1), picture(2), id="42", parameters={"point": "prune70", "threshold": "0.4", "priority": 1})
    answer = client.post(INFER, json=request).json()
    expected = [detector(pixels(seed), point="prune70") for seed in (1, 2)]
    assert (answer["model_name"], answer["model_version"], answer["id"]) == ("keepad", "1", "42")
    named = outputs(answer)
    np.testing.assert_allclose(named["pred_score"]["data"], [own.pred_score for own in expected], atol=1e-6)
    assert named["pred_label"]["data"] == [prediction.pred_score >= 0.4 for prediction in expected]
    assert named["pred_label"]["shape"] == [2]
    assert json.loads(named["prediction"]["data"][1])["point"] == "prune70"
    assert "anomaly_map" not in named


def test_binary_in_and_out(client: TestClient, detector: Detector) -> None:
    data = b"".join(struct.pack("<I", len(image)) + image for image in (picture(1), picture(2)))
    tensor = {"name": "image", "shape": [2, 1], "datatype": "BYTES", "parameters": {"binary_data_size": len(data)}}
    wanted = [
        {"name": "anomaly_map", "parameters": {"binary_data": True}},
        {"name": "pred_score"},
        {"name": "prediction", "parameters": {"binary_data": True}},
    ]
    content, headers = binary({"inputs": [tensor], "outputs": wanted}, data)
    answer = client.post("/v2/models/keepad/versions/1/infer", content=content, headers=headers)
    assert answer.headers["content-type"] == "application/octet-stream"
    length = int(answer.headers[LENGTH])
    named = outputs(json.loads(answer.content[:length]))
    assert list(named) == ["anomaly_map", "pred_score", "prediction"]
    size = named["anomaly_map"]["parameters"]["binary_data_size"]
    maps = np.frombuffer(answer.content[length : length + size], "<f4").reshape(named["anomaly_map"]["shape"])
    expected = [detector(pixels(seed)) for seed in (1, 2)]
    np.testing.assert_allclose(maps, [prediction.anomaly_map for prediction in expected], atol=1e-6)
    np.testing.assert_allclose(named["pred_score"]["data"], [own.pred_score for own in expected], atol=1e-6)
    rest = answer.content[length + size :]
    (first,) = struct.unpack("<I", rest[:4])
    assert json.loads(rest[4 : 4 + first])["name"] == "image 1"


def test_all_outputs_binary_by_one_parameter(client: TestClient) -> None:
    answer = client.post(INFER, json=body(picture(1), parameters={"binary_data_output": True}))
    head = json.loads(answer.content[: int(answer.headers[LENGTH])])
    assert all(output["parameters"]["binary_data_size"] > 0 for output in head["outputs"])


def test_tensors_are_packed_as_the_protocol_says() -> None:
    tensors = [
        (Tensor("flag", "BOOL", np.array([True, False])), True),
        (Tensor("words", "BYTES", [b"ab", b""]), True),
        (Tensor("number", "FP32", np.array([[1.5]])), False),
    ]
    answer, length = build_answer({"model_name": "x"}, tensors)
    assert length is not None
    assert answer[length:] == b"\x01\x00" + b"\x02\x00\x00\x00ab\x00\x00\x00\x00"
    assert json.loads(answer[:length])["outputs"][2] == {
        "name": "number", "datatype": "FP32", "shape": [1, 1], "data": [1.5]
    }  # fmt: skip


BAD_REQUESTS: list[tuple[Any, str]] = [
    ([], "the request must be a JSON object"),
    ({}, "inputs must be a list of one tensor"),
    ({"inputs": [{}]}, "the input must be called image"),
    ({"inputs": [{"name": "image"}]}, "datatype of image must be BYTES"),
    ({"inputs": [{"name": "image", "datatype": "FP32", "shape": [1], "data": [1]}]}, "must be BYTES"),
    ({"inputs": [{"name": "image", "datatype": "BYTES", "shape": [1]}]}, "neither data nor"),
    ({"inputs": [{"name": "image", "datatype": "BYTES", "shape": [0], "data": []}]}, "from 1 on"),
    ({"inputs": [{"name": "image", "datatype": "BYTES", "shape": [True], "data": [""]}]}, "whole numbers"),
    ({"inputs": [{"name": "image", "datatype": "BYTES", "shape": "1", "data": [""]}]}, "list of 1 to 4"),
    ({"inputs": [{"name": "image", "datatype": "BYTES", "shape": [2], "data": ["AAAA"]}]}, "says 2 images"),
    ({"inputs": [{"name": "image", "datatype": "BYTES", "shape": [1], "data": ["$$$"]}]}, "base64"),
    ({"inputs": [{"name": "image", "datatype": "BYTES", "shape": [1], "data": ["é"]}]}, "base64"),
    ({"inputs": [{"name": "image", "datatype": "BYTES", "shape": [1], "data": [1]}]}, "strings"),
    (body(picture(0), outputs={}), "outputs must be a list"),
    (body(picture(0), outputs=[{"name": 1}]), "needs a name"),
    (body(picture(0), outputs=[{"name": "price"}]), "'price' cannot be given: there is no such output"),
    (body(picture(0), outputs=[{"name": "pred_score", "parameters": {"binary_data": "yes"}}]), "true or false"),
    (body(picture(0), parameters=[]), "parameters must be a JSON object"),
    (body(picture(0), parameters={"threshold": True}), "must be a number"),
    (body(picture(0), parameters={"threshold": 1e400}), "must be a number"),
    (body(picture(0), parameters={"threshold": 7}), "between 0 and 1"),
    (body(picture(0), parameters={"point": ["dense"]}), "name of an operating point"),
    (body(picture(0), parameters={"point": "sparse"}), "no operating point called 'sparse'"),
    (body(picture(0), id=7), "id must be a string"),
    (body(picture(0), id="x" * 300), "at most 200"),
]


@pytest.mark.parametrize(("request_body", "words"), BAD_REQUESTS, ids=[words for _, words in BAD_REQUESTS])
def test_wrong_requests_are_one_sentence(client: TestClient, request_body: Any, words: str) -> None:
    answer = client.post(INFER, content=json.dumps(request_body))
    assert answer.status_code == 400, answer.text
    assert words in answer.json()["error"]


@pytest.mark.parametrize(
    "content",
    [
        b"[" * 200_000,
        b'{"inputs":' * 50_000,
        b'{"inputs": ' + b"9" * 10_000 + b"}",
        b"\xff\xfe{}",
        b"",
        b'{"a": 1} x',
        json.dumps({"inputs": {"a": "b"}}).encode("utf-16"),
    ],
)
def test_what_is_no_json_or_too_deep_is_refused(client: TestClient, content: bytes) -> None:
    answer = client.post(INFER, content=content)
    assert answer.status_code == 400
    assert answer.json()["error"].endswith(".")


@pytest.mark.parametrize(
    ("size", "data", "words"),
    [
        (10, b"123", "3 bytes follow"),
        (3, b"123", "end within a length"),
        (8, struct.pack("<I", 2**32 - 1) + b"1234", "end within an image"),
        (8, struct.pack("<II", 0, 0), "says 1 images, but there are 2"),
        (-1, b"", "binary_data_size is -1"),
        (None, b"123", "neither data nor"),
    ],
)
def test_binary_sizes_that_lie_are_refused(client: TestClient, size: int | None, data: bytes, words: str) -> None:
    parameters = {} if size is None else {"binary_data_size": size}
    tensor = {"name": "image", "shape": [1], "datatype": "BYTES", "parameters": parameters}
    content, headers = binary({"inputs": [tensor]}, data)
    answer = client.post(INFER, content=content, headers=headers)
    assert answer.status_code == 400
    assert words in answer.json()["error"]


@pytest.mark.parametrize("length", ["-1", "1e3", "99999999", "99999999999999999999", "٣"])
def test_header_lengths_that_lie_are_refused(client: TestClient, length: str) -> None:
    answer = client.post(INFER, content=b"{}", headers={LENGTH.encode(): length.encode()})
    assert answer.status_code == 400
    assert "Inference-Header-Content-Length" in answer.json()["error"]


def test_a_broken_image_and_too_many_images(client: TestClient) -> None:
    answer = client.post(INFER, json=body(picture(0), b"broken"))
    assert answer.status_code == 422
    assert answer.json()["error"].startswith("image 2 is not an image")
    answer = client.post(INFER, json=body(*[b""] * 65))
    assert answer.status_code == 413
    assert "64 images at most" in answer.json()["error"]
