"""Profiles through the service: taught, used, corrected, kept by name; hostile names and files."""

from __future__ import annotations

import base64
import json
import struct
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from safetensors.numpy import load, save
from starlette.testclient import TestClient

from keepad.detector import Detector
from keepad.framing import framing_of
from keepad.references.parts import framing_from
from keepad.references.profile import Profile, read_profile
from keepad.serve.service import Service
from keepad.serve.settings import Limits
from serving import form, open_client, picture, pixels, scores, wait_for

GOOD = [(f"good{number}.png", picture(3 * number)) for number in range(4)]


@pytest.fixture(scope="module")
def taught(detector: Detector) -> Profile:
    """What the library teaches from the same images."""
    return detector.teach([pixels(3 * number) for number in range(4)], say=lambda line: None)


def basket(client: TestClient, *files: tuple[str, bytes]) -> str:
    answer = client.post("/baskets", files=form(*files))
    assert answer.status_code == 201, answer.text
    return str(answer.json()["basket"])


def finished(client: TestClient, answer: Any) -> dict[str, Any]:
    """The job of an answer, once it has ended."""
    assert answer.status_code == 202, answer.text
    job: dict[str, Any] = answer.json()

    def ended() -> bool:
        nonlocal job
        job = client.get(f"/jobs/{job['id']}").json()
        return job["state"] not in ("waiting", "running")

    wait_for(ended)
    return job


@pytest.fixture
def kept(tmp_path: Path, make_service: Callable[..., Service]) -> Iterator[tuple[TestClient, Service, Path]]:
    """A service that keeps its profiles in a folder."""
    folder = tmp_path / "profiles"
    folder.mkdir()
    service = make_service(folder=folder)
    with open_client(service) as client:
        yield client, service, folder


def test_teach_predict_add_undo_and_start_again(
    kept: tuple[TestClient, Service, Path], detector: Detector, taught: Profile, make_service: Callable[..., Service]
) -> None:
    client, _, folder = kept
    name = basket(client, *GOOD[:2])
    answer = client.post(f"/baskets?basket={name}", files=form(*GOOD[2:], ("broken.png", b"x")))
    assert answer.json()["images"] == 4
    assert answer.json()["errors"][0]["error"].startswith("broken.png is not an image")
    job = finished(client, client.post(f"/profiles/bolts/teach?basket={name}"))
    assert (job["state"], job["done"], job["total"]) == ("done", 4, 4), job
    assert job["result"]["images"] == [name for name, _ in GOOD]
    assert any("taught 4 images" in line for line in job["lines"])

    expected = detector.with_profile(taught)(pixels(2))
    (result,) = client.post("/predict?profile=bolts", content=picture(2)).json()["results"]
    assert result["pred_score"] == pytest.approx(expected.pred_score, abs=1e-6)
    assert result["profile"] == "bolts"
    assert result["nearest_reference"]["name"] in job["result"]["images"]
    assert result["threshold"] == pytest.approx(taught.image_threshold)
    (zero_shot,) = scores(client.post("/predict?profile=keepad", content=picture(2)).json())
    assert zero_shot == detector(pixels(2)).pred_score
    wrong = client.post("/predict?profile=bolts&point=dense", content=picture(2))
    assert wrong.json() == {"error": "the profile bolts was taught at prune50, not at dense."}
    assert client.post("/v2/models/bolts/infer", json={}).status_code == 400

    job = finished(client, client.post(f"/profiles/bolts/add?basket={basket(client, ('alarm.png', picture(2)))}"))
    assert job["result"]["images"][-1] == "alarm.png"
    (after,) = scores(client.post("/predict?profile=bolts", content=picture(2)).json())
    assert after < result["pred_score"]
    again = finished(client, client.post(f"/profiles/bolts/add?basket={basket(client, ('alarm.png', picture(2)))}"))
    assert (again["state"], again["error"]) == (
        "failed",
        "alarm.png is in the profile already, as alarm.png; nothing was added.",
    )
    assert [path.name for path in folder.iterdir()] == ["bolts.keepad"]
    assert client.get("/profiles/bolts/file").content == (folder / "bolts.keepad").read_bytes()

    same = finished(client, client.post(f"/profiles/bolts/calibrate?false_alarms=0.2&basket={basket(client, *GOOD)}"))
    assert "4 of these images are references of the profile" in same["error"]

    assert finished(client, client.post("/profiles/bolts/undo"))["state"] == "done"
    (undone,) = scores(client.post("/predict?profile=bolts", content=picture(2)).json())
    assert undone == pytest.approx(result["pred_score"], abs=1e-3)  # float16 on disk
    assert "nothing to undo" in finished(client, client.post("/profiles/bolts/undo"))["error"]

    with open_client(make_service(folder=folder)) as later:
        actions = [line["action"] for line in later.get("/profiles/bolts").json()["history"]]
        assert actions == ["teach", "add", "undo"]
        assert later.delete("/profiles/bolts").json() == {"deleted": "bolts"}
        assert later.get("/profiles/bolts").status_code == 404
        assert [path.name for path in folder.iterdir()] == ["bolts.keepad.deleted"]


