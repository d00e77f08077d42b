"""One real process: the clients of others, broken connections, and an orderly end."""

from __future__ import annotations

import http.client
import json
import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

import keepad
from serving import Process, picture, pixels, wait_for

INSTANT = "keepad_images_under_way"


@pytest.fixture(scope="module")
def process(folders: dict[str, Path]) -> Iterator[Process]:
    running = Process("--model", str(folders["onnx"]))
    yield running
    rest = running.close()
    assert "Traceback" not in rest, rest


def request(process: Process, method: str, path: str, body: bytes = b"") -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", process.port, timeout=30)
    try:
        connection.request(method, path, body)
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def images_under_way(process: Process) -> int:
    lines = request(process, "GET", "/metrics")[1].decode().splitlines()
    return next(int(float(line.split()[1])) for line in lines if line.startswith(INSTANT + " "))


def test_tritons_own_client_works_unchanged(process: Process, folders: dict[str, Path]) -> None:
    from tritonclient import http as triton
    from tritonclient.utils import InferenceServerException

    client = triton.InferenceServerClient(f"127.0.0.1:{process.port}")
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready("keepad")
    assert client.get_model_metadata("keepad")["inputs"][0]["datatype"] == "BYTES"
    assert [model["name"] for model in client.get_model_repository_index()] == ["keepad"]
    detector = keepad.load(folders["onnx"], point="prune70", say=lambda line: None)
    expected = [detector(pixels(seed)) for seed in (1, 2)]
    given = triton.InferInput("image", [2], "BYTES")
    given.set_data_from_numpy(np.array([picture(1), picture(2)], object))
    for packing in (None, "gzip", "deflate"):
        result = client.infer("keepad", [given], request_compression_algorithm=packing, parameters={"point": "prune70"})
        np.testing.assert_allclose(result.as_numpy("pred_score"), [own.pred_score for own in expected], atol=1e-6)
        assert json.loads(result.as_numpy("prediction")[0])["point"] == "prune70"
    wanted = [
        triton.InferRequestedOutput("anomaly_map"),
        triton.InferRequestedOutput("pred_score", binary_data=False),
    ]
    result = client.infer("keepad", [given], outputs=wanted, parameters={"point": "prune70"})
    maps = [prediction.anomaly_map for prediction in expected]
    np.testing.assert_allclose(result.as_numpy("anomaly_map"), maps, atol=1e-5)
    with pytest.raises(InferenceServerException, match="no profile called 'nothing'"):
        client.infer("nothing", [given])
    client.close()


def test_broken_connections_leave_the_service_as_it_was(process: Process) -> None:
    for data in (
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc",  # TLS to a plain port
        b"GET / HTTP/9.9\r\n\r\n",
        b"POST /predict HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: -5\r\n\r\n",
        b"POST /predict HTTP/1.1\r\nHost: 127.0.0.1\r\nTransfer-Encoding: chunked\r\n\r\nZZZ\r\n",
        b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\n\r\n",
        b"POST /predict HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 1000\r\n\r\nonly this",
    ):
        with socket.create_connection(("127.0.0.1", process.port), 30) as connection:
            connection.sendall(data)
            connection.shutdown(socket.SHUT_WR)
            while connection.recv(65_536):
                pass
    status, answer = request(process, "POST", "/predict", picture(1))
    assert (status, json.loads(answer)["errors"]) == (200, 0)
    wait_for(lambda: images_under_way(process) == 0)


def test_a_refusal_reaches_clients_that_are_still_sending(process: Process) -> None:
    body = bytes(3_000_000)
    for _ in range(5):
        for path, status in (("/predict?profile=nothing", 404), ("/predict?threshold=7", 400), ("/nothing", 404)):
            assert request(process, "POST", path, body)[0] == status
    too_large = bytes(64_000_001)
    assert request(process, "POST", "/predict", too_large)[0] == 413


def test_an_address_for_others_and_a_port_that_is_taken(folders: dict[str, Path]) -> None:
    def sentence(*options: str) -> str:
        words = [sys.executable, "-m", "keepad", "serve", "--model", str(folders["onnx"]), *options]
        done = subprocess.run(words, capture_output=True, text=True, timeout=300, check=False)
        assert done.returncode == 2, done.stderr
        return " ".join(done.stderr.split())

    assert "other machines can reach 0.0.0.0, so the service needs a secret" in sentence("--host", "0.0.0.0")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        said = sentence("--port", str(taken.getsockname()[1]))
        assert "cannot listen on 127.0.0.1 port" in said


def test_sigterm_finishes_what_is_under_way(folders: dict[str, Path]) -> None:
    process = Process("--model", str(folders["onnx"]), "--point", "dense")
    boundary = b"--x\r\n" + b'Content-Disposition: form-data; name="images"; filename="a.png"\r\n\r\n'
    body = b"".join(boundary + picture(seed) + b"\r\n" for seed in range(60)) + b"--x--\r\n"

    def send() -> tuple[int, bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", process.port, timeout=60)
        connection.request("POST", "/predict", body, {"Content-Type": "multipart/form-data; boundary=x"})
        answer = connection.getresponse()
        return answer.status, answer.read()

    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(send)
        wait_for(lambda: images_under_way(process) == 60)
        process.terminate()
        status, answer = waiting.result(60)
    assert status == 200
    assert len(json.loads(answer)["results"]) == 60
    assert process.wait() == 0
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", process.port), 5)
    assert "Traceback" not in process.close()
