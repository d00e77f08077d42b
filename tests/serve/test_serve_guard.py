"""Who is let in: tokens, foreign pages, foreign names, and the headers of every answer."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from keepad.detector import Detector
from keepad.errors import KeepADError
from keepad.serve.service import Service
from keepad.serve.settings import ServeSettings, is_loopback, read_token
from serving import open_client, picture

TOKEN = "correct-horse-battery"


@pytest.fixture(scope="module")
def closed(detector: Detector) -> Iterator[TestClient]:
    """A client of a service with a token, which it does not send by itself."""
    with open_client(Service(detector, ServeSettings(token=TOKEN), lambda line: None)) as client:
        yield client


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.4", "example.org"])
def test_an_address_that_others_reach_needs_a_token(host: str) -> None:
    with pytest.raises(KeepADError, match="other machines can reach"):
        ServeSettings(host=host)
    assert ServeSettings(host=host, token=TOKEN).token == TOKEN


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"token": "short"}, "at least 16 characters"),
        ({"token": "ü" * 20}, "ASCII"),
        ({"token": "line\nbreak-and-more-text"}, "line breaks"),
        ({"port": 70_000}, "from 0 to 65535"),
        ({"batch_size": 0}, "at least 1"),
    ],
)
def test_settings_that_make_no_sense_are_refused(values: dict[str, object], words: str) -> None:
    with pytest.raises(KeepADError, match=words):
        ServeSettings(**values)  # type: ignore[arg-type]


def test_loopback() -> None:
    assert all(map(is_loopback, ("127.0.0.1", "127.8.8.8", "::1", "localhost")))
    assert not any(map(is_loopback, ("10.0.0.1", "localhost.evil.example", "", "2130706433", "127.0.0.1.nip.io")))


def test_token_files(tmp_path: Path) -> None:
    file = tmp_path / "token"
    with pytest.raises(KeepADError, match="cannot be read"):
        read_token(file)
    file.write_text(" \n")
    with pytest.raises(KeepADError, match="is empty"):
        read_token(file)
    file.write_text(f"{TOKEN}\n")
    assert read_token(file) == TOKEN


@pytest.mark.parametrize(
    "authorization",
    ["", "Bearer", "Bearer ", f"Bearer {TOKEN}x", f"Basic {TOKEN}", TOKEN, f"Bearer {TOKEN[:-1]}", "Bearer \xff\xff"],
)
def test_without_the_token_only_page_and_health_answer(closed: TestClient, authorization: str) -> None:
    headers = {"Authorization": authorization.encode("latin-1")}
    for method, path in (
        *(("GET", path) for path in ("/info", "/profiles", "/feed", "/metrics", "/v2", "/openapi.json", "/x")),
        *(("POST", path) for path in ("/predict", "/v2/models/keepad/infer", "/baskets")),
        ("PUT", "/profiles/bolts"),
    ):
        answer = closed.request(method, path, headers=headers)  # type: ignore[arg-type]
        assert (answer.status_code, answer.headers["www-authenticate"]) == (401, 'Bearer realm="keepad"'), path
    for path in ("/", "/page/page.css", "/page/api.js", "/healthz", "/v2/health/live", "/v2/health/ready"):
        assert closed.get(path, headers=headers).status_code == 200  # type: ignore[arg-type]


def test_with_the_token_any_name_of_the_service_will_do(closed: TestClient) -> None:
    headers = {"Authorization": f"bearer {TOKEN}", "Host": "inspection.example"}
    document = closed.get("/openapi.json", headers=headers).json()
    assert "HTTPBearer" in document["components"]["securitySchemes"]
    assert "security" not in document["paths"]["/v2/health/ready"]["get"]
    assert closed.post("/predict", content=picture(), headers=headers).status_code == 200


@pytest.mark.parametrize(
    "host", ["evil.example", "127.0.0.1.evil.example:8000", "localhost.evil.example", "", "[", "@"]
)
def test_a_foreign_name_that_points_here_is_refused(client: TestClient, host: str) -> None:
    answer = client.post("/predict", content=picture(), headers={"Host": host})
    assert answer.status_code == 421
    assert "error" in answer.json()


@pytest.mark.parametrize("host", ["127.0.0.1:8000", "localhost:9999", "[::1]:8000", "LOCALHOST"])
def test_every_name_of_this_machine_is_its_own(client: TestClient, host: str) -> None:
    assert client.get("/info", headers={"Host": host}).status_code == 200
    assert client.get("/info", headers={"Host": host, "Origin": f"http://{host}".lower()}).status_code == 200


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://127.0.0.1:3000"},  # another program's page on this machine
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
    ],
)
def test_requests_of_other_web_pages_are_refused(client: TestClient, headers: dict[str, str]) -> None:
    for method, path in (("POST", "/predict"), ("GET", "/feed"), ("DELETE", "/profiles/x"), ("PUT", "/profiles/x")):
        assert client.request(method, path, headers=headers).status_code == 403
    assert client.options("/predict", headers=headers).status_code == 403  # so no preflight ever succeeds
    link = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"}
    assert client.get("/", headers=link).status_code == 200  # a link to the page is none of these


@pytest.mark.parametrize("path", ["/", "/page/page.js", "/info", "/nothing", "/v2/models/nothing"])
def test_every_answer_carries_the_strict_headers(client: TestClient, path: str) -> None:
    headers = client.get(path).headers
    policy = headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "script-src 'self';" in policy
    assert "unsafe" not in policy
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["cache-control"] == "no-store"
    assert "server" not in headers
    assert "access-control-allow-origin" not in headers