def test_calibration_gives_verdicts_p_values_and_a_normal_for_drift(
    make_service: Callable[..., Service], taught: Profile, detector: Detector
) -> None:
    more = [(f"more{number}.png", picture(3 * number)) for number in range(4, 28)]
    with open_client(make_service()) as client:
        client.put("/profiles/bolts", content=taught.to_bytes())
        few = client.post(f"/profiles/bolts/calibrate?false_alarms=0.05&basket={basket(client, *more[:3])}")
        assert few.status_code == 400
        assert "that needs 19" in few.json()["error"]
        job = finished(
            client, client.post(f"/profiles/bolts/calibrate?false_alarms=0.05&basket={basket(client, *more)}")
        )
        assert (job["state"], job["done"]) == ("done", 24), job
        assert job["result"]["calibration"]["images"] == 24

        profile = detector.with_profile(taught).calibrate(
            [pixels(3 * number) for number in range(4, 28)], false_alarms=0.05, say=lambda line: None
        )
        expected = detector.with_profile(profile)(pixels(2))
        (result,) = client.post("/predict?profile=bolts", content=picture(2)).json()["results"]
        assert (result["verdict"], result["p_value"]) == (expected.verdict, expected.p_value) == ("defect", 1 / 25)
        assert result["threshold"] == pytest.approx(expected.image_threshold, abs=1e-5)
        assert result["review_threshold"] <= result["threshold"]
        (own,) = client.post("/predict?profile=bolts&threshold=1", content=picture(2)).json()["results"]
        assert (own["verdict"], own["pred_label"]) == (None, False)
        answer = client.post("/v2/models/bolts/infer", json=v2_body(picture(2))).json()
        named = {output["name"]: output["data"] for output in answer["outputs"]}
        assert (named["verdict"], named["p_value"]) == (["defect"], [1 / 25])
        feed = client.get("/feed?profile=bolts").json()["stream"]
        assert (feed["drift"]["state"], feed["drift"]["good"], feed["verdicts"]["defect"]) == ("watching", 24, 2)

        alone = finished(
            client, client.post(f"/profiles/nuts/calibrate?false_alarms=0.05&basket={basket(client, *more)}")
        )
        assert (alone["result"]["images"], alone["result"]["tokens"]) == ([], 0)
        (result,) = client.post("/predict?profile=nuts", content=picture(2)).json()["results"]
        assert result["verdict"] == detector.with_profile(detector.calibrate(
            [pixels(3 * number) for number in range(4, 28)], false_alarms=0.05, say=lambda line: None
        ))(pixels(2)).verdict  # fmt: skip
        assert result["pred_score"] == pytest.approx(detector(pixels(2)).pred_score, abs=1e-6)


def v2_body(image: bytes) -> dict[str, Any]:
    data = [base64.b64encode(image).decode()]
    return {"inputs": [{"name": "image", "shape": [1], "datatype": "BYTES", "data": data}]}


