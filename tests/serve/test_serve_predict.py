"""POST /predict: the same numbers as the detector, whatever is sent beside them; limits; a full queue."""

from __future__ import annotations

import base64
import io
import struct
import zlib
from collections.abc import Callable, MutableMapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import anyio
import numpy as np
import pytest
from PIL import Image
from starlette.testclient import TestClient

from keepad.detector import Detector
from keepad.prediction import Prediction
from keepad.serve.answers import PICTURES
from keepad.serve.app import create_app
from keepad.serve.errors import RefusedError
from keepad.serve.service import Service
from keepad.serve.settings import Limits
from serving import OWN, blocked, form, open_client, picture, pixels, scores, wait_for


def test_bytes_of_one_image_give_the_detectors_own_numbers(client: TestClient, detector: Detector) -> None:
    answer = client.post("/predict?name=part.png&point=prune70", content=picture(2))
    assert answer.status_code == 200, answer.text
    (result,) = answer.json()["results"]
    expected = detector(pixels(2), point="prune70")
    assert result["pred_score"] == expected.pred_score
    assert result["name"] == "part.png"
    assert result["point"] == "prune70"
    assert result["pred_label"] == (expected.pred_score >= 0.5)
    assert result["image_size"] == [60, 70]
    assert result["regions_total"] == len(expected.regions())
    assert [region["box"] for region in result["regions"]] == [list(region.box) for region in expected.regions()]
    assert "path" not in result


def test_a_form_with_several_images_keeps_their_order_and_reports_the_broken_one(
    client: TestClient, detector: Detector
) -> None:
    files = [("a.png", picture(1)), ("b.jpg", b"no image"), ("c.bmp", picture(2, kind="BMP"))]
    answer = client.post("/predict", files=form(*files)).json()
    first, second, third = answer["results"]
    assert [first["name"], second["name"], third["name"]] == ["a.png", "b.jpg", "c.bmp"]
    assert first["pred_score"] == pytest.approx(detector(pixels(1)).pred_score, abs=1e-6)  # they may share a pass
    assert third["pred_score"] == pytest.approx(detector(pixels(2)).pred_score, abs=1e-6)
    assert answer["errors"] == 1
    assert second["error"].startswith("b.jpg is not an image that can be read")


@pytest.mark.parametrize(
    ("content", "sentence"),
    [(b"no image", "is not an image that can be read"), (picture(0)[:-40], "is cut off or damaged")],
)
def test_an_image_that_cannot_be_used_is_422_with_its_sentence(
    client: TestClient, content: bytes, sentence: str
) -> None:
    answer = client.post("/predict?name=x.png", content=content)
    assert answer.status_code == 422
    assert answer.json()["error"].startswith("x.png ")
    assert sentence in answer.json()["error"]


def test_threshold_regions_and_area_are_per_request(client: TestClient) -> None:
    def result(query: str) -> dict[str, Any]:
        values: dict[str, Any] = client.post(f"/predict?{query}", content=picture(2)).json()["results"][0]
        return values

    everything, nothing = result("threshold=0"), result("threshold=1")
    assert everything["pred_label"]
    assert everything["regions"][0]["area"] == 60 * 70
    assert not nothing["pred_label"]
    assert nothing["regions"] == []
    assert "regions" not in result("threshold=0&regions=false")
    assert result("threshold=0&min_area=4201")["regions_total"] == 0
    assert result("")["threshold"] == 0.5  # a request's threshold is its own


def test_pictures_in_the_answer_and_as_the_answer(client: TestClient, detector: Detector) -> None:
    expected = detector(pixels(2))
    names = list(PICTURES)
    query = "&".join(f"include={name}" for name in names)
    pictures = client.post(f"/predict?{query}", content=picture(2)).json()["results"][0]["pictures"]
    assert list(pictures) == names
    for name in names:
        answer = client.post(f"/predict?output={name}", content=picture(2))
        assert answer.headers["content-type"] == "image/png"
        assert float(answer.headers["x-keepad-score"]) == expected.pred_score
        assert answer.content == base64.b64decode(pictures[name])
    values = np.asarray(Image.open(io.BytesIO(base64.b64decode(pictures["map"])))) / 65535
    np.testing.assert_allclose(values, expected.anomaly_map, atol=1e-5)
    survivors = np.asarray(Image.open(io.BytesIO(base64.b64decode(pictures["survivors"]))))
    assert survivors.shape == (*expected.grid, 4)
    np.testing.assert_array_equal(np.flatnonzero(survivors[..., 3] == 0), expected.survivors)