def test_without_a_folder_nothing_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make_service: Callable[..., Service], taught: Profile
) -> None:
    monkeypatch.chdir(tmp_path)
    with open_client(make_service()) as client:
        answer = client.put("/profiles/bolts", content=taught.to_bytes())
        assert (answer.status_code, answer.json()["saved"]) == (201, False)
        assert scores(client.post("/predict?profile=bolts", content=picture(1)).json())
        assert client.put("/profiles/bolts", content=taught.to_bytes()).status_code == 409
    assert list(tmp_path.iterdir()) == []


def test_a_profile_given_at_the_start_is_the_default(
    tmp_path: Path, make_service: Callable[..., Service], taught: Profile, detector: Detector
) -> None:
    taught.save(tmp_path / "bolts.keepad")
    with open_client(make_service(files=[tmp_path / "bolts.keepad"])) as client:
        expected = detector.with_profile(tmp_path / "bolts.keepad")(pixels(2)).pred_score
        assert scores(client.post("/predict", content=picture(2)).json()) == [expected]
        assert client.get("/profiles").json()["default"] == "bolts"
        assert client.delete("/profiles/bolts").status_code == 409
        feed = client.get("/feed").json()
        assert (feed["stream"]["name"], feed["images"]) == ("bolts", 1)


NAMES = [
    "../evil",
    "..",
    ".",
    "a/b",
    "a%2Fb",
    "%2e%2e%2fevil",
    "/etc/passwd",
    "a.keepad",
    "keepad",
    "CON",
    "a" * 64,
    "ü",
]


@pytest.mark.parametrize("name", [*NAMES, "-rf", "a b", "a\\b", "C:evil", "%00", "a%0Ab"])
def test_names_that_could_be_paths_are_refused(
    kept: tuple[TestClient, Service, Path], taught: Profile, name: str
) -> None:
    client, _, folder = kept
    for answer in (
        client.put(f"/profiles/{name}", content=taught.to_bytes()),
        client.post(f"/profiles/{name}/teach?basket=x"),
        client.get(f"/profiles/{name}/file"),
        client.delete(f"/profiles/{name}"),
        client.post("/predict", params={"profile": name if name != "keepad" else "x/y"}, content=picture(0)),
    ):
        assert answer.status_code in (400, 404, 405), (answer.status_code, answer.text)
        assert answer.json()["error"]
    assert list(folder.iterdir()) == []
    assert [path.name for path in folder.parent.iterdir()] == ["profiles"]


def changed(profile: Profile, described: dict[str, Any] | None = None, **tensors: Any) -> bytes:
    """The file of a profile with another description, or other tensors."""
    content = profile.to_bytes()
    (length,) = struct.unpack("<Q", content[:8])
    metadata = json.loads(content[8 : 8 + length])["__metadata__"]
    values = json.loads(metadata["keepad-profile"]) | (described or {})
    return bytes(save({**load(content), **tensors}, metadata={"keepad-profile": json.dumps(values)}))


def hostile(profile: Profile) -> Iterator[tuple[str, bytes]]:
    """Files that are no whole profile of this detector, by what is wrong with them."""
    content = profile.to_bytes()
    layers = load(content)["layers"]
    yield "nothing", b"\x00"
    yield "no profile", picture(0)
    yield "pickle", b"\x80\x04cos\nsystem\n(S'touch owned'\ntR."
    yield "cut off", content[:-1000]
    yield "header longer than the file", struct.pack("<Q", 2**40) + content[8:]
    yield "header longer than memory", struct.pack("<Q", 2**63) + content[8:]
    deep = {"__metadata__": {"keepad-profile": "[" * 100_000}}
    head = json.dumps(deep).encode()
    yield "deep description", struct.pack("<Q", len(head)) + head
    yield "deep header", struct.pack("<Q", 100_000) + b"[" * 100_000
    yield "zip", b"PK\x03\x04" + bytes(1000)
    yield "not finite", changed(profile, layers=np.full_like(layers, np.nan))
    yield "other width", changed(profile, layers=np.ascontiguousarray(layers[..., :7]))
    yield "fewer layers", changed(profile, layers=np.ascontiguousarray(layers[:1]))
    yield "cells outside of the grid", changed(profile, cell=np.full(layers.shape[1], 10**6, np.int32))
    yield "references that are not there", changed(profile, image=np.full(layers.shape[1], 99, np.int32))
    yield "text as threshold", changed(profile, {"image_threshold": "high", "pixel_threshold": []})
    yield "no images", changed(profile, {"images": []})
    yield "history of numbers", changed(profile, {"history": [1, 2]})
    yield "settings of text", changed(profile, {"settings": "none"})
    yield "level of text", changed(profile, {"level": "low", "spread": 0})
    owner = {"name": "x", "checkpoint": "x", "backbone": "x", "point": "prune50"}
    yield "other detector", changed(profile, {"owner": {**owner, "budgets": "{}", "precision": "fp32", "size": [1, 1]}})
    yield (
        "odd point",
        changed(profile, {"owner": {**owner, "point": "../x", "budgets": "", "precision": "", "size": [9, 9]}}),
    )


def test_hostile_profiles_are_refused_and_leave_nothing(
    kept: tuple[TestClient, Service, Path], taught: Profile, detector: Detector
) -> None:
    client, _, folder = kept
    for what, content in hostile(taught):
        answer = client.put("/profiles/bolts", content=content)
        assert answer.status_code in (400, 422), (what, answer.status_code, answer.text)
        assert answer.json()["error"].count("\n") == 0
        assert str(folder) not in answer.text
    assert list(folder.iterdir()) == []
    assert client.put("/profiles/bolts", content=changed(taught)).status_code == 201
    expected = detector.with_profile(read_profile(folder / "bolts.keepad"))(pixels(2)).pred_score
    assert scores(client.post("/predict?profile=bolts", content=picture(2)).json()) == [expected]


def test_a_damaged_file_in_the_folder_is_left_out_and_named(
    tmp_path: Path, detector: Detector, taught: Profile
) -> None:
    from keepad.serve.settings import ServeSettings

    taught.save(tmp_path / "good.keepad")
    (tmp_path / "bad.keepad").write_bytes(b"x")
    (tmp_path / "a b.keepad").write_bytes(taught.to_bytes())
    said: list[str] = []
    service = Service(detector, ServeSettings(), said.append, folder=tmp_path)
    assert service.profiles.names() == ["good"]
    assert len(said) == 2
    service.close()


def test_teaching_goes_on_between_predictions_and_can_be_stopped(
    make_service: Callable[..., Service], detector: Detector
) -> None:
    service = make_service()
    order: list[str] = []
    first = threading.Event()
    infer = detector.network.infer

    def watched(*given: Any, **more: Any) -> Any:
        order.append("teach" if more.get("record") or (len(given) > 4 and given[4]) else "predict")
        first.set()
        return infer(*given, **more)

    with open_client(service) as client, pytest.MonkeyPatch.context() as patch:
        patch.setattr(detector.network, "infer", watched)
        started = client.post(f"/profiles/bolts/teach?rotate=on&basket={basket(client, *GOOD)}")
        first.wait(20)
        client.post("/predict", content=picture(2))
        answered = len(order)
        stopped = client.delete(f"/jobs/{started.json()['id']}")
        assert stopped.status_code == 200
        assert finished(client, started)["state"] == "stopped"
        assert "predict" in order[:answered]
        assert order.count("teach") < 4 * 9  # all images at all angles
        assert client.get("/profiles/bolts").status_code == 404


def test_baskets_and_jobs_that_are_not_there(client: TestClient, make_service: Callable[..., Service]) -> None:
    assert client.post("/baskets?basket=nothing", files=form(*GOOD)).status_code == 404
    assert client.post("/profiles/bolts/teach?basket=nothing").status_code == 404
    assert client.get("/jobs/nothing").status_code == client.delete("/jobs/nothing").status_code == 404
    empty = client.post("/baskets", files=form(("x.png", b"x"))).json()["basket"]
    assert client.post(f"/profiles/bolts/teach?basket={empty}").status_code == 400
    assert client.post(f"/profiles/bolts/teach?rotate=maybe&basket={empty}").status_code == 400
    assert client.delete(f"/baskets/{empty}").status_code == 200
    with open_client(make_service(Limits(uploaded=3))) as small:
        answer = small.post("/baskets", files=form(*GOOD))
        assert (answer.status_code, "3 images" in answer.json()["error"]) == (413, True)