def test_one_picture_of_several_images_is_refused(client: TestClient) -> None:
    answer = client.post("/predict?output=map", files=form(("a", picture(0)), ("b", picture(1))))
    assert answer.status_code == 400
    assert "there are 2 images" in answer.json()["error"]


@pytest.mark.parametrize(
    ("query", "status", "words"),
    [
        ("point=prune51", 400, "no operating point called 'prune51'"),
        ("profile=bolts", 404, "no profile called 'bolts'"),
        ("profile=../../etc/passwd", 404, "no profile called"),
        ("threshold=1.5", 400, "threshold: Input should be less than or equal to 1"),
        ("threshold=nan", 400, "threshold"),
        ("include=photo", 400, "include"),
        ("min_area=0", 400, "min_area"),
    ],
)
def test_wrong_parameters_are_one_sentence(client: TestClient, query: str, status: int, words: str) -> None:
    answer = client.post(f"/predict?{query}", content=picture(0))
    assert answer.status_code == status
    assert words in answer.json()["error"]
    assert answer.json()["error"].count("\n") == 0


def header_of_a_large_png(side: int) -> bytes:
    """A small file that declares side x side pixels and could be unpacked to them."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = struct.pack(">IIBBBBB", side, side, 8, 0, 0, 0, 0)
    rows = zlib.compress(bytes(1000) * 10)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", rows) + chunk(b"IEND", b"")


def test_an_image_with_too_many_pixels_is_refused_by_its_header(make_service: Callable[..., Service]) -> None:
    with open_client(make_service(Limits(pixels=1_000_000))) as client:
        answer = client.post("/predict", content=header_of_a_large_png(20_000))
        assert answer.status_code == 422
        assert "20000 x 20000 pixels, more than the limit of 1 megapixels" in answer.json()["error"]


def test_limits_of_bytes_and_images(make_service: Callable[..., Service]) -> None:
    small = picture(0)
    with open_client(make_service(Limits(bytes=4 * len(small), images=2))) as client:
        assert client.post("/predict", files=form(("a", small), ("b", small))).status_code == 200
        answer = client.post("/predict", files=form(*[("a", small)] * 3))
        assert (answer.status_code, answer.json()["error"]) == (
            413,
            "a request may have 2 images at most; send the others in another one.",
        )
        for extra in ({}, {"content": iter([small] * 6)}):  # with its length in the header, and without
            answer = client.post("/predict", **({"content": small * 6} | extra))  # type: ignore[arg-type]
            assert answer.status_code == 413
            assert "MB at most" in answer.json()["error"]


def test_packed_bodies_are_unpacked_within_the_limit(client: TestClient, detector: Detector) -> None:
    expected = [detector(pixels(2)).pred_score]
    packed = zlib.compressobj(wbits=31)
    gzipped = packed.compress(picture(2)) + packed.flush()
    for encoding, body in (("gzip", gzipped), ("deflate", zlib.compress(picture(2)))):
        answer = client.post("/predict", content=body, headers={"Content-Encoding": encoding})
        assert scores(answer.json()) == expected
    bomb = zlib.compress(bytes(200_000_000), 9)
    assert len(bomb) < 1_000_000
    for body, encoding, status in (
        (bomb, "deflate", 413),
        (gzipped[:-9], "gzip", 400),
        (gzipped + b"x", "gzip", 400),
        (b"no gzip", "gzip", 400),
        (picture(2), "br", 415),
    ):
        answer = client.post("/predict", content=body, headers={"Content-Encoding": encoding})
        assert (answer.status_code, "error" in answer.json()) == (status, True)


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        ("multipart/form-data", b"--x\r\n"),
        ("multipart/form-data; boundary=x", b"--x\r\nContent-Disposition: form-data\r\n\r\nabc\r\n--x--"),
        ("multipart/form-data; boundary=x", b"\x00" * 500),
        ("multipart/form-data; boundary=x; charset=\xff", b"--y"),
        ("multipart/form-data; boundary=" + "x" * 300, b"--x\r\n\r\n"),
        ("multipart/form-data; boundary=x", b'--x\r\nContent-Disposition: form-data; name="a"\r\n\r\nabc\r\n--x--\r\n'),
        ("image/png", b""),
    ],
)
def test_bodies_without_an_image_are_refused(client: TestClient, kind: str, body: bytes) -> None:
    answer = client.post("/predict", content=body, headers={b"Content-Type": kind.encode("latin-1")})
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]


def test_names_of_files_are_shown_without_their_folders(client: TestClient) -> None:
    names = ["../../etc/passwd", "C:\\pictures\\part.png", "..", "", "a\x00b\nc.png", "x" * 500]
    results = client.post("/predict", files=form(*[(name or "0", picture(0)) for name in names])).json()["results"]
    shown = [result["name"] for result in results]
    assert shown[:3] == ["passwd", "part.png", "image 3"]
    assert shown[4].isprintable()
    assert len(shown[5]) < 130


def test_waiting_images_of_one_kind_share_a_pass_and_others_do_not(
    make_service: Callable[..., Service], detector: Detector
) -> None:
    service = make_service()
    batches: list[int] = []
    service.worker._on_batch = lambda batch: batches.append(batch.images)
    points = ["prune50"] * 5 + ["dense"] + ["prune50"] * 6 + ["dense"] * 2
    with blocked(service) as free:
        chosen = [Detector(detector.network, point).point for point in points]
        images = [detector.prepare(pixels(number)) for number in range(len(points))]
        waiting = [service.worker.submit(detector, *pair) for pair in zip(chosen, images, strict=True)]
        assert waiting[3].cancel()
        assert service.worker.waiting == 14
        free.set()
        predictions = [future.result(20) for future in waiting if not future.cancelled()]
    assert batches == [8, 3, 2]  # the first eight, the dense ones, the last two
    expected = [detector(pixels(n), point=point).pred_score for n, point in enumerate(points) if n != 3]
    np.testing.assert_allclose([prediction.pred_score for prediction in predictions], expected, atol=1e-5)


def test_one_image_that_fails_in_a_pass_does_not_spoil_the_others(
    make_service: Callable[..., Service], monkeypatch: pytest.MonkeyPatch
) -> None:
    service = make_service()
    whole = Prediction.of

    def failing(image: Any, *rest: Any) -> Prediction:
        if image.name == "bad.png":
            raise RuntimeError("out of luck")
        return whole(image, *rest)

    monkeypatch.setattr(Prediction, "of", failing)
    with open_client(service) as client, blocked(service) as free, ThreadPoolExecutor(2) as pool:
        bad = pool.submit(client.post, "/predict?name=bad.png", content=picture(0))
        good = pool.submit(client.post, "/predict", files=form(("a.png", picture(1)), ("b.png", picture(2))))
        wait_for(lambda: service.worker.waiting == 3)
        free.set()
        assert bad.result().status_code == 500
        assert bad.result().json() == {"error": "the service could not do this; its log says why."}
        assert good.result().status_code == 200
        assert good.result().json()["errors"] == 0


def test_a_full_queue_answers_429_and_recovers(make_service: Callable[..., Service]) -> None:
    service = make_service(Limits(queue=3, seconds=20))
    with open_client(service) as client, ThreadPoolExecutor(4) as pool:
        with blocked(service) as free:
            two = pool.submit(client.post, "/predict", files=form(("a", picture(0)), ("b", picture(1))))
            wait_for(lambda: service.admission.images == 2)
            refused = client.post("/predict", files=form(("c", picture(0)), ("d", picture(1))))
            assert refused.status_code == 429
            assert refused.json()["error"] == "the queue of this service is full; send the request again later."
            assert int(refused.headers["retry-after"]) >= 1
            one = pool.submit(client.post, "/predict", content=picture(2))
            wait_for(lambda: service.admission.images == 3)
            assert client.post("/predict", content=picture(2)).status_code == 429
            assert client.get("/healthz").status_code == 200  # whoever asks how it is gets an answer
            free.set()
            assert two.result().status_code == one.result().status_code == 200
        wait_for(lambda: service.admission.images == 0)
        assert service.admission.bytes == 0
        assert client.post("/predict", content=picture(2)).status_code == 200


def test_what_could_not_be_answered_in_time_is_not_let_in(make_service: Callable[..., Service]) -> None:
    service = make_service(Limits(queue=100, seconds=10))
    service.admission._seconds_per_image = lambda: 1.0
    with service.admission.ticket(10) as alone:
        alone.hold(20)  # late, but nobody is in front of it
        with pytest.raises(RefusedError) as refused, service.admission.ticket(10):
            pass
    assert (refused.value.status, refused.value.retry_after) == (429, 10)
    with service.admission.ticket(10) as first, service.admission.ticket(10) as second:
        first.hold(6)
        second.hold(4)
        with pytest.raises(RefusedError):
            second.hold(5)
        assert service.admission.images == 10
    assert service.admission.images == 0


def test_a_request_that_takes_too_long_is_given_up(make_service: Callable[..., Service]) -> None:
    service = make_service(Limits(seconds=0.3))
    with open_client(service) as client, blocked(service) as free:
        answer = client.post("/predict", content=picture(0))
        assert answer.status_code == 503
        assert int(answer.headers["retry-after"]) >= 1
        assert service.admission.images == 0
        free.set()
        service.worker.run(lambda: None).result(20)
        assert service.metrics.batch_images._sum.get() == 0  # nobody waits for it, so no pass is spent on it


def test_a_body_that_never_comes_is_given_up(make_service: Callable[..., Service]) -> None:
    service = make_service(Limits(seconds=0.2))
    sent: list[MutableMapping[str, Any]] = []

    async def receive() -> MutableMapping[str, Any]:
        await anyio.sleep_forever()
        raise AssertionError

    async def send(message: MutableMapping[str, Any]) -> None:
        sent.append(message)

    headers = [(b"host", b"127.0.0.1"), (b"content-length", b"1000")]
    scope = {"type": "http", "method": "POST", "path": "/predict", "query_string": b"", "headers": headers}
    scope |= {"scheme": "http", "root_path": "", "http_version": "1.1", "server": ("127.0.0.1", 8000)}
    with ThreadPoolExecutor(1) as pool:  # the thread of tests may have an event loop, that of the browser
        pool.submit(anyio.run, create_app(service), scope, receive, send).result()
    assert sent[0]["status"] == 408
    assert b"was not sent within 0.2 seconds" in sent[1]["body"]
    assert service.admission.images == 0


def test_feed_counts_what_was_seen_and_watches_drift(make_service: Callable[..., Service]) -> None:
    service = make_service()
    with open_client(service) as client:
        check_feed(client, service)


def check_feed(client: TestClient, service: Service) -> None:
    too_early = client.post("/drift?images=20")
    assert too_early.status_code == 409
    for start in range(0, 24, 8):
        client.post("/predict", files=form(*[(f"{n}.png", picture(3 * n)) for n in range(start, start + 8)]))
    client.post("/predict?name=broken.png", content=b"x")
    feed = client.get("/feed").json()
    assert (feed["images"], feed["errors"], feed["last"]) == (24, 1, 25)
    assert feed["stream"]["images"] == sum(feed["stream"]["histogram"]) == 24
    assert sum(feed["stream"]["verdicts"].values()) == 24
    assert feed["stream"]["drift"] == {"state": "off", "needed": 20, "available": 24}
    assert feed["results"][-1]["error"].startswith("broken.png is not an image")
    assert [row["number"] for row in client.get("/feed?after=23").json()["results"]] == [24, 25]

    assert client.post("/drift?images=24").json()["state"] == "watching"
    for score in np.linspace(0.9, 0.99, 60):  # far above whatever it has seen
        service.feed.stream("keepad").add(float(score), "defect", {"keep": 0.3})
    drift = client.get("/feed").json()["stream"]["drift"]
    assert (drift["state"], drift["quantity"], drift["kind"]) == ("drift", "score", "higher")
    assert drift["changes"][0]["after"] > 0.9
    text = client.get("/metrics").text
    assert 'keepad_images_total{profile="keepad",verdict="' in text
    assert "keepad_image_errors_total 1.0" in text


def test_openapi_names_every_route_and_loads_nothing(client: TestClient) -> None:
    document = client.get("/openapi.json").json()
    assert {"/predict", "/profiles/{name}/teach", "/v2/models/{name}/infer", "/metrics"} <= set(document["paths"])
    assert "securitySchemes" not in document["components"]  # this service has no token
    for path in ("/docs", "/redoc", "/page.js.map", "/..%2f..%2fetc/passwd", "/page/../../../etc/passwd"):
        answer = client.get(path)
        assert (answer.status_code, list(answer.json())) == (404, ["error"])
    assert client.get("/predict").status_code == 405
    assert client.get(f"{OWN}/").headers["content-type"].startswith("text/html")