@pytest.fixture(scope="module")
def with_region(detector: Detector, tmp_path_factory: pytest.TempPathFactory) -> Profile:
    """A profile of images 60 x 70 that are looked at in their right part only."""
    folder = tmp_path_factory.mktemp("region")
    mask = np.zeros((60, 70), np.uint8)
    mask[:, 30:] = 255
    Image.fromarray(mask).save(folder / "mask.png")
    looking = Detector(detector.network, "prune50", framing=framing_of(roi=folder / "mask.png"))
    looking.teach([pixels(3 * number) for number in range(4)], say=lambda line: None).save(folder / "looking.keepad")
    return read_profile(folder / "looking.keepad")  # which rounds its tokens


def test_region_of_interest_of_a_profile_holds_in_the_service(
    kept: tuple[TestClient, Service, Path], detector: Detector, with_region: Profile
) -> None:
    client, _, _ = kept
    answer = client.put("/profiles/bolts", content=with_region.to_bytes())
    assert answer.status_code == 201, answer.text
    expected = Detector(detector.network, "prune50", framing=framing_from(with_region.settings["framing"]))
    sent = pixels(2)  # its spot lies left and right of the edge
    (result,) = client.post("/predict?profile=bolts", content=picture(2)).json()["results"]
    assert result["pred_score"] == pytest.approx(expected.with_profile(with_region)(sent).pred_score, abs=1e-6)

    other = picture(2, (30, 35))
    assert "the mask" in client.post("/predict?profile=bolts", content=other).json()["error"]
    assert scores(client.post("/predict", content=other).json())

    whole = basket(client, ("more.png", picture(12)))
    refused = client.post(f"/profiles/bolts/add?basket={whole}")
    assert (refused.status_code, "?profile=" in refused.json()["error"]) == (409, True)
    framed = client.post("/baskets?profile=bolts", files=form(("more.png", picture(12)))).json()["basket"]
    assert client.post(f"/baskets?basket={framed}", files=form(("another.png", picture(15)))).status_code == 409
    job = finished(client, client.post(f"/profiles/bolts/add?basket={framed}"))
    assert (job["state"], len(job["result"]["images"])) == ("done", 5), job
    many = form(*((f"{number}.png", picture(3 * number)) for number in range(20, 40)))
    framed = client.post("/baskets?profile=bolts", files=many).json()["basket"]
    job = finished(client, client.post(f"/profiles/bolts/calibrate?basket={framed}&false_alarms=0.1"))
    assert job["state"] == "done", job


def test_profile_of_tiles_is_refused(
    kept: tuple[TestClient, Service, Path], detector: Detector, with_region: Profile
) -> None:
    client, _, _ = kept
    tiled = replace(with_region, settings={"framing": {"fit": "squash", "tiles": [None, None], "roi": None}})
    answer = client.put("/profiles/sheets", content=tiled.to_bytes())
    assert (answer.status_code, "tiles" in answer.json()["error"]) == (400, True), answer.text


def _looking(shape: object) -> dict[str, object]:
    """What a profile with a region of interest keeps."""
    return {"fit": "squash", "tiles": None, "roi": {"include": shape, "exclude": None}}


@pytest.mark.parametrize(
    "framing",
    [
        _looking({"size": [10**6, 10**6], "runs": [10**12]}),
        _looking({"size": [4, 4], "runs": [20, -4]}),
        _looking({"polygons": [[1, 2, 3]]}),
        {"fit": "squash", "tiles": None, "roi": [1]},
        {"fit": "stretched", "tiles": None, "roi": None},
        {"roi": 1},
        7,
    ],
)
def test_framing_that_lies_is_refused(
    kept: tuple[TestClient, Service, Path], with_region: Profile, framing: object
) -> None:
    client, _, _ = kept
    lying = replace(with_region, settings={"framing": framing})
    answer = client.put("/profiles/bolts", content=lying.to_bytes())
    assert (answer.status_code, "damaged" in answer.json()["error"]) == (400, True), answer.text
